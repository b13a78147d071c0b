"""The models, one folder each: network, task and the data order of its batches."""
