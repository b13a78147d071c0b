"""Emulates AWS Batch, with local process groups as nodes and containers."""
