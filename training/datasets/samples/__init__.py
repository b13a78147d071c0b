"""Copies a dataset from storage to the node, and reads the samples of a training step."""
