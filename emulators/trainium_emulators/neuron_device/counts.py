"""Counts operations that cost time on the device but not on a CPU, by the program's source line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainium_emulators.neuron_device import rules

_NOT_PROGRAM = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<frozen")
_MAX_LINES = 10


class DeviceCounts:
    """Counts of one process since its start, or since ``reset``."""

    def __init__(self) -> None:
        self._is_paused = False
        self.signatures: set[Hashable] = set()
        """Operators with shapes, dtypes and scalar values; the device compiles each once."""
        self.reset()

    def reset(self) -> None:
        """Reset the counts, but keep known signatures, as compiled operators stay cached."""
        self.operations: Counter[str] = Counter()
        self.new_signatures: Counter[str] = Counter()
        """Signatures seen for the first time, by operator and line."""
        self.cpu_fallbacks: Counter[str] = Counter()
        """Operators that fall back to the CPU."""
        self.copies: Counter[str] = Counter()
        """Copies by direction and line."""
        self.host_syncs: Counter[str] = Counter()
        """Calls that make the host wait for the device, by line."""
        self.collectives: Counter[str] = Counter()
        self.graphs: list[int] = []
        """Operations of each compiled graph."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing: operations of a compiled graph are not the program's own."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def operation(self, name: str, signature: Hashable) -> None:
        """Count an operator dispatched to the device, even if it falls back to the CPU."""
        if self._is_paused:
            return
        self.operations[name] += 1
        if rules.runs_on_cpu(name):
            self.cpu_fallbacks[name] += 1
        if signature not in self.signatures:
            self.signatures.add(signature)
            self.new_signatures[f"{name} at {program_line()}"] += 1

    def copy(self, direction: str) -> None:
        """Count a copy between host and device."""
        if not self._is_paused:
            self.copies[f"{direction} at {program_line()}"] += 1

    def host_sync(self, what: str) -> None:
        """Count an operation that makes the host wait for the device."""
        if not self._is_paused:
            self.host_syncs[f"{what} at {program_line()}"] += 1

    @property
    def graph_breaks(self) -> Counter[str]:
        """Dynamo's own count of graph breaks, by reason."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        return Counter() if dynamo is None else Counter(dynamo.counters["graph_break"])

    def lines(self) -> list[str]:
        """Format all counts for a user."""
        lines = [
            f"operations: {self.operations.total()}, operator signatures: {len(self.signatures)}, "
            f"collectives: {self.collectives.total()}",
            f"compiled graphs: {len(self.graphs)}, operations in them: {sum(self.graphs)}",
        ]
        for title, counter in (
            ("new signatures", self.new_signatures),
            ("CPU fallbacks", self.cpu_fallbacks),
            ("copies", self.copies),
            ("host syncs", self.host_syncs),
            ("graph breaks", self.graph_breaks),
        ):
            lines.append(f"{title}: {counter.total()}")
            lines += [f"  {count} x {what}" for what, count in counter.most_common(_MAX_LINES)]
        return lines


def program_line() -> str:
    """Locate the innermost frame that is neither PyTorch's nor this emulator's."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_NOT_PROGRAM):
        if frame.f_back is None:
            # Autograd runs the backward pass in a thread per device.
            return "the backward pass"
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


COUNTS = DeviceCounts()
