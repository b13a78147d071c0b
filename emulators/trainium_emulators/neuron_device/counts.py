"""Counts of what costs time on the device and nothing on a CPU, by the program's file and line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_NOT_THE_PROGRAM = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<frozen")
_MOST_LINES = 10


class DeviceCounts:
    """Counts of one process since its start, or since ``reset``."""

    def __init__(self) -> None:
        self._is_paused = False
        self.signatures: set[Hashable] = set()
        """Operators with shapes, types and numbers, each of which the device compiles once."""
        self.reset()

    def reset(self) -> None:
        """Start counting again; signatures stay known, as compiled operators stay cached."""
        self.operations: Counter[str] = Counter()
        self.new_signatures: Counter[str] = Counter()
        """Signatures seen for the first time, by operator and line."""
        self.copies: Counter[str] = Counter()
        """Copies by direction and line."""
        self.host_syncs: Counter[str] = Counter()
        """Calls after which the host has waited for the device, by line."""
        self.collectives: Counter[str] = Counter()
        self.graphs: list[int] = []
        """Operations of each compiled graph."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing: what a compiled graph does is not the program's."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def operation(self, name: str, signature: Hashable) -> None:
        """Count an operator that runs on the device."""
        if self._is_paused:
            return
        self.operations[name] += 1
        if signature not in self.signatures:
            self.signatures.add(signature)
            self.new_signatures[f"{name} at {program_line()}"] += 1

    def copy(self, direction: str) -> None:
        """Count a copy between host and device."""
        if not self._is_paused:
            self.copies[f"{direction} at {program_line()}"] += 1

    def host_sync(self, what: str) -> None:
        """Count a wait of the host for the device."""
        if not self._is_paused:
            self.host_syncs[f"{what} at {program_line()}"] += 1

    @property
    def graph_breaks(self) -> Counter[str]:
        """Dynamo's own count of reasons to leave a graph."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        return Counter() if dynamo is None else Counter(dynamo.counters["graph_break"])

    def lines(self) -> list[str]:
        """Format everything for a person."""
        found = [
            f"{self.operations.total()} operations, {len(self.signatures)} operator signatures, "
            f"{self.collectives.total()} collectives",
            f"{len(self.graphs)} compiled graphs of {sum(self.graphs)} operations, "
            f"{self.graph_breaks.total()} graph breaks",
        ]
        for title, counter in (
            ("new signatures", self.new_signatures),
            ("copies", self.copies),
            ("host syncs", self.host_syncs),
            ("graph breaks", self.graph_breaks),
        ):
            found.append(f"{counter.total()} {title}")
            found += [f"  {count} x {what}" for what, count in counter.most_common(_MOST_LINES)]
        return found


def program_line() -> str:
    """Locate the innermost frame that is neither PyTorch's nor this emulator's."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
        if frame.f_back is None:
            # Autograd runs a device's backward pass on a thread of its own.
            return "the backward pass"
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


COUNTS = DeviceCounts()
