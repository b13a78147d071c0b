"""The parameters of the workloads, and rules about combinations of values."""
