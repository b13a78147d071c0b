"""The all-reduce workload: correctness and speed of sums over all ranks."""
