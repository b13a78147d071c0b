"""A user's own program on a node: its files, checkpoints and output."""
