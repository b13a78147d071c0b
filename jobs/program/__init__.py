"""A user's own program: its files as a bundle, what to run of it, and the record of what ran."""
