"""Nodes whose folders are persisted by real processes, and written to by others."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.limits import scaled
from training.core.progress import ENV_SCRATCH
from training.launcher.courier import Courier
from training.launcher.messages import parse_message
from training.program.snapshots.manifest import (
    JobSnapshot,
    Root,
    SnapshotEntry,
    object_key,
    snapshot_key,
    snapshot_numbers,
)
from training.program.snapshots.process import (
    SnapshotProcess,
    SnapshotReport,
    SnapshotSettings,
    open_snapshots,
)
from training.program.snapshots.restore import restore
from training.storage import Objects, StorageAccess

ROOT = Path(__file__).resolve().parents[4]


def wait_until(condition: Callable[[], object], within_s: float = 20, what: str = "") -> None:
    """Wait for a condition that must come true."""
    deadline = time.monotonic() + scaled(within_s)
    while not condition():
        assert time.monotonic() < deadline, what or "it did not happen in time"
        time.sleep(0.02)


@dataclass
class Node:
    """One node of one attempt: its folders, its snapshots and its program."""

    settings: SnapshotSettings
    courier: Courier
    process: SnapshotProcess | None = None
    programs: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.settings.checkpoints

    def start_snapshots(self) -> SnapshotProcess:
        self.process = SnapshotProcess(self.settings, {**os.environ, "PYTHONPATH": _PATH})
        return self.process

    def run(self, code: str, *args: object) -> subprocess.Popen[str]:
        """Start a program in the launch, in the persisted folder."""
        program = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": _PATH, ENV_SCRATCH: str(self.settings.scratch)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.programs.append(program)
        return program

    def write(self, path: str, content: str | bytes) -> None:
        """Save a file in the program's checkpoint folder."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def restore(self, snapshots: Objects) -> JobSnapshot | None:
        return restore(snapshots, self.settings)

    def report(self) -> SnapshotReport:
        return SnapshotReport.read(self.settings.scratch)

    def end(self, *, within_s: float | None = None, take: bool = True, clean: bool = True) -> None:
        """Request the final snapshot and return at once."""
        assert self.process is not None
        self.process.final(take=take, clean=clean, within_s=within_s)

    def wait(self) -> SnapshotReport:
        snapshots = self.process
        assert snapshots is not None
        wait_until(lambda: snapshots.done, 60, "the process did not end")
        return self.report()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
        for program in self.programs:
            program.kill()
            program.wait()


_PATH = f"{ROOT}:{ROOT / 'constructs'}"


