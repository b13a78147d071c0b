"""Workloads that check the machine: all-reduce sums, arithmetic, claims."""
