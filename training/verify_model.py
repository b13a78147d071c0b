"""What verify trains: one tiny model and batch for every device, and what a CPU found.

After a change of the model or of the data here:
``python -m training.verify_model > training/verify_golden.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from training.backends import open_backend
from training.config import TrainConfig
from training.contract import DeviceKind
from trainium_catalogue.models import PRESETS
from trainium_catalogue.training_parameters import training_parameters

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.device import Device

GOLDEN = Path(__file__).with_name("verify_golden.json")
STEPS = 8
_VOCABULARY = 512
MOST_RANKS = 64
"""That can share the batch, two to a model: no two trn2.48xlarge."""
_SHAPE = {"vocab-size": _VOCABULARY, "seq-len": 64, "global-batch": 32, "max-steps": STEPS}
"""Of llama-tiny, smaller still: a batch that 1 to 64 ranks can share, two to a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far numbers may be from the golden ones, relative to them."""

    loss: float
    norm: float
    resumed: float
    """A resumed step's loss from the same step's before."""


FP32 = Tolerance(loss=1e-4, norm=1e-3, resumed=0.0)
"""On CPUs only the order of sums differs, and a resumed step repeats the first one exactly."""
BF16 = Tolerance(loss=2e-2, norm=1e-1, resumed=1e-3)
"""bf16 has 8 bits of mantissa; the loss falls by a quarter meanwhile."""


def batch(positions: range) -> torch.Tensor:
    """Skewed tokens, so that there is something to learn, from integer arithmetic alone."""
    place = np.array(positions, np.uint64)[:, None] * np.uint64(65)
    place = place + np.arange(65, dtype=np.uint64)
    # A step of Knuth's MMIX generator, of which the high bits are used.
    mixed = place * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    mixed ^= mixed >> np.uint64(29)
    mixed = mixed * np.uint64(6364136223846793005)
    return torch.from_numpy(((mixed >> np.uint64(33)) % np.uint64(22)).astype(np.int64) ** 2)


def config_for(num_ranks: int) -> TrainConfig:
    """The model and batch of all checks, on so many ranks."""
    preset = PRESETS["llama-tiny"]
    values = {p.name: p.default for p in training_parameters(preset)} | _SHAPE
    values["tensor-parallel"] = 2 if num_ranks % 2 == 0 else 1
    return TrainConfig.from_values(values, num_ranks)


def train(
    backend: Backend, config: TrainConfig, steps: range, report: Callable[[str], None]
) -> list[tuple[float, float]]:
    """Make optimizer steps, counted from 1; loss and norm of the gradients of each."""
    found = []
    count = config.plan.accumulation_steps
    for step in steps:
        report(f"verifying: step {step}")
        for micro in range(count):
            tokens = batch(config.positions(step - 1, micro, backend.data_rank))
            loss = backend.forward_backward(tokens, is_last=micro == count - 1)
        norm = backend.clip_and_step(config.learning_rate_at(step))
        found.append((backend.mean_over_data(loss), backend.fetch(norm)))
    return found


def golden() -> list[tuple[float, float]]:
    """The losses and norms to find, as committed."""
    return [(loss, norm) for loss, norm in json.loads(GOLDEN.read_text())["steps"]]


def deviations(
    found: Sequence[tuple[float, float]], expected: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """The largest of losses and of norms, relative; infinite where one is no number."""

    def worst(index: int) -> float:
        pairs = [(f[index], e[index]) for f, e in zip(found, expected, strict=True)]
        return max(abs(f - e) / abs(e) if math.isfinite(f) else math.inf for f, e in pairs)

    return worst(0), worst(1)


def make_golden() -> dict[str, Any]:
    """What a CPU finds in fp32, on one rank."""
    device = cast("Device", SimpleNamespace(kind=DeviceKind.CPU, rank=0, num_ranks=1))
    config = config_for(1)
    backend = open_backend(config, device, peak_flops=None)
    backend.build()
    found = train(backend, config, range(1, STEPS + 1), lambda text: None)
    return {
        "model": "llama-tiny, " + ", ".join(f"{name} {value}" for name, value in _SHAPE.items()),
        "columns": ["loss", "grad_norm"],
        "steps": [[round(loss, 7), round(norm, 7)] for loss, norm in found],
    }


if __name__ == "__main__":
    # More threads would only wait for each other.
    torch.set_num_threads(1)
    print(json.dumps(make_golden(), indent=1))
