"""One process that imports torch, torch_xla and NxD, and forks the ranks of all cases.

    python -m tests.nxd.nursery <folder> <case>...

Importing takes longer than a rank's computation, so it is done once and not 30 times. A failed case
writes ``failure.txt`` in its folder; the others continue.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.nxd.cases import CASES, Case, train
from training.core.processes import die_with_parent

_TIMEOUT_S = 240.0


def main(folder: Path, names: list[str]) -> None:
    """Run the cases one after another."""
    _import()
    for name in names:
        case, place = CASES[name], folder / name
        place.mkdir(parents=True)
        began = time.monotonic()
        try:
            _run(case, place)
        except Exception:
            (place / "failure.txt").write_text(traceback.format_exc() + _logs(place))
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


def _import() -> None:
    import torch
    import torch_xla.core.xla_model
    import torch_xla.distributed.xla_backend  # noqa: F401

    import training.backends.native
    import training.backends.nxd
    import training.models.bert.task
    import training.models.llama.task
    import training.models.mnist.task  # noqa: F401

    # The child would wait for a thread of the parent, which forks do not inherit.
    torch.set_num_threads(1)


def _run(case: Case, place: Path) -> None:
    from torch.multiprocessing.spawn import start_processes

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context: Any = start_processes(  # type: ignore[no-untyped-call]
        _be_rank, (case, place, port), case.num_ranks, join=False, start_method="fork"
    )
    until_s = time.monotonic() + _TIMEOUT_S
    # Raises a rank's exception and kills the others.
    while not context.join(timeout=1):
        if time.monotonic() > until_s:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{case.name} takes longer than {_TIMEOUT_S:.0f} s")


def _be_rank(rank: int, case: Case, place: Path, port: int) -> None:
    die_with_parent(os.getppid())
    log = os.open(place / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(case.num_ranks),
        LOCAL_WORLD_SIZE=str(case.num_ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    train(case, place)


def _logs(place: Path) -> str:
    return "".join(
        f"--- {path.name}\n{path.read_text()[-4000:]}\n" for path in sorted(place.glob("*.log"))
    )


if __name__ == "__main__":
    # An interrupted test leaves no processes behind.
    die_with_parent(os.getppid())
    main(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
