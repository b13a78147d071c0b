"""The compiler's input graph for a step of Llama-2-7B, compared with AWS's example.

Compares counts, not times: one rank's FLOPs, bytes sent, bytes of large results and peak live bytes
in both HLO graphs, with the same code (``tests/nxd/lowering.py``, ``tests/nxd/hlo.py``). Needs the
public source of neuronx-distributed, whose repository contains the example, and the environment of
``make test-nxd``; this module installs neither.
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.pairs import Comparison, MissingRequirement
from benchmarks.processes import ROOT
from tests.nxd import on_cpu
from tests.nxd.hlo import Cost, cost
from tests.nxd.kernels import flops_within

LAYERS = 4
_PARTS = ("micro-batch", "update")
_NXD_PYTHON = ROOT / "build" / "nxd" / "bin" / "python"
_EXAMPLE = Path("examples", "training", "llama")
_MIB = 1 << 20


Parts = dict[str, Cost]
"""Costs of a step's graphs: a micro-batch and the update."""


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure to compare between the two graphs, with its target ratio."""

    name: str
    target: float
    of: Callable[[Parts], float]


def _sum(of: Callable[[Cost], float]) -> Callable[[Parts], float]:
    return lambda parts: sum(of(part) for part in parts.values())


_FIGURES = (
    _Figure("graph-flops", 1.0, _sum(lambda part: part.flops)),
    _Figure("graph-sent", 1.0, _sum(lambda part: part.sent_bytes)),
    _Figure("graph-large", 0.9, _sum(lambda part: part.large_bytes)),
    _Figure("graph-peak", 1.0, lambda parts: max(part.peak_bytes for part in parts.values())),
)
NAMES = tuple(figure.name for figure in _FIGURES)


def comparisons(
    environment: Mapping[str, str], note: Callable[[str], None] = lambda text: None
) -> list[Comparison]:
    """Compare each figure, lowering the graphs only once."""

    @cache
    def product() -> Parts:
        return _lower(environment, "llama2-7b", f"--num-layers={LAYERS}", note=note)

    @cache
    def baseline() -> Parts:
        example = _source(environment).parent / _EXAMPLE
        if not (example / "modeling_llama_nxd.py").is_file():
            raise MissingRequirement(f"{example} does not contain AWS's example")
        arguments = ("--aws", str(example), f"--num_hidden_layers={LAYERS}")
        return _lower(environment, *arguments, note=note)

    def comparison(figure: _Figure) -> Comparison:
        return Comparison(
            name=figure.name,
            product=f"a micro-batch and the update of {LAYERS} layers of llama2-7b",
            baseline="the same in AWS's example: sequence parallelism, fused QKV, flash attention, "
            "selective recomputation",
            target=figure.target,
            measure_product=lambda: figure.of(product()),
            measure_baseline=lambda: figure.of(baseline()),
        )

    return [comparison(figure) for figure in _FIGURES]


def _source(environment: Mapping[str, str]) -> Path:
    source = environment.get(on_cpu.ENV_SOURCE)
    if not source:
        raise MissingRequirement(
            f"{on_cpu.ENV_SOURCE} is not set to the source of neuronx-distributed; "
            "make test-nxd explains how to get it"
        )
    return Path(source)


def _python() -> str:
    if _NXD_PYTHON.exists():
        return str(_NXD_PYTHON)
    if importlib.util.find_spec("torch_xla") is not None:
        return sys.executable
    raise MissingRequirement("torch_xla is not installed; make test-nxd sets up its environment")


def _lower(environment: Mapping[str, str], *arguments: str, note: Callable[[str], None]) -> Parts:
    """Lower the step's graphs in a separate process, and count their costs."""
    source = _source(environment)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = subprocess.run(
            [_python(), "-m", "tests.nxd.lowering", name, *arguments],
            cwd=ROOT,
            env={
                **on_cpu.process_environment(folder, lazy=True),
                on_cpu.ENV_SOURCE: str(source),
                # The packages may belong to another user.
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"lowering {' '.join(arguments)} failed:\n{done.stderr[-4000:]}")
        parts = {part: cost((folder / f"{part}.hlo").read_text()) for part in _PARTS}
        parts["micro-batch"].flops += flops_within(folder)
    for part, figures in parts.items():
        note(
            f"{arguments[0].removeprefix('--')}, {part}: {figures.flops / 1e9:,.0f} GFLOP, "
            f"{figures.sent_bytes / _MIB:,.0f} MiB sent by {sum(figures.counts.values())} "
            f"collectives, {figures.large_bytes / _MIB:,.0f} MiB of large results, "
            f"{figures.peak_bytes / _MIB:,.0f} MiB live at the peak"
        )
    return parts
