"""In-cluster autoscaler that removes idle Trainium nodes and adds missing ones."""
