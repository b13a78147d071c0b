"""The launcher's command line: a workload, its parameters and a program's own arguments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainium_catalogue.contract import ARGV_MARK
from trainium_catalogue.exit_codes import EXIT_CODES
from trainium_catalogue.parameters.command_line import parse_values
from trainium_catalogue.workloads import (
    LAUNCH_PARAMETERS,
    WORKLOADS,
    Parameter,
    Value,
    Workload,
    find_workload,
)

PROGRAM = "python -m training.launch"
DRY_RUN_FULL = "--dry-run-full"
"""Option to report each rank's memory at full size instead of training."""
_HELP_WIDTH = 100


class ArgumentError(ValueError):
    """An invalid command line; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchParameters:
    """The launcher's timeouts, named in ``LAUNCH_PARAMETERS``."""

    peer_timeout_s: float
    hang_limit_s: float
    join_timeout_s: float
    first_child_timeout_s: float
    straggler_timeout_s: float
    stop_grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One workload with every parameter filled in."""

    workload: Workload
    launch: LaunchParameters
    values: Mapping[str, Value]
    """The workload's own parameters."""
    given: Mapping[str, Value]
    """The values from the command line."""
    argv: tuple[str, ...]
    """The original command line, for the workers to parse again."""
    program_argv: tuple[str, ...] = ()
    """Arguments of a user's own program: everything after ``--``."""


def parse(argv: Sequence[str]) -> Request:
    """Parse ``<workload> [--parameter value]...``; raise ``ArgumentError`` if it is invalid."""
    if not argv:
        raise ArgumentError(f"no workload specified; choose one of {', '.join(WORKLOADS)}")
    if argv[0].startswith("-"):
        raise ArgumentError(
            f"{argv[0]} precedes the workload; write {PROGRAM} <workload> [--parameter value]"
        )
    try:
        workload = find_workload(argv[0])
        own, program_argv = split_argv(argv)
        if program_argv and not workload.runs_program:
            raise ArgumentError(
                f"{' '.join(program_argv)} after {ARGV_MARK}: {workload.name} does not run your "
                f"own program; omit {ARGV_MARK}"
            )
        parsed = parse_values(workload, own[1:])
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    seconds = {name.replace("-", "_"): float(value) for name, value in parsed.launch.items()}
    return Request(
        workload=parsed.workload,
        launch=LaunchParameters(**seconds),
        values=parsed.own,
        given=parsed.own_given,
        argv=tuple(argv),
        program_argv=program_argv,
    )


def split_argv(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a command line at the first ``--`` into the launcher's part and the program's."""
    words = tuple(argv)
    if ARGV_MARK not in words:
        return words, ()
    at = words.index(ARGV_MARK)
    return words[:at], words[at + 1 :]


def help_text(argv: Sequence[str] = ()) -> str:
    """Build the ``--help`` text, for one workload if ``argv`` begins with its name."""
    if argv and argv[0] in WORKLOADS:
        return _workload_help(WORKLOADS[argv[0]])
    lines = [
        f"usage: {PROGRAM} <workload> [--parameter value]...",
        "",
        "Runs on every node of a job: reads the environment of AWS Batch or Volcano, checks the",
        "host, waits for the other nodes, starts the workers with torchrun (a data job is one",
        "process without it) and monitors them and the other nodes. Without such an environment,",
        "this machine runs a single-node job:",
        "",
        f"  TRAINIUM_DEVICE=cpu TRAINIUM_PROCESSES_PER_NODE=2 {PROGRAM} all-reduce \\",
        "      --max-bytes 1048576",
        "",
        "Parameters of every workload (default in brackets):",
        *_parameter_lines(LAUNCH_PARAMETERS),
    ]
    lines += [
        "",
        f"Workloads ({PROGRAM} <workload> --help shows its parameters):",
        *(f"  {workload.name:<12}  {workload.summary}" for workload in WORKLOADS.values()),
        "",
        "Environment: AWS_BATCH_* as set by Batch, or the variables of a Volcano job;",
        "TRAINIUM_DEPLOYMENT, TRAINIUM_INSTANCE_TYPE, TRAINIUM_NEURON_RELEASE and TRAINIUM_BUCKET",
        "from the job definition or the pod, TRAINIUM_RUN from the CLI; TRAINIUM_DEVICE=cpu,",
        "TRAINIUM_PROCESSES_PER_NODE and TRAINIUM_NODE_ADDRESS on laptops and in rehearsals.",
        "Without TRAINIUM_BUCKET results are written below build/runs/<run>/.",
        "",
        "Exit codes:",
    ]
    for code, outcome in EXIT_CODES.items():
        retried = "; another attempt follows" if outcome.retry else ""
        lines.append(f"  {code.value:>3}  {outcome.meaning}{retried}")
    return "\n".join(lines)


def _workload_help(workload: Workload) -> str:
    own = f" [{ARGV_MARK} ARGUMENT_OF_YOUR_PROGRAM...]" if workload.runs_program else ""
    lines = [
        f"usage: {PROGRAM} {workload.name} [--parameter value]...{own}",
        "",
        workload.summary,
        "",
        f"{DRY_RUN_FULL} [--nodes N] [--instance-type NAME] [--json] shows the memory that each",
        "rank of a training workload would need. It trains nothing, and needs no hardware.",
        "",
        "Parameters (default in brackets), in addition to those of every workload:",
        *_parameter_lines(workload.parameters),
    ]
    return "\n".join(lines)


def _parameter_lines(parameters: Iterable[Parameter]) -> list[str]:
    rows = [(f"--{p.name}", f"{p.help} [{p.shown_default}]") for p in parameters]
    width = max(len(flag) for flag, _ in rows)
    return [
        line
        for flag, text in rows
        for line in textwrap.wrap(
            f"  {flag:<{width}}  {text}", _HELP_WIDTH, subsequent_indent=" " * (width + 4)
        )
    ]
