"""The code of a node's container: the launcher, and the workloads it starts."""
