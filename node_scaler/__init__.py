"""A program beside the jobs in a cluster: takes idle Trainium nodes away, and gets missing ones."""
