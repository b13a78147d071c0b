"""A BERT-tiny step beside a plain torch DDP loop of the same model, two processes each.

Both have the same sequences, batch, optimizer with its two groups, schedule, clipping and dropout,
and log every step. The baseline is the obvious first attempt: Hugging Face's model with its own
loss, DistributedDataParallel, AdamW; it projects every position onto the vocabulary, the product
only the predicted ones. Each side has two processes of its own, and waits while the other is
measured.
"""

import atexit
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from benchmarks.checkpoint import ask
from benchmarks.pairs import Comparison
from benchmarks.processes import ROOT
from trainium_catalogue import contract

STEPS = 6
"""Steps per measurement."""
BATCH, SEQ_LEN, RANKS = 8, 128, 2
"""Sequences per rank, their length, and the number of ranks."""


def step(environment: Mapping[str, str]) -> Comparison:
    """Compare the seconds that the same steps take."""
    servers: dict[str, subprocess.Popen[str]] = {}

    def seconds(side: str) -> float:
        if side not in servers:
            servers[side] = _start(side, environment)
        return ask(servers[side], str(STEPS))

    return Comparison(
        name="bert",
        product=f"{STEPS} steps of bert-tiny, {RANKS} processes x {BATCH} x {SEQ_LEN}, by the loop",
        baseline="the same by a plain torch DDP loop",
        target=1.1,
        measure_product=lambda: seconds("loop"),
        measure_baseline=lambda: seconds("ddp"),
    )


def _start(side: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start both ranks; rank 0 listens on its standard input."""
    folder = tempfile.TemporaryDirectory()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bert_worker", side],
            cwd=folder.name,
            env={
                **environment,
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                "OMP_NUM_THREADS": "1",  # as torchrun sets it for each of several workers
                "GLOO_SOCKET_IFNAME": "lo",
                "HF_HUB_OFFLINE": "1",
                contract.ENV_DEVICE: "cpu",
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE if rank == 0 else sys.stderr,
            text=True,
        )
        for rank in range(RANKS)
    ]

    def end() -> None:
        for process in processes:
            process.kill()
            process.wait()
        folder.cleanup()

    atexit.register(end)
    return processes[0]
