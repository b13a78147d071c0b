"""The graph that the compiler is given for a step of Llama-2-7B, beside that of AWS's example.

Not a time: what one rank multiplies, sends, writes in large results and has alive at once, counted
in the HLO of both by the same code (``tests/nxd/lowering.py``, ``tests/nxd/hlo.py``). Needs the
public source of neuronx-distributed, whose repository holds the example too, and the environment
of ``make test-nxd``; neither is installed for this.
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
"""Of a step: a micro-batch and the update, which are graphs of their own."""


@dataclass(frozen=True, slots=True)
class _Figure:
    """One number of both graphs, and what its ratio may be."""

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
    environment: Mapping[str, str], say: Callable[[str], None] = lambda text: None
) -> list[Comparison]:
    """Compare each figure; the graphs are lowered once."""

    @cache
    def ours() -> Parts:
        return _lowered(environment, "llama2-7b", f"--num-layers={LAYERS}", say=say)

    @cache
    def theirs() -> Parts:
        example = _source(environment).parent / _EXAMPLE
        if not (example / "modeling_llama_nxd.py").is_file():
            raise MissingRequirement(f"{example} holds no example to compare with")
        words = ("--aws", str(example), f"--num_hidden_layers={LAYERS}")
        return _lowered(environment, *words, say=say)

    def comparison(figure: _Figure) -> Comparison:
        return Comparison(
            name=figure.name,
            product=f"a micro-batch and the update of {LAYERS} layers of llama2-7b",
            baseline="the same of AWS's example: sequence parallel, fused, flash, selective",
            target=figure.target,
            measure_product=lambda: figure.of(ours()),
            measure_baseline=lambda: figure.of(theirs()),
        )

    return [comparison(figure) for figure in _FIGURES]


def _source(environment: Mapping[str, str]) -> Path:
    source = environment.get(on_cpu.ENV_SOURCE)
    if not source:
        raise MissingRequirement(
            f"{on_cpu.ENV_SOURCE} does not say where the source of neuronx-distributed is; "
            "make test-nxd says how to get it"
        )
    return Path(source)


def _python() -> str:
    if _NXD_PYTHON.exists():
        return str(_NXD_PYTHON)
    if importlib.util.find_spec("torch_xla") is not None:
        return sys.executable
    raise MissingRequirement("torch_xla is not installed; make test-nxd sets its environment up")


def _lowered(environment: Mapping[str, str], *words: str, say: Callable[[str], None]) -> Parts:
    """Lower in a process of its own, and count."""
    source = _source(environment)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = subprocess.run(
            [_python(), "-m", "tests.nxd.lowering", name, *words],
            cwd=ROOT,
            env={
                **on_cpu.environment_of_a_process(folder, lazy=True),
                on_cpu.ENV_SOURCE: str(source),
                # Left where it is: those of another user's packages stay as they are.
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} was not lowered:\n{done.stderr[-4000:]}")
        found = {part: cost((folder / f"{part}.hlo").read_text()) for part in _PARTS}
        found["micro-batch"].flops += flops_within(folder)
    for part, figures in found.items():
        say(
            f"{words[0].removeprefix('--')}, {part}: {figures.flops / 1e9:,.0f} GFLOP, "
            f"{figures.sent_bytes / _MIB:,.0f} MiB sent by {sum(figures.counts.values())} "
            f"collectives, {figures.large_bytes / _MIB:,.0f} MiB of large results, "
            f"{figures.peak_bytes / _MIB:,.0f} MiB alive at most"
        )
    return found
