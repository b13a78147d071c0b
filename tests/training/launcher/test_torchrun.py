"""The torchrun command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

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


def command(index: int, main: int, num_nodes: int) -> list[str]:
    node = replace(
        node_on("trn1.32xlarge", num_nodes=num_nodes),
        node_index=index,
        main_index=main,
        attempt=2,
        address=f"10.0.0.{index}",
    )
    return torchrun_command(
        node,
        python="python",
        rendezvous_port=41000,
        log_folder=Path("/tmp/scratch"),
        worker=worker_argv(["all-reduce", "--iterations=3"]),
    )


def test_a_child_of_four_nodes() -> None:
    assert command(index=2, main=0, num_nodes=4) == [
        "python", "-m", "torch.distributed.run",
        "--nnodes=4", "--nproc-per-node=32", "--node-rank=2",
        "--rdzv-backend=static", "--rdzv-id=job-2",
        "--master-addr=10.0.0.1", "--master-port=41000", "--local-addr=10.0.0.2",
        "--max-restarts=0", "--log-dir=/tmp/scratch", "-m", "--", "training.worker",
        "all-reduce", "--iterations=3",
    ]  # fmt: skip


@given(st.data(), st.integers(1, 32))
def test_the_node_at_the_masters_address_has_rank_0(data: st.DataObject, num_nodes: int) -> None:
    main = data.draw(st.integers(0, num_nodes - 1))

    ranks = [command(index, main, num_nodes)[5] for index in range(num_nodes)]

    assert ranks[main] == "--node-rank=0"
    assert len(set(ranks)) == num_nodes


def test_every_flag_exists_in_the_oldest_torch() -> None:
    words = command(index=0, main=0, num_nodes=2)[3:-4]

    assert {word.partition("=")[0] for word in words} <= FLAGS_OF_TORCH_2_9
