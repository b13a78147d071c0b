"""The parameters of the workloads, and the rules by which their values fit together."""
