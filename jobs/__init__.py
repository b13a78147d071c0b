"""The desk's half: submit multi-node jobs to a deployment, watch them, stop them."""
