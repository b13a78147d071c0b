"""The workload ``verify``, which checks that this device computes correctly with this release.

A tiny Llama, BERT and digit network are trained on the device, with the same backends as any run,
and on the host, with code independent of the backends. Gradients, norms, losses, weights and
checkpoints must agree. Then probes check the claims of docs/claims.toml.

    python -m jobs submit verify --nodes 1
"""
