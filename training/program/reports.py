"""What the processes of a program's node tell its launcher, through files of the scratch folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from training.core.files import write_whole

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
GO_FILE = "go"
"""Appears when every node is prepared; the workers wait for it."""
PROGRAM_FILE = "program"
"""What the workers run: words that NUL separates."""
PROGRESS_FILE = "progress"
"""The file that a silent program may touch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What the preparation tells the launcher, in a file of the scratch folder."""

    step: str
    done: bool = False
    code: int | None = None
    """Exit code of a failure."""
    reason: str = ""

    def write(self, scratch: Path) -> None:
        """Replace the report."""
        write_whole(scratch / PREPARATION_FILE, json.dumps(asdict(self)).encode())

    @staticmethod
    def read(scratch: Path) -> Preparation | None:
        """Read the newest report, if there is one."""
        try:
            return Preparation(**json.loads((scratch / PREPARATION_FILE).read_bytes()))
        except FileNotFoundError:
            return None


@dataclass(slots=True, kw_only=True)
class Noted:
    """What a program's output has shown so far."""

    last_line: str = ""
    last_line_at: float | None = None
    """Seconds since 1970."""
    lines: int = 0
    bytes: int = 0
    """A compiler shows that it goes on by dots, without a line's end."""
    step: int | None = None
    loss: float | None = None
    steps_per_second: float | None = None

    @staticmethod
    def read(scratch: Path) -> Noted:
        """Read the newest note of this node's output."""
        try:
            return Noted(**json.loads((scratch / OUTPUT_FILE).read_bytes()))
        except FileNotFoundError:
            return Noted()
