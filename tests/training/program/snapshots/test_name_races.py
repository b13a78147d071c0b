"""Two jobs under one name, started by independent clients, lose no snapshot.

The lock, the snapshots and their deletion are the real ones, in threads instead of processes, with
shortened delays. Its number reproduces a race; the interleaving of threads depends on the machine.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import scaled
from tests.training.checkpoint.faulty import faulty_proxy
from tests.training.s3_server import REGION
from training.program.snapshots.manifest import (
    JobSnapshot,
    object_key,
    snapshot_key,
    snapshot_numbers,
)
from training.program.snapshots.process import (
    FinalSnapshotRequest,
    SnapshotSettings,
    open_snapshots,
)
from training.program.snapshots.restore import restore
from training.program.snapshots.writer import SnapshotWriter
from training.storage import Objects, StorageAccess
from training.storage.run_lock import RunLock, RunLocked, RunLost

_HEARTBEAT_S = 0.5
_KEEP = 2
_RUN = "raced"


class Dead(BaseException):
    """Raised to end the threads of a killed job."""


@dataclass
class Gate:
    """Gate of a job's storage calls: open, shut while the job is frozen, or dead."""

    is_open: threading.Event = field(default_factory=threading.Event)
    is_dead: bool = False
    was_shut: bool = False

    def __post_init__(self) -> None:
        self.is_open.set()

    def shut(self) -> None:
        self.was_shut = True
        self.is_open.clear()

    def die(self) -> None:
        self.is_dead = True
        self.is_open.set()

    def __call__(self) -> None:
        self.is_open.wait()
        if self.is_dead:
            raise Dead


@dataclass(frozen=True)
class Gated:
    """Storage behind a gate."""

    inner: Any
    gate: Gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "at":
            return lambda prefix: Gated(found(prefix), self.gate)
        if not callable(found):
            return found

        def call(*words: Any, **named: Any) -> Any:
            self.gate()
            return found(*words, **named)

        return call


@dataclass(frozen=True)
class GatedAccess:
    """Access to the bucket for one job."""

    access: StorageAccess
    gate: Gate

    @property
    def root(self) -> str:
        return self.access.root

    def open_root(self, **named: Any) -> Any:
        return self.open(self.root, **named)

    def open(self, uri: str, **named: Any) -> Any:
        return Gated(self.access.open(uri, **named), self.gate)


