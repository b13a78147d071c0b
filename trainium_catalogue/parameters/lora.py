"""Low-rank adapters (LoRA, arXiv 2106.09685): their target projections and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainium_catalogue.models.presets import ModelShape
from trainium_catalogue.parameters.parameter import Value

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Projections of a layer, by Hugging Face's names."""
ROW_PARALLEL = ("o_proj", "down_proj")
"""Row-parallel projections, split by inputs; the others are split by outputs."""
TARGETS_PATTERN = rf"({'|'.join(TARGETS)})(,({'|'.join(TARGETS)}))*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """The adapters of a run, which add ``alpha / rank * B A x`` to ``W x``."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    """In the order of ``TARGETS``."""

    @staticmethod
    def of(values: Mapping[str, Value]) -> Lora | None:
        """Read a workload's parameters; None if all weights are trained."""
        rank = int(values.get("lora-rank", 0))
        if not rank:
            return None
        if not values.get("init-from"):
            raise ValueError(
                f"lora-rank={rank} without init-from: adapters need pretrained weights; specify a "
                "model with --init-from"
            )
        named = str(values["lora-targets"]).split(",")
        return Lora(
            rank=rank,
            alpha=float(values["lora-alpha"]),
            targets=tuple(name for name in TARGETS if name in named),
        )

    @property
    def scale(self) -> float:
        """Scaling factor of the adapters' output."""
        return self.alpha / self.rank

    def num_parameters(self, shape: ModelShape, *, tensor_parallel: int = 1) -> int:
        """Count the parameters of all adapters, or of a rank's shard of them."""
        found = 0
        for name in self.targets:
            inputs, outputs = _sizes(shape)[name]
            if name in ROW_PARALLEL:
                inputs //= tensor_parallel
            else:
                outputs //= tensor_parallel
            found += self.rank * (inputs + outputs)
        return found * shape.num_hidden_layers


def _sizes(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Return the numbers of inputs and outputs of every projection."""
    hidden, inner, attention = shape.hidden_size, shape.intermediate_size, shape.attention_size
    keys = shape.head_size * shape.num_key_value_heads
    return {
        "q_proj": (hidden, attention),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (attention, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
