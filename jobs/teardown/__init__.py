"""Destroys a deployment: ends its jobs, deletes its stacks, and lists what is left."""