@dataclass
class Race:
    """A run's name, and the jobs' findings and promises under it."""

    access: StorageAccess
    folder: Path
    violations: list[str] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    working: dict[str, Gate] = field(default_factory=dict)
    kept: int = 0
    """Step of the last snapshot of a job that ended well."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def snapshots(self) -> Objects:
        return open_snapshots(self.access.open(self.access.root), _RUN)

    def settings(self, job_id: str, access: Any) -> SnapshotSettings:
        scratch = self.folder / job_id
        scratch.mkdir()
        return SnapshotSettings(
            storage=access,
            run=_RUN,
            job_id=job_id,
            attempt=1,
            node=0,
            main=0,
            num_nodes=1,
            scratch=scratch,
            checkpoints=scratch / "kept",
            cache=scratch / "cache",
            every_s=0.2,
            keep=_KEEP,
            mib_per_s=1000,
            limit_gib=1,
        )

    def note(self, job_id: str, text: str) -> None:
        with self.lock:
            self.violations.append(f"{job_id}: {text}")

    def begins(self, job_id: str, gate: Gate) -> None:
        """Record the working job.

        Of two concurrent jobs one must have been frozen, undetected by the other, and finds out at
        its next heartbeat.
        """
        with self.lock:
            for other, its in self.working.items():
                if not its.was_shut and not its.is_dead:
                    self.violations.append(f"{job_id} works beside {other}")
            self.working[job_id] = gate

    def ends(self, job_id: str, how: str) -> None:
        with self.lock:
            self.working.pop(job_id, None)
            self.endings.append(how)


def step_of(folder: Path) -> int:
    try:
        return int(json.loads((folder / "step.json").read_text())["step"])
    except FileNotFoundError:
        return 0


def save(folder: Path, step: int) -> None:
    """Save a step like a program that retains its last three checkpoints."""
    (folder / f"{step}.bin").write_bytes(step.to_bytes(4) * 64)
    (folder / f"{step - 3}.bin").unlink(missing_ok=True)
    part = folder / ".part"
    part.write_text(json.dumps({"step": step}))
    part.replace(folder / "step.json")


def work(race: Race, job_id: str, rng: random.Random, how: str) -> None:
    """Run a job; ``how`` states whether it succeeds, is killed, or freezes for a while."""
    gate = Gate()
    settings = race.settings(job_id, GatedAccess(race.access, gate))
    objects = open_snapshots(settings.storage.open(settings.storage.root), _RUN)
    lock = RunLock(objects, job_id, 1, run=_RUN, heartbeat_s=_HEARTBEAT_S)
    ended = "?"
    try:
        try:
            lock.acquire()
        except RunLocked:
            ended = "refused"
            return
        race.begins(job_id, gate)
        newest, promised = max(snapshot_numbers(race.snapshots), default=None), race.kept
        found = restore(objects, settings)
        if newest is not None and (found is None or found.number < newest):
            race.note(job_id, f"restored {found and found.number} instead of snapshot {newest}")
        step = step_of(settings.checkpoints)
        if step < promised:
            race.note(job_id, f"begins at step {step}, and {promised} was kept")
        writer = threading.Thread(target=SnapshotWriter(settings).run, daemon=True)
        writer.start()
        freezes_at = rng.randrange(4, 12) if how == "freezes" else -1
        for number in range(rng.randrange(8, 20)):
            time.sleep(rng.uniform(0.02, 0.25))
            if number == freezes_at:
                gate.shut()
                time.sleep(rng.uniform(1, 8) * _HEARTBEAT_S)
                gate.is_open.set()
            lock.check()
            step += 1
            save(settings.checkpoints, step)
        if how == "is killed":
            ended = how
            return
        FinalSnapshotRequest().write(settings.scratch)
        writer.join(scaled(20))
        report = json.loads((settings.scratch / "snapshots.json").read_text())
        lock.check()
        if writer.is_alive() or report["failure"]:
            race.note(job_id, f"no last snapshot: {report['failure']}")
        with race.lock:
            race.kept = max(race.kept, step)
        ended = "ended"
    except RunLost:
        ended = "lost"
    finally:
        if ended == "ended":
            race.ends(job_id, ended)
            lock.release()
            gate.die()
        else:
            gate.die()
            race.ends(job_id, ended)
            # The thread that scans the folder calls no storage.
            FinalSnapshotRequest(take=False).write(settings.scratch)


def judge(race: Race) -> None:
    """Check that all offered content exists, and that no persisted file was lost."""
    objects = race.snapshots
    sizes = {info.key: info.size for info in objects.list("")}
    numbers = snapshot_numbers(objects)
    for number in numbers:
        snapshot = JobSnapshot.decode(objects.get(snapshot_key(number)))
        lost = [e.path for e in snapshot.files if sizes.get(object_key(e.sha256)) != e.bytes]
        if lost:
            race.note("the bucket", f"snapshot {number} of {numbers} lacks {lost}")
    reader = race.settings("reader", race.access)
    restore(objects, reader)
    if (step := step_of(reader.checkpoints)) < race.kept:
        race.note("the bucket", f"has step {step}, and {race.kept} was kept")


def run_race(number: int, access: StorageAccess, folder: Path) -> Race:
    rng = random.Random(number)
    race = Race(replace(access, root=f"{access.root}/{number}"), folder)
    hows = [rng.choice(["ends", "is killed", "freezes"]) for _ in range(3)]
    threads = [
        threading.Thread(target=work, args=(race, f"job-{n}", random.Random(rng.random()), how))
        for n, how in enumerate(hows)
    ]
    first, second, third = threads
    first.start()
    time.sleep(rng.choice([0, rng.uniform(0, 0.05), rng.uniform(0, 3)]))
    second.start()
    first.join()
    second.join()
    third.start()
    third.join()
    judge(race)
    return race


@pytest.fixture
def access(snapshots_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageAccess]:
    """Return the bucket of all races; S3's conditional writes are atomic, moto's are not."""
    hook = threading.excepthook
    monkeypatch.setattr(
        threading, "excepthook", lambda args: None if args.exc_type is Dead else hook(args)
    )
    with faulty_proxy(snapshots_endpoint) as proxy:
        root = "s3://snapshots-bucket/races"
        yield StorageAccess(root=root, region=REGION, endpoint_url=proxy.url)


def run_races(numbers: range, access: StorageAccess, folder: Path) -> None:
    endings: Counter[str] = Counter()
    violations: dict[int, Any] = {}
    for number in numbers:
        place = folder / str(number)
        place.mkdir()
        race = run_race(number, access, place)
        endings.update(race.endings)
        if race.violations or "?" in race.endings:
            violations[number] = race.violations, race.endings
    print(f"races {numbers}: {dict(endings)}")
    assert not violations


# test_run_name.py has one job take another's name, and test_two_jobs.py step by step.
@pytest.mark.full
@pytest.mark.timeout(3600)
def test_two_jobs_of_one_name_lose_no_snapshot(access: StorageAccess, tmp_path: Path) -> None:
    run_races(range(40), access, tmp_path)
