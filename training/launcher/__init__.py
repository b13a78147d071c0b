"""A node's launcher: check the host, join the other nodes, watch the workers, set the exit code."""
