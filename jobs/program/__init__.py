"""A user's own program: its bundle, its entry point, and the record of its submissions."""
