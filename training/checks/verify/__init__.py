"""The workload ``verify``: is this device, with this release, right?

A tiny Llama, BERT and network for digits are trained on the device, through the same back-ends as
any run, and beside them on the host by code that shares nothing with the back-ends. Gradients,
norms, losses, weights and checkpoints have to agree. Then the probes look from here whether the
claims of docs/claims.toml hold.

    python -m jobs submit verify --nodes 1
"""
