"""Runs a node of a job as its own process group, or as a container."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import psutil

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A container engine and the image for nodes."""

    program: str
    image: str


class Stream(Protocol):
    """Receiver of a node's output."""

    name: str

    def write(self, line: str) -> None:
        """Append one line immediately."""


_FINISH_LIMIT_S = 5.0
_BATCH_MARKS = ("AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ATTEMPT", "AWS_ENDPOINT_URL")


def pump(source: IO[str], stream: Stream, lines: list[str]) -> None:
    """Copy a node's output to its stream until it ends, and to ``lines`` for searches."""
    for line in source:
        text = line.rstrip("\n")
        # CloudWatch accepts no empty messages.
        stream.write(text or " ")
        lines.append(text)


def image_environment() -> dict[str, str]:
    """Return variables that the image would set: paths to Python and the code."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HOME": str(Path.home()),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


class NodeProcess:
    """A running node."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        stream: Stream,
        engine: Engine | None,
        open_files: int | None = None,
        niceness: int = 0,
        marks: Sequence[str] = _BATCH_MARKS,
    ):
        self.stream = stream
        self.lines: list[str] = []
        self._environment = dict(environment)
        # Variables that identify the node's processes.
        self._marks = marks
        self._engine = engine
        self._name = f"rehearsal-{stream.name.rpartition('/')[2]}"
        self._folder = tempfile.TemporaryDirectory(prefix="rehearsal-node-")
        if engine is None:
            limit = f"ulimit -n {open_files}; " if open_files is not None else ""
            # Where the kernel groups processes by session, their niceness has an effect only within
            # the session, so set the niceness of the group too (sched(7)).
            group = f"{{ echo {niceness} > /proc/self/autogroup; }} 2> /dev/null; "
            script = f'{limit}{group}exec nice -n {niceness} "$@"'
            arguments = ["sh", "-c", script, "sh", *command]
            full = {**image_environment(), "TMPDIR": tempfile.gettempdir(), **environment}
        else:
            arguments = self._container_command(engine, command, open_files)
            full = image_environment()
        self._process = subprocess.Popen(
            arguments,
            env=full,
            cwd=self._folder.name,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._pump = threading.Thread(
            target=pump, args=(self._process.stdout, stream, self.lines), daemon=True
        )
        self._pump.start()

    def _container_command(
        self, engine: Engine, command: Sequence[str], open_files: int | None
    ) -> list[str]:
        # An engine cannot exceed its own hard limit.
        nofile = open_files or min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return [
            *(engine.program, "run", "--rm", "--init", "--network=host", "--shm-size=1g"),
            *(f"--name={self._name}", f"--ulimit=nofile={nofile}:{nofile}"),
            "--ulimit=nproc=4096:4096",
            *(f"--env={name}={value}" for name, value in self._environment.items()),
            engine.image,
            *command,
        ]

    @property
    def folder(self) -> Path:
        """The node's working directory."""
        return Path(self._folder.name)

    def exit_code(self) -> int | None:
        """Return the container's exit code: 128 + signal if it was killed; None while it runs."""
        code = self._process.poll()
        return None if code is None else code if code >= 0 else 128 - code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the node's main process, as a container engine does."""
        if self._process.poll() is not None:
            return
        if self._engine is None:
            os.kill(self.pid, number)
        else:
            subprocess.run(
                [self._engine.program, "kill", f"--signal={number.name}", self._name],
                capture_output=True,
            )

    def leftovers(self) -> list[str]:
        """Describe leftovers of the node on this machine."""
        processes = [f"process {process.pid}" for process in self._survivors()]
        return [*processes, *([self._folder.name] if self.folder.exists() else [])]

    def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, then SIGKILL after the stop timeout, like the ECS agent."""
        self.send(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while self.exit_code() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.send(signal.SIGKILL)
        self._process.wait()

    def finish(self) -> None:
        """Kill the node's remaining processes, as a container's processes end with it."""
        deadline = time.monotonic() + _FINISH_LIMIT_S
        # Repeat, because a killed process may just have started another.
        while (left := self._survivors()) and time.monotonic() < deadline:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=0.2)
        self._pump.join(timeout=5)
        self._folder.cleanup()

    def _survivors(self) -> list[psutil.Process]:
        """Return the running processes that have the node's identifying variables."""
        mark = {key: self._environment[key] for key in self._marks}
        survivors = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
            except psutil.Error:
                continue
            if all(environment.get(key) == value for key, value in mark.items()):
                survivors.append(process)
        return survivors


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until ``condition`` holds; return False on timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
