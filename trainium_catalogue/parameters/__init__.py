"""The parameters of the workloads, and the rules that their values must satisfy together."""
