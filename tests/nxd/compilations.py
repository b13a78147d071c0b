"""Count what torch_xla compiles, on its own CPU device: one rank, operations recorded.

    python -m tests.nxd.compilations <folder>

Writes ``<folder>/compilations.json``. Started with ``on_cpu.environment(lazy=True)``: NxD then is
as on a device, in a world of one, and torch_xla records, compiles and caches as it does there. The
count is its counter ``UncachedCompile``, each a compilation of neuronx-cc.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.nxd.cases import BERT, LLAMA, Case, micro_batches, parts, tokens
from training.core.processes import die_with_parent

LATE = 9902
"""One step before torch's AdamW becomes another graph, in Llama-2-7B's schedule."""
_LONG = ("--max-steps=10000", "--warmup-steps=100")
MODELS = (
    Case(name="llama", words=(*(w for w in LLAMA if "-steps" not in w), *_LONG)),
    Case(name="bert", words=(*(w for w in BERT if "-steps" not in w), *_LONG), backend="xla"),
    Case(name="mnist", words=("mnist", "--batch-size=8"), backend="xla", mixed=False),
)
SCHEDULES = {
    "llama2-7b": ("llama2-7b",),
    "llama2-7b, beta2 0.95": ("llama2-7b", "--beta2=0.95"),
    "bert": ("bert",),
}


def main(folder: Path) -> None:
    """Write all counts."""
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ[name] = value
    os.environ.update(LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    from training.core.contract import DeviceKind
    from training.core.device import open_device

    device = open_device(DeviceKind.XLA, timeout_s=60)
    found = {
        "models": {case.name: _model(case, device, folder / case.name) for case in MODELS},
        "schedules": {name: _schedule(words) for name, words in SCHEDULES.items()},
        "torch": _torchs_own(range(LATE - 10, LATE + 10)),
    }
    (folder / "compilations.json").write_text(json.dumps(found))


def compiled() -> int:
    """Return the number of graphs so far."""
    from torch_xla.debug import metrics

    return int(metrics.counter_value("UncachedCompile") or 0)


def _model(case: Case, device: Any, folder: Path) -> dict[str, Any]:
    """Count graphs of a compile job, of a run's other parts, and of a resumed run."""
    from training.checkpoint import Checkpoints
    from training.core.ranks import Ranks
    from training.storage import open_objects

    counts = dict[str, Any]()
    lap = Lap()
    config, backend, batch = parts(case, device)
    backend.build()
    counts["build"] = lap()
    counts["steps"] = [_step(config, backend, batch, step, lap) for step in (1, 2, 3)]
    counts["fetches"] = _fetches(config, backend, batch, 4)
    counts["evaluations"] = [_evaluate(config, backend, lap) for _ in range(2)]
    counts["step after an evaluation"] = _step(config, backend, batch, 5, lap)
    checkpoints = Checkpoints(
        open_objects(str(folder), region=None, endpoint_url=None),
        Ranks.open(),
        keep_last=10,
        keep_every=0,
    )
    backend.save(checkpoints, LATE, {}, asynchronous=False)
    checkpoints.wait()
    counts["save"] = lap()
    # Another job: the graphs of the one above are cached.
    config, backend, batch = parts(case, device)
    backend.build()
    counts["build again"] = lap()
    info = checkpoints.latest()
    assert info is not None
    assert backend.load(checkpoints, info).step == LATE
    counts["load"] = lap()
    late = [_step(config, backend, batch, step, lap) for step in range(LATE + 1, LATE + 4)]
    counts["steps after a load"] = late
    counts["evaluation after a load"] = _evaluate(config, backend, lap)
    return counts


class Lap:
    """Return the number of graphs since the last call."""

    def __init__(self) -> None:
        self._before = compiled()

    def __call__(self) -> int:
        """Run this many steps."""
        before, self._before = self._before, compiled()
        return self._before - before


def _step(config: Any, backend: Any, batch: Any, step: int, lap: Lap) -> tuple[int, int]:
    """Count graphs of the step itself, and of logged numbers."""
    loss = micro_batches(config, backend, batch, step)
    norm = backend.clip_and_step(config.learning_rate_at(step))
    of_step = lap()
    backend.mean_over_data(loss)
    backend.fetch(norm)
    return of_step, lap()


def _fetches(config: Any, backend: Any, batch: Any, step: int) -> tuple[int, int]:
    """Count tensors the host waits for in a step, and those of logged numbers."""
    before = fetched()
    loss = micro_batches(config, backend, batch, step)
    norm = backend.clip_and_step(config.learning_rate_at(step))
    of_step = fetched()
    backend.mean_over_data(loss)
    backend.fetch(norm)
    return of_step - before, fetched() - of_step


def fetched() -> int:
    """Return the number of transfers from the device so far."""
    from torch_xla.debug import metrics

    data = metrics.metric_data("TransferFromDeviceTime")
    return int(data[0]) if data else 0


def _evaluate(config: Any, backend: Any, lap: Lap) -> int:
    """Count graphs of a validation loss, where the workload has one."""
    from training.trainer.loop import validation_loss
    from training.trainer.task import HeldOutSplit

    if backend.name == "nxd":
        held_out = HeldOutSplit(batch=tokens, num_sequences=5)
        validation_loss(held_out, config=config, backend=backend)
    return lap()


def _schedule(words: tuple[str, ...]) -> list[int]:
    """Return the steps of a whole schedule whose update was a new graph."""
    import torch_xla.core.xla_model as xm

    from training.backends.optimizers import TracedAdamW, adamw_settings, groups_by_decay
    from training.core.arguments import parse
    from training.core.config import TrainConfig

    config = TrainConfig.from_values(parse(list(words)).values, 64)
    weight = _parameter(xm.xla_device())
    steps = range(1, config.max_steps + 1)
    groups = groups_by_decay([("a.weight", weight)], config)
    return _steps(config, TracedAdamW(groups, **adamw_settings(config)), weight, steps)


def _torchs_own(steps: range) -> list[int]:
    """Return the same for torch's AdamW, for some steps of Llama-2-7B."""
    import torch
    import torch_xla.core.xla_model as xm

    from training.core.arguments import parse
    from training.core.config import TrainConfig

    config = TrainConfig.from_values(parse(["llama2-7b"]).values, 64)
    weight = _parameter(xm.xla_device())
    optimizer = torch.optim.AdamW([weight], betas=(config.beta1, config.beta2), foreach=False)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    for state in optimizer.state.values():
        state["step"].fill_(steps.start - 1)
    return _steps(config, optimizer, weight, steps)


def _parameter(device: Any) -> Any:
    import torch

    return torch.nn.Parameter(torch.ones(1, device=device))


def _steps(config: Any, optimizer: Any, weight: Any, steps: Iterable[int]) -> list[int]:
    import torch
    import torch_xla.core.xla_model as xm

    weight.grad = torch.ones_like(weight)
    xm.mark_step()
    found = []
    for step in steps:
        before = compiled()
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        optimizer.step()
        xm.mark_step()
        if compiled() > before:
            found.append(step)
    return found


if __name__ == "__main__":
    die_with_parent(os.getppid())
    main(Path(sys.argv[1]))
