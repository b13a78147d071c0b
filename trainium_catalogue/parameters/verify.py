"""The parameters of ``verify``, its checks, and the Llama that it trains."""

import math
from collections.abc import Mapping

from trainium_catalogue.models.presets import LLAMA_PRESETS, model_named
from trainium_catalogue.parameters.parameter import Parameter, Value
from trainium_catalogue.parameters.plan import TrainingPlan
from trainium_catalogue.parameters.training import pretrain_parameters, training_parameters

CHECKS_OF_THE_LLAMA = ("gradients", "parity", "resume", "graphs")
FAMILIES = {"Llama 3.2": "llama3-tiny", "Qwen3": "qwen3-tiny"}
"""Models of the check ``families``, which are split as the Llama is."""
CHECKS = ("sums", *CHECKS_OF_THE_LLAMA, "families", "attention", "data-parallel", "cache")
"""All checks, in the order they run, since some continue from others."""
ALL = "all"

SHAPE: dict[str, Value] = {
    # A degree of 8 divides heads, key-value heads, vocabulary and inner size.
    "vocab-size": 512,
    "hidden-size": 128,
    "intermediate-size": 256,
    "num-heads": 16,
    "num-kv-heads": 8,
    "seq-len": 32,
    # Shared by 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 or 96 data-parallel ranks.
    "global-batch": 96,
    "max-steps": 20,
    "warmup-steps": 4,
    # Larger rates learn more but pass points where bf16 and fp32 diverge: with 1e-2, real bf16
    # losses at step 20 differ by 5 %, with this one by at most 0.07 %.
    "lr": 2e-3,
    # The first steps are clipped, some of the others are not.
    "max-grad-norm": 0.5,
    "beta2": 0.95,
}
"""An even smaller and faster llama-tiny."""
HEAD_DIM = 16
"""Of the models of ``FAMILIES``: twice the hidden size over the heads."""


VERIFY_PARAMETERS = (
    Parameter(
        name="checks",
        default="all",
        pattern=r"all|[a-z-]+(,[a-z-]+)*",
        pattern_help="all, or names of checks between commas",
        help=f"which checks to run: all, or some of {', '.join(CHECKS)}",
    ),
    Parameter(
        name="tensor-parallel",
        default=0,
        minimum=0,
        help="ranks that share the tiny decoders (0: as many as llama2-7b's, or as the job's "
        "ranks allow)",
    ),
)


def default_degree(num_ranks: int) -> int:
    """The tensor-parallel degree of llama2-7b, reduced to what ``num_ranks`` allows."""
    return math.gcd(LLAMA_PRESETS["llama2-7b"].tensor_parallel, num_ranks)


def llama_values(num_ranks: int, tensor_parallel: int = 0) -> dict[str, Value]:
    """Parameters of the Llama on ``num_ranks``; ``tensor_parallel`` 0 is the default degree."""
    preset = LLAMA_PRESETS["llama-tiny"]
    values = {p.name: p.default for p in training_parameters(preset)}
    return _shared(values, num_ranks, tensor_parallel)


def family_values(model: str, num_ranks: int, tensor_parallel: int = 0) -> dict[str, Value]:
    """The same of another decoder: all but its sizes is as in ``models.MODELS``."""
    values = {p.name: p.default for p in pretrain_parameters(model_named(model))}
    return _shared({**values, "head-dim": HEAD_DIM}, num_ranks, tensor_parallel)


def _shared(values: dict[str, Value], num_ranks: int, tensor_parallel: int) -> dict[str, Value]:
    values |= SHAPE
    degree = tensor_parallel or default_degree(num_ranks)
    values["tensor-parallel"] = degree
    share = int(SHAPE["global-batch"]) * degree // max(degree, num_ranks)
    # Two micro-batches where the share is even, so that gradients are accumulated.
    values["micro-batch"] = max(1, share // 2 if share % 2 == 0 else share)
    return values


def check_verify(values: Mapping[str, Value], num_ranks: int) -> None:
    """Refuse unknown checks, and a tensor-parallel degree that does not fit."""
    chosen = str(values["checks"])
    for name in () if chosen == ALL else chosen.split(","):
        if name not in CHECKS:
            raise ValueError(f"checks={chosen} names {name!r}; there are {', '.join(CHECKS)}")
    if degree := int(values["tensor-parallel"]):
        TrainingPlan.from_values(llama_values(num_ranks, degree), num_ranks)
