"""Runs steps, which are a user's commands, in parallel chains, and keeps their output."""

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

from rehearsal.deployment import cdk
from rehearsal.deployment.aws import CREDENTIALS
from rehearsal.deployment.binaries import kubectl
from rehearsal.deployment.state import DEPLOYMENT, RehearsalFolder
from rehearsal.proofs import tensorboard
from rehearsal.receipt import CommandRecord, ReceiptCheck
from trainium_catalogue import contract

_AT_A_TIME = 4
"""Commands of one half that run in parallel; a command with --follow mostly waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One user command, its expected exit code, and the output it must contain."""

    name: str
    program: str = "jobs"
    """``jobs``, ``kubectl`` or ``torchx``."""
    argv: tuple[str, ...]
    """Arguments after the program."""
    processes: int | None = None
    """Processes per node, where the command counts ranks."""
    until_seen: str = ""
    """Run that TensorBoard must show before the command is interrupted."""
    exit_code: int = 0
    says: Mapping[str, str] = field(default_factory=dict)
    """Checks by name, each with the regular expression that the output must match."""

    @property
    def shown(self) -> str:
        """The command as a user types it."""
        program = "python -m jobs" if self.program == "jobs" else self.program
        return " ".join((program, *self.argv))

    @property
    def command(self) -> tuple[str, ...]:
        """The command as it is executed."""
        match self.program:
            case "jobs":
                return (sys.executable, "-m", "jobs", "--deployment", DEPLOYMENT, *self.argv)
            case "kubectl":
                return (str(kubectl()), *self.argv)
            case other:
                return (str(Path(sys.executable).parent / other), *self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Steps run one after another, up to the first with an unexpected ending."""

    name: str
    steps: tuple[Step, ...]
    after: tuple[str, ...] = ()
    """Chains of the same table that must have succeeded before."""
    ended: Callable[[], None] = lambda: None
    """Called once the chain has ended, or was skipped."""


@dataclass(slots=True, kw_only=True)
class _Ended:
    """A chain that was run, or skipped because of another one."""

    well: bool
    steps: list[CommandRecord] = field(default_factory=list)
    checks: list[ReceiptCheck] = field(default_factory=list)


class Interrupted(Exception):
    """Somebody has ended the rehearsal: what a step did until then proves nothing."""


class Runner:
    """Runs the chains of one half, each as soon as the chains it depends on have ended."""

    def __init__(
        self,
        half: str,
        *,
        folder: RehearsalFolder,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        phase: Callable[[str], AbstractContextManager[None]],
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._half = half
        self._folder = folder
        self.environment = environment
        self._on_line = on_line
        self.phase = phase
        self._note = note
        self._room = threading.Semaphore(_AT_A_TIME)
        self._processes: list[subprocess.Popen[str]] = []
        self._stopped = False
        self.steps: list[CommandRecord] = []
        """Steps that were run, in the order of the tables, whichever was faster."""
        self.checks: list[ReceiptCheck] = []

    def run(self, chains: Sequence[Chain]) -> bool:
        """Run a table of chains; return True if every step ended as expected.

        Raises ``Interrupted``.
        """
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

    def run_one(self, step: Step) -> CommandRecord:
        """Run a single step, in a phase of the caller's; raises ``Interrupted``."""
        with self._room:
            record, checks = self._run(step)
        self.steps.append(record)
        self.checks += checks
        self._tell(step, record)
        return record

    def stop(self) -> None:
        """Terminate every command: a signal to this process alone does not reach its children."""
        self._stopped = True
        for process in self._processes:
            process.terminate()

    def step(self, name: str) -> CommandRecord | None:
        """Return the record of a step, if it was run."""
        return next((record for record in self.steps if record.name == name), None)

    def log(self, step: str) -> Path:
        """Return the file that holds a step's output."""
        return self._folder.log(f"{self._half}-{step.replace(' ', '-')}")

    def last_lines(self, step: str) -> str:
        """Quote the end of a step's output, and name the file that holds all of it."""
        log = self.log(step)
        last = "\n  ".join(log.read_text(encoding="utf-8").splitlines()[-12:])
        return f"all of it is in {log}:\n  {last}"

    def _chain(self, chain: Chain, needed: Iterable[Future[_Ended]]) -> _Ended:
        try:
            return self._run_chain(chain, needed)
        finally:
            chain.ended()

    def _run_chain(self, chain: Chain, needed: Iterable[Future[_Ended]]) -> _Ended:
        ended = _Ended(well=all([future.result().well for future in needed]))
        if not ended.well:
            return ended
        with self.phase(f"{self._half}: {chain.name}"):
            for step in chain.steps:
                with self._room:
                    record, checks = self._run(step)
                ended.steps.append(record)
                ended.checks += checks
                if self._tell(step, record):
                    ended.well = False
                    break
        return ended

    def _tell(self, step: Step, record: CommandRecord) -> bool:
        """Show how a step ended, if it did not end as expected; returns True then."""
        if record.problem is None:
            return False
        self._note(f"{record.problem}; {self.last_lines(step.name)}")
        return True

    def _run(self, step: Step) -> tuple[CommandRecord, list[ReceiptCheck]]:
        self._go_on()
        begin = time.monotonic()
        log = self.log(step.name)
        environment = dict(self.environment)
        # A submitter's role has no such right; kubectl only looks.
        if step.program == "kubectl":
            environment |= CREDENTIALS
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
                # Whatever the error, it goes into the receipt.
                codes=None,
            )
        self._go_on()
        said = log.read_text(encoding="utf-8")
        record = CommandRecord(
            name=step.name,
            command=step.shown,
            exit_code=code,
            expected_exit_code=step.exit_code,
            seconds=round(time.monotonic() - begin, 2),
        )
        return record, [
            ReceiptCheck(name=name, ok=bool(re.search(pattern, said)), detail=step.shown)
            for name, pattern in step.says.items()
        ]

    def _go_on(self) -> None:
        if self._stopped:
            raise Interrupted


def step(name: str, line: str, **more: Any) -> Step:
    """Make a step from the line that a user types; this project's own CLI is ``jobs ...``."""
    program, *argv = shlex.split(line)
    return Step(name=name, program=program, argv=tuple(argv), **more)


def flags(parameters: Mapping[str, str]) -> str:
    """Format the options of a command, as a user types them."""
    words: list[str] = []
    for name, value in parameters.items():
        # A value that looks like an option itself, such as arguments of a program.
        words += [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
    return shlex.join(words)
