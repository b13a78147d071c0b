"""Command-line client that submits multi-node jobs to a deployment, watches and stops them."""
