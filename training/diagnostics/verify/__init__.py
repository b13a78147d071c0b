"""The workload ``verify``: tests that this device computes correctly with this release.

A tiny Llama, BERT and digit network are trained on the device, through the same back-ends as any
run, and also on the host by code that shares nothing with the back-ends. Gradients, norms, losses,
weights and checkpoints must agree. Then the probes check the claims of docs/claims.toml.

    python -m jobs submit verify --nodes 1
"""
