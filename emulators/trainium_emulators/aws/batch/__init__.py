"""Runs Batch jobs as AWS Batch would, with local process groups for nodes and containers."""
