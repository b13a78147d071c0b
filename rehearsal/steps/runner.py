"""Runs steps, the commands of a user, in chains beside each other, and keeps what they said."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.checks import tensorboard
from rehearsal.deployment import cdk
from rehearsal.deployment.binaries import kubectl
from rehearsal.deployment.state import DEPLOYMENT, Folder
from rehearsal.receipt import Check, StepRecord
from trainium_catalogue import contract

_AT_A_TIME = 4
"""Commands of a half that run beside each other: a follower mostly waits for its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a user, how it must end, and what it must say."""

    name: str
    program: str = "jobs"
    """``jobs``, ``kubectl`` or ``torchx``."""
    argv: tuple[str, ...]
    """After the program."""
    processes: int | None = None
    """Per node, where the command counts ranks."""
    until_seen: str = ""
    """Run that TensorBoard has to show before the command is interrupted."""
    exit_code: int = 0
    says: Mapping[str, str] = field(default_factory=dict)
    """Checks by name, with the regular expression that must be in the output for each."""

    @property
    def shown(self) -> str:
        """The command as a user types it."""
        program = "python -m jobs" if self.program == "jobs" else self.program
        return " ".join((program, *self.argv))

    @property
    def command(self) -> tuple[str, ...]:
        """The command as it is started."""
        match self.program:
            case "jobs":
                return (sys.executable, "-m", "jobs", "--deployment", DEPLOYMENT, *self.argv)
            case "kubectl":
                return (str(kubectl()), *self.argv)
            case other:
                return (str(Path(sys.executable).parent / other), *self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Steps that are run one after the other, up to the first that ends otherwise than it must."""

    name: str
    steps: tuple[Step, ...]
    after: tuple[str, ...] = ()
    """Chains of the same table that must have ended well before."""


@dataclass(slots=True, kw_only=True)
class _Ended:
    """A chain that was run, or left out because of another one."""

    well: bool
    steps: list[StepRecord] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


class Runner:
    """Runs the chains of one half, each as soon as those that it needs have ended."""

    def __init__(
        self,
        half: str,
        *,
        folder: Folder,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        phase: Callable[[str], AbstractContextManager[None]],
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._half = half
        self._folder = folder
        self.environment = environment
        self._on_line = on_line
        self._phase = phase
        self._note = note
        self._room = threading.Semaphore(_AT_A_TIME)
        self._processes: list[subprocess.Popen[str]] = []
        self._stopped = False
        self.steps: list[StepRecord] = []
        """Steps that were run, in the order of the tables, whichever was faster."""
        self.checks: list[Check] = []

    def run(self, chains: Sequence[Chain]) -> bool:
        """Run a table of chains; whether every step ended as it must."""
        running: dict[str, Future[_Ended]] = {}
        with ThreadPoolExecutor(max_workers=len(chains)) as pool:
            for chain in chains:
                needed = [running[name] for name in chain.after]
                running[chain.name] = pool.submit(self._chain, chain, needed)
            try:
                ended = [future.result() for future in running.values()]
            except BaseException:
                self.stop()
                raise
        self.steps += [record for chain in ended for record in chain.steps]
        self.checks += [check for chain in ended for check in chain.checks]
        return all(chain.well for chain in ended)

    def stop(self) -> None:
        """End every command: a signal to this process alone ends none of those it started."""
        self._stopped = True
        for process in self._processes:
            process.terminate()

    def step(self, name: str) -> StepRecord | None:
        """Return the record of a step, if it was run."""
        return next((record for record in self.steps if record.name == name), None)

    def log(self, step: str) -> Path:
        """The file that has the output of a step."""
        return self._folder.log(f"{self._half}-{step.replace(' ', '-')}")

    def _chain(self, chain: Chain, needed: Iterable[Future[_Ended]]) -> _Ended:
        ended = _Ended(well=all([future.result().well for future in needed]))
        if not ended.well:
            return ended
        with self._phase(f"{self._half}: {chain.name}"):
            for step in chain.steps:
                with self._room:
                    if self._stopped:
                        return _Ended(well=False)
                    record, checks = self._run(step)
                ended.steps.append(record)
                ended.checks += checks
                if record.exit_code != record.expected_exit_code:
                    ended.well = False
                    log = self.log(step.name)
                    last = "\n  ".join(log.read_text(encoding="utf-8").splitlines()[-12:])
                    self._note(f"{record.problem}; all of it is in {log}:\n  {last}")
                    break
        return ended

    def _run(self, step: Step) -> tuple[StepRecord, list[Check]]:
        begin = time.monotonic()
        log = self.log(step.name)
        environment = dict(self.environment)
        if step.processes is not None:
            environment[contract.ENV_PROCESSES_PER_NODE] = str(step.processes)
        if step.until_seen:
            code = tensorboard.look(step.command, step.until_seen, log=log, environment=environment)
        else:
            code = cdk.run(
                step.command,
                log=log,
                environment=environment,
                on_line=self._on_line,
                on_start=self._processes.append,
                # Whatever it is, it goes into the receipt.
                codes=None,
            )
        said = log.read_text(encoding="utf-8")
        record = StepRecord(
            name=step.name,
            command=step.shown,
            exit_code=code,
            expected_exit_code=step.exit_code,
            seconds=round(time.monotonic() - begin, 2),
        )
        return record, [
            Check(name=name, ok=bool(re.search(pattern, said)), detail=step.shown)
            for name, pattern in step.says.items()
        ]


def step(name: str, line: str, **more: Any) -> Step:
    """A step, from the line that a user types; of this project's own CLI it is ``jobs ...``."""
    program, *argv = shlex.split(line)
    return Step(name=name, program=program, argv=tuple(argv), **more)


def flags(parameters: Mapping[str, str]) -> str:
    """Options of a command, as a user types them."""
    return shlex.join(word for name, value in parameters.items() for word in (f"--{name}", value))
