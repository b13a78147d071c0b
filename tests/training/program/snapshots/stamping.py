"""A program that saves sets of files with a common stamp, in every usual way.

    python stamping.py FOLDER JOURNAL SEED NODE NUM_NODES ROUNDS PAUSES

Within a round it pauses briefly, between rounds for one of PAUSES. The journal gets one line per
round: stamp, longest gap between two of its writes, and the time.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from pathlib import Path

NAMES = ("a.bin", "b.bin", "c.bin")
_BYTES = 200_000


class Round:
    """One save, which measures its longest gap."""

    def __init__(self, stamp: int, chance: random.Random) -> None:
        self.stamp, self.longest_s = stamp, 0.0
        self._content = f"{stamp:08d}\n".encode() * (_BYTES // 9)
        self._chance = chance
        self._last_s: float | None = None

    def moment(self) -> None:
        time.sleep(self._chance.choice((0.0, 0.0, 0.01)))
        self.note()

    def between(self) -> None:
        """Pause while no file is open."""
        time.sleep(self._chance.choice((0.0, 0.1, 0.2)))
        self.note()

    def note(self) -> None:
        now_s = time.monotonic()
        if self._last_s is not None:
            self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s

    def write(self, path: Path) -> None:
        self.note()
        with path.open("wb") as file:
            for start in range(0, len(self._content), 50_000):
                file.write(self._content[start : start + 50_000])
                file.flush()
                self.moment()
        self.between()


def in_place(folder: Path, save: Round) -> None:
    for name in NAMES:
        save.write(folder / name)


def renamed(folder: Path, save: Round) -> None:
    for name in NAMES:
        save.write(folder / f"{name}.tmp")
        (folder / f"{name}.tmp").replace(folder / name)
        save.moment()


def rotated(folder: Path, save: Round) -> None:
    """Create a folder per save, retain the two newest, and link the last."""
    new = folder / f"step-{save.stamp:04d}"
    new.mkdir()
    for name in NAMES:
        save.write(new / name)
    link = folder / "last.new"
    link.symlink_to(new.name)
    link.replace(folder / "last")
    save.note()
    for old in sorted(folder.glob("step-*"))[:-2]:
        shutil.rmtree(old)
        save.moment()


def moved(folder: Path, save: Round) -> None:
    """Write a folder under another name, and replace the old one."""
    part = folder / "whole.part"
    part.mkdir()
    for name in NAMES:
        save.write(part / name)
    if (folder / "whole").exists():
        (folder / "whole").rename(folder / "whole.old")
        save.moment()
    part.rename(folder / "whole")
    save.moment()
    shutil.rmtree(folder / "whole.old", ignore_errors=True)
    save.note()


STYLES = (in_place, renamed, rotated, moved)


def sharded(folder: Path, save: Round, node: int, num_nodes: int, meeting: Path) -> None:
    """Save like torch.distributed.checkpoint: a shard per node, then metadata by the first."""
    place = folder / "sharded"
    place.mkdir(exist_ok=True)
    save.write(place / f"shard-{node}")
    meet(meeting, f"{save.stamp}-written", node, num_nodes)
    if node == 0:
        save.write(place / "metadata")
    meet(meeting, f"{save.stamp}-done", node, num_nodes)
    save.note()


def meet(meeting: Path, what: str, node: int, num_nodes: int) -> None:
    (meeting / f"{what}-{node}").touch()
    while not all((meeting / f"{what}-{other}").exists() for other in range(num_nodes)):
        time.sleep(0.005)


def main() -> None:
    folder, journal = Path(sys.argv[1]), Path(sys.argv[2])
    seed, node, num_nodes, rounds = map(int, sys.argv[3:7])
    pauses = [float(text) for text in sys.argv[7].split(",")]
    # All nodes draw the same styles and pauses.
    plan, chance = random.Random(seed), random.Random(seed * 1000 + node)
    for stamp in range(1, rounds + 1):
        save = Round(stamp, chance)
        style = plan.choice(STYLES)
        if num_nodes > 1:
            meet(journal.parent, f"{stamp}-begin", node, num_nodes)
            sharded(folder, save, node, num_nodes, journal.parent)
        else:
            style(folder, save)
        with journal.open("a") as file:
            file.write(f"{stamp} {save.longest_s:.3f}\n")
        time.sleep(plan.choice(pauses))
    print("saved", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
