"""Launchers and workers as forks of one process, which imports the slow-loading modules once.

Launcher, guardian and workers are separate processes, as in production, with an environment
that can be read in /proc. Only torchrun is omitted; ``_Worker`` sets its few variables instead.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from tests.faults import local_storage
from training import launch, worker
from training.core import processes
from training.core.processes import die_with_parent, is_gone
from training.storage import local, results, retries, run_lock
from training.trainer import run_files
from training.trainer.loop import Loop
from training.workloads import IMPLEMENTATIONS, hide_sklearn

WORKLOAD = "llama-tiny"
_ROOM = "TRAINIUM_FAULTS_ROOM"
_HEARTBEAT_S = 1.0
_UPLOADS_S = 0.2
_RETRIES_S = 2.0
_CLOSING_S = 15.0
_STEP_S = 0.03


def with_room(argv: Sequence[str]) -> None:
    """Restart this program with room in its environment block for that of a node."""
    if _ROOM not in os.environ:
        more = {_ROOM: "x" * 16384, "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *argv], {**os.environ, **more})


def prepare() -> None:
    """Import the modules of launchers and workers, and shorten a job's waits.

    Heartbeats, uploads, retries and steps are much faster here than in production.
    """
    torch.set_num_threads(1)
    hide_sklearn()
    IMPLEMENTATIONS[WORKLOAD].load()
    for name in (
        *("training.core.device", "training.backends.native", "torch.utils.tensorboard", "boto3"),
        "transformers.models.llama.modeling_llama",
    ):
        importlib.import_module(name)
    for function, name, seconds in (
        (run_lock.RunLock.__init__, "heartbeat_s", _HEARTBEAT_S),
        (retries.RetryPolicy.__init__, "total_s", _RETRIES_S),
        (run_files.RunFiles.close, "within_s", _CLOSING_S),
    ):
        defaults: Any = function.__kwdefaults__
        assert name in defaults
        defaults[name] = seconds
    vars(run_files)["_BETWEEN_UPLOADS_S"] = _UPLOADS_S
    vars(local)["_LOCK_S"] = _RETRIES_S
    original_step: Any = Loop._step

    def slow_step(self: Loop, number: int, last: int) -> Any:
        time.sleep(_STEP_S)
        return original_step(self, number, last)

    Loop._step = slow_step  # type: ignore[method-assign]
    vars(processes)["subprocess"] = SimpleNamespace(Popen=_Worker, DEVNULL=subprocess.DEVNULL)
    local_storage.install()
    _cache_service_models()
    gc.collect()
    gc.freeze()


def _cache_service_models() -> None:
    """Load botocore's service models only once; every client would load megabytes of them."""
    import boto3
    from botocore.loaders import JSONFileLoader

    loader: Any = JSONFileLoader
    load, seen = loader.load_file, {}

    def load_once(self: Any, path: str) -> Any:
        if path not in seen:
            seen[path] = load(self, path)
        return seen[path]

    loader.load_file = load_once
    boto3.session.Session().client("s3", region_name="us-east-1")


def start_node(
    env: Mapping[str, str], argv: Sequence[str], *, folder: Path, log: Path, skew_s: float
) -> int:
    """Start a launcher; return its process ID."""
    sys.stdout.flush()
    parent = os.getpid()
    if pid := os.fork():
        return pid

    def run() -> int:
        die_with_parent(parent)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _replace_environment(env)
        _skew_clock(skew_s)
        return launch.main([WORKLOAD, *argv], os.environ)

    _end(run)


def _end(run: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        code = run()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _replace_environment(env: Mapping[str, str]) -> None:
    """Replace the environment, including /proc/<pid>/environ."""
    os.environ.clear()
    os.environ.update({**env, "OMP_NUM_THREADS": "1"})
    text = Path("/proc/self/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    begin, end = int(fields[47]), int(fields[48])  # env_start and env_end of proc(5)
    block = b"".join(f"{name}={value}\0".encode() for name, value in env.items())
    assert len(block) < end - begin
    ctypes.memmove(begin, block.ljust(end - begin, b"\0"), end - begin)


def _skew_clock(seconds: float) -> None:
    """Offset the wall clock of this process and its forks."""
    if not seconds:
        return
    now = time.time
    vars(time)["time"] = lambda: now() + seconds

    class Skewed(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=seconds)

    vars(results)["datetime"] = Skewed


class _Worker:
    """Replacement for ``subprocess.Popen`` of torchrun that starts the worker directly."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        preexec_fn: Callable[[], None],
        **_: Any,
    ) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return

        def run() -> int:
            os.setsid()
            os.dup2(1, 2)
            os.closerange(3, 4096)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            options = dict(
                word.removeprefix("--").split("=", 1) for word in command if word.count("=")
            )
            words = list(command)
            argv = words[words.index("training.worker") + 1 :]
            torchrun = {
                "RANK": options["node-rank"],
                "LOCAL_RANK": "0",
                "WORLD_SIZE": options["nnodes"],
                "MASTER_ADDR": os.environ.get(REAL_MAIN) or options["master-addr"],
                "MASTER_PORT": options["master-port"],
            }
            _replace_environment({**env, **torchrun})
            # Last, as in production; it also ends this process if the launcher has already died.
            preexec_fn()
            worker.main(argv, os.environ)
            return 0

        _end(run)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", timeout)
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


REAL_MAIN = "FAULTS_MAIN_ADDRESS"
"""Address for the rendezvous of gloo's ranks; the launchers' own connections go through a forwarder
that can cut them."""


def processes_of(address: str) -> list[int]:
    """Return every process of a node, found by its unique address."""
    needle = f"TRAINIUM_NODE_ADDRESS={address}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if needle in environ.split(b"\0") and not is_gone(int(entry.name)):
                found.append(int(entry.name))
    return sorted(found)
