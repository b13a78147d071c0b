"""What the processes of a program's node tell its launcher, through files of the scratch folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from training.core.files import write_whole
from trainium_catalogue.typed_json import read_json

PREPARATION = "training.program.preparation"
"""The module that makes a node ready."""
PREPARATION_FILE = "preparation.json"
READY = "ready"
"""The last step, at which the main node's process holds the run's name."""
OUTPUT = "training.program.output"
"""The module that passes the program's output on."""
OUTPUT_FILE = "output.json"
RESULTS = "training.program.results"
"""The module that uploads the program's output folder."""
RESULTS_MOVED_FILE = "results-moved"
"""Touched whenever bytes of the output folder have been sent."""
RESULTS_FAILURE_FILE = "results-failure"
"""The reason why they could not be."""
UNKEPT_FILE = "unkept"
"""What the program has written that is not kept, for the run's status."""
LOSSES_FILE = "losses.jsonl"
GO_FILE = "go"
"""Appears when every node is prepared; the workers wait for it."""
PROGRAM_FILE = "program"
"""What the workers run: words that NUL separates."""
PROGRESS_FILE = "progress"
"""The file that a silent program may touch."""


class ScratchDocument:
    """A dataclass that one process writes to a file of the scratch folder, and another reads."""

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
    """What the preparation tells the launcher."""

    FILE: ClassVar[str] = PREPARATION_FILE

    step: str
    done: bool = False
    code: int | None = None
    """Exit code of a failure."""
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class OutputReport(ScratchDocument):
    """What a program's output has shown so far."""

    FILE: ClassVar[str] = OUTPUT_FILE

    last_line: str = ""
    last_line_at: float | None = None
    """Seconds since 1970."""
    lines: int = 0
    bytes: int = 0
    """A compiler shows that it goes on by dots, without a line's end."""
    step: int | None = None
    loss: float | None = None
    steps_per_second: float | None = None

    @classmethod
    def read(cls, scratch: Path) -> OutputReport:
        """Read the newest report, whose loss need not be finite; an empty one before the first."""
        try:
            return cls(**json.loads((scratch / cls.FILE).read_bytes()))
        except FileNotFoundError:
            return cls()
