"""Workloads that judge the machine instead of training: sums, arithmetic, claims."""
