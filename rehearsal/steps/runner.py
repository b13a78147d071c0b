"""Runs steps (a user's commands) in parallel chains, and logs their output."""

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

_MAX_CONCURRENT_COMMANDS = 4
"""Maximum number of concurrent commands in one half; a command with --follow mostly waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A user's command, with its expected exit code and output."""

    name: str
    program: str = "jobs"
    """``jobs``, ``kubectl`` or ``torchx``."""
    argv: tuple[str, ...]
    """Arguments after the program."""
    processes: int | None = None
    """Processes per node, if the command depends on the number of ranks."""
    until_seen: str = ""
    """Run that TensorBoard must show before the command is interrupted."""
    exit_code: int = 0
    expects: Mapping[str, str] = field(default_factory=dict)
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
    """Steps that run in sequence, stopping after the first that ends unexpectedly."""

    name: str
    steps: tuple[Step, ...]
    after: tuple[str, ...] = ()
    """Chains passed to the same ``run`` call that must succeed first."""
    wait: Callable[[], object] = lambda: None
    """Called after those chains; returns once this chain may start."""
    ended: Callable[[], None] = lambda: None
    """Called after the chain has ended or been skipped."""


@dataclass(slots=True, kw_only=True)
class _ChainResult:
    """The result of a chain, which was run or skipped."""

    ok: bool
    steps: list[CommandRecord] = field(default_factory=list)
    checks: list[ReceiptCheck] = field(default_factory=list)


class RehearsalInterrupted(Exception):
    """Raised when the rehearsal is interrupted: the results of its steps prove nothing."""


class Runner:
    """Runs the chains of one half of the rehearsal (Batch or EKS), in parallel where possible."""

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
        self._room = threading.Semaphore(_MAX_CONCURRENT_COMMANDS)
        self._processes: list[subprocess.Popen[str]] = []
        self._stopped = False
        self.steps: list[CommandRecord] = []
        """Executed steps, in the order of the chains that were passed to ``run``."""
        self.checks: list[ReceiptCheck] = []

    def run(self, chains: Sequence[Chain]) -> bool:
        """Run chains, in parallel where possible; return True if every step ended as expected.

        Raises ``RehearsalInterrupted`` if ``stop`` was called.
        """
        running: dict[str, Future[_ChainResult]] = {}
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
        return all(chain.ok for chain in ended)

    def run_one(self, step: Step) -> CommandRecord:
        """Run a single step in the caller's phase; may raise ``RehearsalInterrupted``."""
        with self._room:
            record, checks = self._run(step)
        self.steps.append(record)
        self.checks += checks
        self._note_problem(step, record)
        return record

    def stop(self) -> None:
        """Terminate every command, because a signal to this process does not reach its children."""
        self._stopped = True
        for process in self._processes:
            process.terminate()

    def step(self, name: str) -> CommandRecord | None:
        """Return the record of a step, if it was run."""
        return next((record for record in self.steps if record.name == name), None)

    def log(self, step: str) -> Path:
        """Return the log file of a step."""
        return self._folder.log(f"{self._half}-{step.replace(' ', '-')}")

    def last_lines(self, step: str) -> str:
        """Return the end of a step's output, and the path of its log."""
        log = self.log(step)
        last = "\n  ".join(log.read_text(encoding="utf-8").splitlines()[-12:])
        return f"full log in {log}:\n  {last}"

    def _chain(self, chain: Chain, needed: Iterable[Future[_ChainResult]]) -> _ChainResult:
        try:
            return self._run_chain(chain, needed)
        finally:
            chain.ended()

    def _run_chain(self, chain: Chain, needed: Iterable[Future[_ChainResult]]) -> _ChainResult:
        result = _ChainResult(ok=all([future.result().ok for future in needed]))
        if not result.ok:
            return result
        chain.wait()
        with self.phase(f"{self._half}: {chain.name}"):
            for step in chain.steps:
                with self._room:
                    record, checks = self._run(step)
                result.steps.append(record)
                result.checks += checks
                if self._note_problem(step, record):
                    result.ok = False
                    break
        return result

    def _note_problem(self, step: Step, record: CommandRecord) -> bool:
        """Report a step that ended unexpectedly; return whether it did."""
        if record.problem is None:
            return False
        self._note(f"{record.problem}; {self.last_lines(step.name)}")
        return True

    def _run(self, step: Step) -> tuple[CommandRecord, list[ReceiptCheck]]:
        self._raise_if_stopped()
        begin = time.monotonic()
        log = self.log(step.name)
        environment = dict(self.environment)
        # Some steps use kubectl to change the node scaler or read its log, for which a submitter
        # has no permission.
        if step.program == "kubectl":
            environment |= CREDENTIALS
        if step.processes is not None:
            environment[contract.ENV_PROCESSES_PER_NODE] = str(step.processes)
        if step.until_seen:
            code = tensorboard.check_page(
                step.command, step.until_seen, log=log, environment=environment
            )
        else:
            code = cdk.run(
                step.command,
                log=log,
                environment=environment,
                on_line=self._on_line,
                on_start=self._processes.append,
                # Any exit code is recorded in the receipt.
                codes=None,
            )
        self._raise_if_stopped()
        output = log.read_text(encoding="utf-8")
        record = CommandRecord(
            name=step.name,
            command=step.shown,
            exit_code=code,
            expected_exit_code=step.exit_code,
            seconds=round(time.monotonic() - begin, 2),
        )
        return record, [
            ReceiptCheck(name=name, ok=bool(re.search(pattern, output)), detail=step.shown)
            for name, pattern in step.expects.items()
        ]

    def _raise_if_stopped(self) -> None:
        if self._stopped:
            raise RehearsalInterrupted


def step(name: str, line: str, **more: Any) -> Step:
    """Build a step from a user's command line; ``jobs ...`` is this project's CLI."""
    program, *argv = shlex.split(line)
    return Step(name=name, program=program, argv=tuple(argv), **more)


def flags(parameters: Mapping[str, str]) -> str:
    """Format a command's options, as a user types them."""
    options: list[str] = []
    for name, value in parameters.items():
        # A value may look like an option, such as a program's arguments.
        options += [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
    return shlex.join(options)
