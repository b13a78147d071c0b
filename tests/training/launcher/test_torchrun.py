"""The torchrun command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.training.nodes import node_on
from training.launcher.node import torchrun_command, worker_argv

# `python -m torch.distributed.run --help` of torch 2.9.1, the release of the Neuron images.
FLAGS_OF_TORCH_2_9 = {
    "--nnodes", "--nproc-per-node", "--node-rank", "--rdzv-backend", "--rdzv-id", "--rdzv-conf",
    "--rdzv-endpoint", "--standalone", "--max-restarts", "--monitor-interval", "--start-method",
    "--event-log-handler", "--role", "-m", "--no-python", "--run-path", "--log-dir",
    "--redirects", "--tee", "--local-ranks-filter", "--master-addr", "--master-port",
    "--local-addr", "--logs-specs", "--numa-binding",
}  # fmt: skip


def command() -> list[str]:
    """Return the command of the last of four nodes, the second of which is the main one."""
    node = node_on("trn1.32xlarge", num_nodes=4)
    return torchrun_command(
        replace(node, node_index=3, main_index=1, attempt=2, address="10.0.0.9"),
        python="python",
        rendezvous_port=41000,
        log_folder=Path("/tmp/scratch"),
        worker=worker_argv(["all-reduce", "--iterations=3"]),
    )


def test_a_child_of_four_nodes() -> None:
    assert command() == [
        "python", "-m", "torch.distributed.run",
        "--nnodes=4", "--nproc-per-node=32", "--node-rank=2",
        "--rdzv-backend=static", "--rdzv-id=job-2",
        "--master-addr=10.0.0.1", "--master-port=41000", "--local-addr=10.0.0.9",
        "--max-restarts=0", "--log-dir=/tmp/scratch", "-m", "--", "training.worker",
        "all-reduce", "--iterations=3",
    ]  # fmt: skip


def test_every_flag_exists_in_the_oldest_torch() -> None:
    assert {word.partition("=")[0] for word in command()[3:-4]} <= FLAGS_OF_TORCH_2_9
