"""Reports from a program's processes to the launcher, through files in the scratch folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from training.core.files import write_whole
from trainium_catalogue.typed_json import read_json

PREPARATION = "training.program.preparation"
"""The module that prepares a node."""
PREPARATION_FILE = "preparation.json"
READY = "ready"
"""The last step, during which the main node's process holds the run's lock."""
OUTPUT = "training.program.output"
"""The module that forwards the program's output."""
OUTPUT_FILE = "output.json"
RESULTS = "training.program.results"
"""The module that uploads the program's output folder."""
RESULTS_MOVED_FILE = "results-moved"
"""Touched whenever bytes of the output folder have been uploaded."""
RESULTS_FAILURE_FILE = "results-failure"
"""The reason for a failed upload."""
UNPERSISTED_FILE = "unpersisted"
"""Description of the program's unpersisted files, for the run's status."""
LOSSES_FILE = "losses.jsonl"
GO_FILE = "go"
"""Created once every node is prepared; the workers wait for it."""
PROGRAM_FILE = "program"
"""The program's folders and command for the workers, as NUL-separated words."""
PROGRESS_FILE = "progress"
"""The file that a silent program may touch to show progress."""


class ScratchDocument:
    """A dataclass that processes exchange through a file in the scratch folder."""

    __slots__ = ()
    FILE: ClassVar[str]

    def write(self, scratch: Path) -> None:
        """Replace the file."""
        document: Any = self
        write_whole(scratch / self.FILE, json.dumps(asdict(document)).encode())

    @classmethod
    def find(cls, scratch: Path) -> Self | None:
        """Read the file, if there is one."""
        try:
            return read_json((scratch / cls.FILE).read_bytes(), cls)
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation(ScratchDocument):
    """The preparation's report to the launcher."""

    FILE: ClassVar[str] = PREPARATION_FILE

    step: str
    done: bool = False
    code: int | None = None
    """Exit code of a failure."""
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class OutputReport(ScratchDocument):
    """Progress extracted from a program's output so far."""

    FILE: ClassVar[str] = OUTPUT_FILE

    last_line: str = ""
    last_line_at: float | None = None
    """Seconds since the epoch."""
    lines: int = 0
    bytes: int = 0
    """Bytes of output, counted because a compiler prints dots without newlines."""
    step: int | None = None
    loss: float | None = None
    steps_per_second: float | None = None

    @classmethod
    def read(cls, scratch: Path) -> OutputReport:
        """Read the latest report, whose loss may be infinite or NaN; empty if there is none."""
        try:
            return cls(**json.loads((scratch / cls.FILE).read_bytes()))
        except FileNotFoundError:
            return cls()
