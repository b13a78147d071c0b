"""Tear down a deployment: stop its jobs, delete its stacks, and list leftovers."""
