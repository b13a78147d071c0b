"""Access to the output of the cases."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.nxd import on_cpu
from tests.nxd.cases import CASES, LIMIT
from trainium_catalogue.contract import checkpoint_name

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
_BETA1 = 0.9


@dataclass(frozen=True)
class Figures:
    """Output of all cases, one folder each."""

    folder: Path

    def of(self, name: str) -> dict[str, Any]:
        """Return losses, norms and collectives; fail the calling test if the case failed."""
        failure = self.folder / name / "failure.txt"
        if failure.exists():
            pytest.fail(f"case {name}: {failure.read_text()}")
        path = self.folder / name / "figures.json"
        if not path.exists():
            pytest.fail(f"case {name} was not run:\n{(self.folder / 'nursery.log').read_text()}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def held(self, name: str) -> list[dict[str, Any]]:
        """Return each rank's weights at the start of training."""
        import torch

        self.of(name)
        return [
            torch.load(self.folder / name / f"held-{rank}.pt")
            for rank in range(CASES[name].num_ranks)
        ]

    def initial(self, name: str) -> Tensors:
        """Return the full parameters of the checkpoint before the first step."""
        found: Tensors = self._checkpoint(name, 0)["model"]
        return found

    def gradients(self, name: str) -> Tensors:
        """Return the full gradients of the first step, before clipping.

        From AdamW's first moment, which is then (1 - beta1) times the clipped gradient; plain SGD
        has moved the weights by its rate times the gradient.
        """
        figures = self.of(name)
        before, after = self.initial(name), self._checkpoint(name, 1)
        if "optimizer" not in after:
            moved = after["model"]
            return {n: (before[n] - moved[n]) / figures["rate"] for n in before}
        # As in torch's clip_grad_norm_ and NxD's.
        scale = max(1.0, (figures["norms"][0] + 1e-6) / LIMIT) / (1 - _BETA1)
        return {n: moment * scale for n, moment in after["optimizer"]["exp_avg"].items()}

    def _checkpoint(self, name: str, step: int) -> dict[str, Any]:
        self.of(name)
        return load(self.folder / name / "checkpoints" / checkpoint_name(step))


def compute(folder: Path, names: Iterable[str]) -> Figures:
    """Run cases; failures are reported when their figures are requested."""
    with (folder / "nursery.log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "tests.nxd.nursery", str(folder), *names],
            env=on_cpu.process_environment(folder),
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=900,
        )
    return Figures(folder)


@functools.cache
def load(folder: Path) -> dict[str, Any]:
    """Load a checkpoint of any number of ranks by torch alone."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    target = folder.with_suffix(".whole")
    dcp_to_torch_save(folder, target)
    found: dict[str, Any] = torch.load(target)
    return found


def distance(mine: Tensors, theirs: Tensors) -> dict[str, float]:
    """Return each parameter's norm of the difference, relative to ``theirs`` unless that is 0."""
    assert sorted(mine) == sorted(theirs)
    return {
        name: float((mine[name].float() - theirs[name].float()).norm())
        / (float(theirs[name].norm()) or 1.0)
        for name in theirs
    }
