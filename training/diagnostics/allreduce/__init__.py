"""The all-reduce workload: correctness and bandwidth of sums over all ranks."""
