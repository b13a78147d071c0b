"""A user's program under the launcher, compared with the same file under a bare torchrun."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.node import FIRST, PROCESSES, free_port, full_environment, seconds_to_first
from benchmarks.pairs import Comparison
from benchmarks.processes import bundle_of
from trainium_catalogue.contract import bundle_key

_RUN = "local"
"""The name of a run outside Batch."""
PROGRAM = f"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1024))
if dist.get_rank() == 0:
    print("{FIRST}collective")
dist.destroy_process_group()
"""


def start(environment: Mapping[str, str]) -> Comparison:
    """Compare the time from the command to the first collective."""
    full = full_environment(environment)
    data, digest = bundle_of(PROGRAM)

    def product() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "build", bundle_key(_RUN, digest))
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
            command = [sys.executable, "-m", "training.launch", "program"]
            arguments = ["--code", digest, "--script", "train.py"]
            return seconds_to_first([*command, *arguments], full, Path(folder))

    def bare() -> float:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(PROGRAM)
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1"]
            command += [f"--nproc-per-node={PROCESSES}", "--rdzv-backend=static"]
            command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
            command += ["--local-addr=127.0.0.1", "train.py"]
            return seconds_to_first(command, full, Path(folder))

    return Comparison(
        name="own-program-start",
        product="a program under training.launch, start to first collective",
        baseline="the same file under bare torchrun",
        target=1.10,
        measure_product=product,
        measure_baseline=bare,
    )
