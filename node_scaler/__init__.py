"""A program in the cluster that removes idle Trainium nodes and adds missing ones."""
