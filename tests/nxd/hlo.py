"""Cost of a step, counted in its HLO text.

Matrix products, collectives and their bytes, large results, and peak live bytes. The text is an
unoptimized module in torch_xla's recording order; a compiler's fusion and reordering are unknown.
Counts are meaningful only relative to others of the same kind.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
"""Of an element; 4 of any other type."""
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
LARGE = 32 << 20
"""Bytes from which a result is large: more than a core of trn1 or trn2 holds beside its memory."""
_NO_RESULTS = ("parameter", "tuple", "get-tuple-element", "reshape", "bitcast", "opt-barrier")
"""They name what is there already."""
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\w+\[[\d,]*\]\S*) ([\w\-]+)\((.*)")
_NAME = re.compile(r"%([\w.\-]+)")
_INDEX = re.compile(r"\), index=(\d+)")


@dataclass(slots=True)
class Cost:
    """Counts of one rank's graph."""

    flops: int = 0
    """Of matrix products."""
    counts: Counter[str] = field(default_factory=Counter)
    """Collectives by name."""
    sent_bytes: float = 0.0
    """By this rank, were each collective a ring: (n - 1)/n of the whole, twice in an all-reduce."""
    reduced: list[str] = field(default_factory=list)
    """Type, shape and ranks of every all-reduce, in order."""
    large: Counter[str] = field(default_factory=Counter)
    """Operation, type and shape of results of ``LARGE`` bytes and more."""
    large_bytes: int = 0
    """Of these."""
    peak_bytes: int = 0
    """The most that is alive at once, beside what the graph is given and what it updates."""


class _Operation(NamedTuple):
    name: str
    result: str
    """Type and shape; of a tuple all."""
    kind: str
    operands: list[str]
    line: str

    @property
    def bytes(self) -> int:
        return sum(
            _BYTES.get(kind, 4) * math.prod(_dims(dims))
            for kind, dims in _ARRAY.findall(self.result)
        )

    @property
    def dims(self) -> list[int]:
        found = _ARRAY.search(self.result)
        return _dims(found[2]) if found else []


def cost(text: str) -> Cost:
    """Parse a module's text, as returned by ``_get_xla_tensors_hlo``."""
    found = Cost()
    dims = dict[str, list[int]]()
    for operation in _operations(text):
        dims[operation.name] = operation.dims
        if operation.kind == "dot":
            found.flops += _flops(operation, dims[operation.operands[0]])
        if operation.kind in COLLECTIVES:
            _add_collective(found, operation)
        if operation.kind not in _NO_RESULTS and operation.bytes >= LARGE:
            kind, shape = _ARRAY.findall(operation.result)[0]
            found.large[f"{operation.kind} {kind}[{shape}]"] += 1
            found.large_bytes += operation.bytes
    found.peak_bytes = _peak([*_operations(text, entry=True)])
    return found


def _operations(text: str, *, entry: bool = False) -> Iterator[_Operation]:
    """Yield all instructions, or only the entry's: others are element functions."""
    within = not entry
    for line in text.splitlines():
        within = within or line.startswith("ENTRY")
        if within and (match := _LINE.match(line)) is not None:
            name, result, kind, rest = match.groups()
            yield _Operation(name, result, kind, _NAME.findall(_arguments(rest)), line)


def _arguments(rest: str) -> str:
    """Return the operands in parentheses; attributes after them name computations."""
    depth = 1
    for place, character in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return rest[:place]
    return rest


def _flops(dot: _Operation, left: list[int]) -> int:
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", dot.line)
    assert contracted is not None, dot.line
    return 2 * math.prod(dot.dims) * math.prod(left[dim] for dim in _dims(contracted[1]))


def _add_collective(found: Cost, operation: _Operation) -> None:
    groups = re.search(r"replica_groups=\{\{([\d,]*)\}", operation.line)
    ranks = len(_dims(groups[1])) if groups else 1
    found.counts[operation.kind] += 1
    whole = operation.bytes * (ranks if operation.kind == "reduce-scatter" else 1)
    times = 2 if operation.kind == "all-reduce" else 1
    found.sent_bytes += times * whole * (ranks - 1) / ranks
    if operation.kind == "all-reduce":
        arrays = " ".join(f"{kind}[{dims}]" for kind, dims in _ARRAY.findall(operation.result))
        found.reduced.append(f"{arrays} over {ranks}")


def _peak(operations: list[_Operation]) -> int:
    """Return peak live bytes: a result lives from its operation to its last reader."""
    of = {operation.name: operation for operation in operations}
    behind = dict[str, list[str]]()
    """By operation: the results that it names, itself where it makes one."""
    given = set[str]()
    last = dict[str, int]()
    for place, operation in enumerate(operations):
        sources = [behind[name] for name in operation.operands if name in behind]
        read = [name for names in sources for name in names]
        last.update((name, place) for name in read)
        match operation.kind:
            case "parameter":
                given.add(operation.name)
                behind[operation.name] = [operation.name]
            case "get-tuple-element" if of[operation.operands[0]].kind == "tuple":
                index = int(_INDEX.findall(operation.line)[-1])
                behind[operation.name] = sources[0][index : index + 1]
            case kind if kind in _NO_RESULTS:
                behind[operation.name] = read
            case _:
                behind[operation.name] = [operation.name]
    root = operations[-1]
    last.update((name, len(operations)) for name in behind[root.name])
    # A result that replaces an argument, such as a gradient sum, needs no new memory.
    updated = {
        name
        for name in behind[root.name]
        if any(o in given and of[o].result == of[name].result for o in of[name].operands)
    }
    ends = dict[int, int]()
    alive = most = 0
    for place, operation in enumerate(operations):
        if behind[operation.name] == [operation.name] and operation.name not in given | updated:
            alive += operation.bytes
            until = last.get(operation.name, place)
            ends[until] = ends.get(until, 0) + operation.bytes
        most = max(most, alive)
        alive -= ends.pop(place, 0)
    return most


def _dims(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
