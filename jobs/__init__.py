"""Command-line side: submits multi-node jobs to a deployment, watches them and stops them."""
