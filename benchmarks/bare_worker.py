"""A bare torchrun job, the baseline of the launch and all-reduce benchmarks.

Usage: torchrun ... --module benchmarks.bare_worker BYTES WARM-UP-ITERATIONS TIMED-ITERATIONS
Rank 0 prints `first collective`, then the median time of an all-reduce in seconds.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    """Run the first collective, then time the loop."""
    num_bytes, warmup, timed = (int(argument) for argument in sys.argv[1:])
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        print("first collective", flush=True)
    payload = torch.ones(num_bytes // 4)
    seconds = []
    for iteration in range(warmup + timed):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(payload)
        if iteration >= warmup:
            seconds.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(statistics.median(seconds) if seconds else 0.0, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
