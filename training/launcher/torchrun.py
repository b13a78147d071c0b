"""The torchrun command of one node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from training.core.contract import NodeContract

WORKER_MODULE = "training.worker"


def torchrun_command(
    node: NodeContract,
    *,
    python: str,
    rendezvous_port: int,
    log_folder: Path,
    words: Sequence[str],
) -> list[str]:
    """Command line that starts this node's workers; ``words`` go to each of them.

    Static rendezvous: the ranks follow from the node index, and no service beside the main node
    is needed. No restarts: Batch retries the whole job, and an in-place restart would hide
    the reason (docs/adr/0004).
    """
    return [
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={node.num_nodes}",
        f"--nproc-per-node={node.processes_per_node}",
        f"--node-rank={node.node_rank}",
        "--rdzv-backend=static",
        f"--rdzv-id={node.job_id}-{node.attempt}",
        f"--master-addr={node.main_address}",
        f"--master-port={rendezvous_port}",
        # Without it the agent looks its own host name up, which may wait for a name server.
        f"--local-addr={node.address}",
        "--max-restarts=0",
        # Nothing is redirected, but torchrun makes the folder, and would leave one in /tmp.
        f"--log-dir={log_folder}",
        "-m",
        # Else argparse takes a workload's --run for an abbreviation of torchrun's --run-path.
        "--",
        WORKER_MODULE,
        *words,
    ]
