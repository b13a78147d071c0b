"""Command-line client that submits, watches and stops multi-node jobs."""