@dataclass
class Job:
    """A run's successive attempts, and its location in the bucket."""

    folder: Path
    storage: StorageAccess
    nodes: list[Node] = field(default_factory=list)
    attempts: int = 0
    is_over: bool = False

    @property
    def snapshots(self) -> Objects:
        return open_snapshots(self.storage.open_root(), "run")

    @property
    def bucket(self) -> Objects:
        return self.storage.open_root()

    def attempt(self, num_nodes: int = 1, **settings: float) -> list[Node]:
        """Prepare the nodes of another attempt; nothing is started."""
        self.attempts += 1
        made = []
        for index in range(num_nodes):
            scratch = self.folder / f"attempt-{self.attempts}-node-{index}"
            (scratch / "checkpoints").mkdir(parents=True)
            given = {"every_s": 1.0, "keep": 3, "mib_per_s": 1000.0, "limit_gib": 1.0, **settings}
            node = Node(
                SnapshotSettings(
                    storage=self.storage,
                    run="run",
                    job_id="job",
                    attempt=self.attempts,
                    node=index,
                    main=0,
                    num_nodes=num_nodes,
                    scratch=scratch,
                    checkpoints=scratch / "checkpoints",
                    cache=scratch / "cache",
                    **given,  # type: ignore[arg-type]
                ),
                Courier(scratch, is_main=index == 0),
            )
            made.append(node)
        self.nodes += made
        if num_nodes > 1:
            threading.Thread(target=self._carry, args=made, daemon=True).start()
        return made

    def _carry(self, main: Node, *children: Node) -> None:
        """Transfer the nodes' documents, as their launchers do."""
        while not self.is_over:
            for child in children:
                for message in child.courier.outgoing():
                    sent = parse_message(json.dumps(message).encode())
                    answer = main.courier.receive(child.settings.node, sent)
                    assert answer is not None
                    child.courier.receive(main.settings.node, answer)
            for message in main.courier.outgoing():
                for child in children:
                    child.courier.receive(main.settings.node, message)
            time.sleep(0.02)

    def restored(self, num_nodes: int = 1) -> list[Node]:
        """Prepare the nodes of another attempt with their restored files."""
        nodes = self.attempt(num_nodes)
        for node in nodes:
            node.restore(self.snapshots)
        return nodes

    def run(self, *files: Mapping[str, str | bytes], **settings: float) -> list[Node]:
        """Run an attempt with a node for each of ``files``, which end in its final snapshot."""
        nodes = self.attempt(len(files), **{"every_s": 3600.0, **settings})
        for node, own in zip(nodes, files, strict=True):
            node.restore(self.snapshots)
            node.start_snapshots()
            for path, content in own.items():
                node.write(path, content)
            node.end()
        for node in nodes:
            assert node.wait().failure is None
        return nodes

    def put(self, number: int, files: Mapping[str, str], root: Root = Root.CHECKPOINTS) -> None:
        """Store a snapshot of one node, without a process that takes it."""
        entries = []
        for path, text in files.items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            self.snapshots.put(object_key(digest), text.encode())
            entries.append(SnapshotEntry(root=root, path=path, bytes=len(text), sha256=digest))
        at = "2026-01-01T00:00:00+00:00"
        snapshot = JobSnapshot(number=number, at=at, nodes=1, main=0, entries=tuple(entries))
        self.snapshots.put(snapshot.key, snapshot.encode())

    def numbers(self) -> list[int]:
        return snapshot_numbers(self.snapshots)

    def snapshot(self, number: int) -> JobSnapshot:
        return JobSnapshot.decode(self.snapshots.get(snapshot_key(number)))

    def newest(self) -> JobSnapshot:
        return self.snapshot(self.numbers()[-1])

    def wait_for(
        self, condition: Callable[[JobSnapshot], object], within_s: float = 20
    ) -> JobSnapshot:
        """Wait for a complete snapshot that satisfies ``condition``."""
        deadline = time.monotonic() + scaled(within_s)
        while time.monotonic() < deadline:
            for number in self.numbers():
                try:
                    found = self.snapshot(number)
                except LookupError:
                    continue  # deleted concurrently
                if condition(found):
                    return found
            time.sleep(0.05)
        raise AssertionError(f"no such snapshot in {self.numbers()}")

    def kill(self) -> None:
        self.is_over = True
        for node in self.nodes:
            node.kill()


needs_own_disk = pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="needs a file system of its own",
)


def run_on_small_disk(disk: Path, mib: int, code: str, *args: object) -> list[str]:
    """Run a program while ``disk`` is a file system of this size; return its lines of output."""
    disk.mkdir()
    mount = 'mount -t tmpfs -o "size=$1m" none "$2" && shift 2 && exec "$@"'
    done = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c", mount, "sh", str(mib), str(disk)),
            *(sys.executable, "-c", code, *map(str, args)),
        ],
        env={**os.environ, "PYTHONPATH": _PATH},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def paths(snapshot: JobSnapshot) -> set[str]:
    """Return the paths of a snapshot's files."""
    return {entry.path for entry in snapshot.files}


def tree(folder: Path) -> Mapping[str, object]:
    """Return everything below a folder, for comparison: contents, links, and None for folders."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def checkpoints(node: Node) -> Mapping[str, object]:
    """Return the contents of a node's folder."""
    return tree(node.settings.folders[Root.CHECKPOINTS])
