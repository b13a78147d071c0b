"""A user's own program on a node: its files, its checkpoints, its output."""
