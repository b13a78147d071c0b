"""The models, one folder each: network, task and batches."""
