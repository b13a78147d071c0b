"""The parameters of ``verify``, its checks, and the Llama that it trains."""

import math
from collections.abc import Mapping

from trainium_catalogue.models.presets import LLAMA_PRESETS, find_model
from trainium_catalogue.parameters.parameter import Parameter, Value
from trainium_catalogue.parameters.plan import TrainingPlan
from trainium_catalogue.parameters.training import pretrain_parameters, training_parameters

CHECKS_OF_THE_LLAMA = ("gradients", "parity", "resume", "graphs")
FAMILIES = {"Llama 3.2": "llama3-tiny", "Qwen3": "qwen3-tiny"}
"""Models of the check ``families``, split like the Llama."""
CHECKS = ("sums", *CHECKS_OF_THE_LLAMA, "families", "attention", "data-parallel", "cache")
"""All checks, in order: some build on others."""
ALL = "all"

SHAPE: dict[str, Value] = {
    # A degree of 8 divides heads, key-value heads, vocabulary and inner size.
    "vocab-size": 512,
    "hidden-size": 128,
    "intermediate-size": 256,
    "num-heads": 16,
    "num-kv-heads": 8,
    "seq-len": 32,
    # Divides evenly among 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 or 96 data-parallel ranks.
    "global-batch": 96,
    "max-steps": 20,
    "warmup-steps": 4,
    # With larger rates bf16 and fp32 diverge: at step 20 losses in bf16 differ by 5% with 1e-2,
    # by at most 0.07% with this rate.
    "lr": 2e-3,
    # Clips the first steps, but not all later ones.
    "max-grad-norm": 0.5,
    "beta2": 0.95,
    # The checks are about results; the log lists operators missing from TorchNeuron.
    "cpu-fallback": True,
}
"""A smaller and faster llama-tiny."""
HEAD_DIM = 16
"""Head size of the models of ``FAMILIES``: twice hidden-size / num-heads."""


VERIFY_PARAMETERS = (
    Parameter(
        name="checks",
        default="all",
        pattern=r"all|[a-z-]+(,[a-z-]+)*",
        pattern_help="all, or names of checks separated by commas",
        help=f"checks to run: all, or some of {', '.join(CHECKS)}",
    ),
    Parameter(
        name="tensor-parallel",
        default=0,
        minimum=0,
        help="tensor-parallel degree of the tiny decoders (0: llama2-7b's, on TorchNeuron 4, or "
        "the largest that the job's ranks allow)",
    ),
)


def default_degree(num_ranks: int) -> int:
    """Return llama2-7b's tensor-parallel degree, reduced to divide ``num_ranks``."""
    return math.gcd(LLAMA_PRESETS["llama2-7b"].tensor_parallel, num_ranks)


def llama_values(num_ranks: int, tensor_parallel: int = 0) -> dict[str, Value]:
    """Return the Llama's parameters on ``num_ranks``; ``tensor_parallel`` 0: the default."""
    preset = LLAMA_PRESETS["llama-tiny"]
    values = {p.name: p.default for p in training_parameters(preset)}
    return _adjust(values, num_ranks, tensor_parallel)


def family_values(model: str, num_ranks: int, tensor_parallel: int = 0) -> dict[str, Value]:
    """Return the parameters of a decoder of ``models.MODELS``, with the Llama's sizes."""
    values = {p.name: p.default for p in pretrain_parameters(find_model(model))}
    return _adjust({**values, "head-dim": HEAD_DIM}, num_ranks, tensor_parallel)


def _adjust(values: dict[str, Value], num_ranks: int, tensor_parallel: int) -> dict[str, Value]:
    values |= SHAPE
    degree = tensor_parallel or default_degree(num_ranks)
    values["tensor-parallel"] = degree
    share = int(SHAPE["global-batch"]) * degree // max(degree, num_ranks)
    # If the share is even, use two micro-batches, so that gradients are accumulated.
    values["micro-batch"] = max(1, share // 2 if share % 2 == 0 else share)
    return values


def check_verify(values: Mapping[str, Value], num_ranks: int) -> None:
    """Refuse unknown checks, and a tensor-parallel degree that does not fit."""
    chosen = str(values["checks"])
    for name in () if chosen == ALL else chosen.split(","):
        if name not in CHECKS:
            raise ValueError(f"checks={chosen} names {name!r}; known checks: {', '.join(CHECKS)}")
    if degree := int(values["tensor-parallel"]):
        TrainingPlan.from_values(llama_values(num_ranks, degree), num_ranks)
