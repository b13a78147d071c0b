"""What runs on a node, in the container: the launcher, and the workloads it starts."""
