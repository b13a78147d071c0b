"""What a step costs, counted in its HLO text: matrix products, collectives and what they send."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
"""Of an element; 4 of any other type."""
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\w+\[[\d,]*\]\S*) ([\w\-]+)\((.*)")


@dataclass(slots=True)
class Cost:
    """Of one rank's graph."""

    flops: int = 0
    """Of matrix products."""
    counts: Counter[str] = field(default_factory=Counter)
    """Collectives by name."""
    sent_bytes: float = 0.0
    """By this rank, were each collective a ring: (n - 1)/n of the whole, twice in an all-reduce."""
    reduced: list[str] = field(default_factory=list)
    """Type, shape and ranks of every all-reduce, in order."""


def cost(text: str) -> Cost:
    """Read a module's text, as ``_get_xla_tensors_hlo`` gives it."""
    found, shapes = Cost(), dict[str, list[int]]()
    for line in text.splitlines():
        if (match := _LINE.match(line)) is None:
            continue
        name, result, operation, rest = match.groups()
        if (array := _ARRAY.search(result)) is not None:
            shapes[name] = _dims(array[2])
        if operation == "dot":
            left = shapes[re.findall(r"%([\w.\-]+)", rest)[0]]
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line)
            assert contracted is not None, line
            inner = math.prod(left[dim] for dim in _dims(contracted[1]))
            found.flops += 2 * math.prod(shapes[name]) * inner
        if operation in COLLECTIVES:
            groups = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
            ranks = len(_dims(groups[1])) if groups else 1
            found.counts[operation] += 1
            whole = _size(result) * (ranks if operation == "reduce-scatter" else 1)
            times = 2 if operation == "all-reduce" else 1
            found.sent_bytes += times * whole * (ranks - 1) / ranks
            if operation == "all-reduce":
                arrays = " ".join(f"{kind}[{dims}]" for kind, dims in _ARRAY.findall(result))
                found.reduced.append(f"{arrays} over {ranks}")
    return found


def _dims(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _size(result: str) -> int:
    """Bytes; of a tuple the sum."""
    arrays = _ARRAY.findall(result)
    return sum(_BYTES.get(kind, 4) * math.prod(_dims(dims)) for kind, dims in arrays)
