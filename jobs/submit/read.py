"""From a command line to an order: a workload or a program, its parameters, its run's name.

What can be refused without a deployment is refused here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.errors import Refusal
from jobs.job import compile_run, valid_run_name
from jobs.program.entry import ProgramOptions, is_path
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.models.presets import MODELS, PRETRAIN
from trainium_catalogue.parameters.command_line import (
    ParameterError,
    ParameterValues,
    parse_values,
)
from trainium_catalogue.suggest import did_you_mean, nearest
from trainium_catalogue.workloads import WORKLOADS, Hardware, Workload

if TYPE_CHECKING:
    from jobs.submit.program import ProgramOrder

OWN_OPTIONS = (
    *("nodes", "name", "follow", "time-limit", "set", "compile", "dry-run", "yes", "json"),
    *("on", "release", "scale", "check-only", "verbose"),
    *("module", "workdir", "include", "exclude", "env", "requirements", "from-snapshot"),
    *("deployment", "region", "help"),
)
"""Options of ``submit`` itself; no workload has a parameter of the same name."""
_NOT_BY_NAME = (contract.PROGRAM, contract.WHEELS)
"""Workloads that other words stand for: the path of a program, and its requirements."""
MAX_ARRAY_SIZE = 10_000
"""Children of an array job (Batch user guide, array jobs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """Options of ``submit`` that any workload takes."""

    name: str | None
    """Run name; None for a new one."""
    nodes: int | None
    on: Orchestrator | None
    time_limit_hours: float | None
    compiles: bool
    follows: bool
    folds: bool
    """True if the launchers' first lines are followed as one."""
    releases: bool
    scales: bool
    dry_run: bool
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOrder:
    """A command line of ``submit``, read against the catalogue."""

    options: SubmitOptions
    values: ParameterValues
    """The workload and its parameters."""
    run: str
    num_nodes: int
    program: ProgramOrder | None = None
    """The user's own program to run, if it is one."""

    @property
    def workload(self) -> Workload:
        """The workload."""
        return self.values.workload

    @property
    def job_workload(self) -> str:
        """Name of the workload whose job definition and role the job uses."""
        return self.workload.name if self.program is None else contract.PROGRAM


def read_order(
    what: str | None,
    argv: Sequence[str],
    assignments: Sequence[str],
    *,
    options: SubmitOptions,
    own: ProgramOptions,
) -> SubmitOrder:
    """Read what is to run, and with which parameters; needs no network.

    Args:
        argv: Parameters, as ``--name value``.
        assignments: Parameters, as ``name=value``.
        own: What only a program of the user's own can be given.
    """
    program: ProgramOrder | None = None
    if own.module is None and (what is None or not is_path(what)):
        workload = known_workload(what)
        own.refuse(workload.name)
        values = read_parameters(workload, argv, assignments)
        run = run_name(options.name, values.workload.name)
    else:
        # The packing of programs is not needed for a workload of the catalogue.
        from jobs.submit.program import named_program, packed

        named = named_program(what, own.module, own.workdir, reserved=OWN_OPTIONS)
        assert named is not None
        values = read_parameters(named.workload, argv, assignments)
        run = run_name(options.name, named.name)
        program, values = packed(named, values, own)
    order = SubmitOrder(
        options=options,
        values=values,
        run=run,
        num_nodes=values.workload.default_nodes if options.nodes is None else options.nodes,
        program=program,
    )
    _check_size(order.workload, order.num_nodes)
    if options.compiles:
        _check_compile(order)
    if own.from_snapshot and options.name is None:
        raise Refusal(
            "no-such-snapshot",
            f"--from-snapshot {own.from_snapshot}: a new run has no snapshots; name the run that "
            "has them with --name",
        )
    return order


def known_workload(name: str | None) -> Workload:
    """Look up the workload; refuse an unknown one."""
    if not name:
        raise Refusal(
            "no-workload",
            "nothing to submit is named; name a workload (`python -m jobs catalogue` lists them), "
            "a program of yours (./train.py), or a module (-m mypkg.train)",
        )
    if name.startswith("-"):
        raise Refusal(
            "no-workload",
            f"{name} stands before what it belongs to; name the workload or program first, as in "
            f"`submit llama2-7b {name}`",
        )
    if name in _NOT_BY_NAME:
        raise Refusal(
            "unknown-workload",
            f"{name} is not submitted by its name; name the file of your program: submit "
            "./train.py",
        )
    if name in WORKLOADS:
        return WORKLOADS[name]
    names = [known for known in WORKLOADS if known not in _NOT_BY_NAME]
    submitted = {known: known for known in names}
    submitted |= {model: f"{PRETRAIN} --model {model}" for model in MODELS}
    near = nearest(name, submitted)
    hint = f"did you mean {submitted[near]!r}?" if near else did_you_mean(name, names)
    raise Refusal("unknown-workload", f"unknown workload {name!r}; {hint}; {_own_program(name)}")


def _own_program(name: str) -> str:
    """Say how a program of the user's own is named."""
    if Path(name).is_dir():
        return f"for the folder of that name write ./{name}"
    if Path(f"{name}.py").is_file():
        return f"for the file of that name write ./{name}.py"
    return "for a program of your own give its path: ./train.py"


def read_parameters(
    workload: Workload, argv: Sequence[str], assignments: Sequence[str] = ()
) -> ParameterValues:
    """Read ``--name value`` and ``--set name=value`` against the catalogue."""
    try:
        return parse_values(workload, argv, assignments, options=OWN_OPTIONS)
    except ParameterError as error:
        raise Refusal(error.code, str(error)) from None


def run_name(name: str | None, what: str) -> str:
    """Return the run's checked name, or a new one made of what runs and the time."""
    if name is not None:
        return valid_run_name(name)
    return f"{what}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _check_size(workload: Workload, num_nodes: int) -> None:
    """Refuse a number of nodes that the workload cannot use on any deployment."""
    least = max(1, workload.min_nodes)
    if num_nodes < least:
        raise Refusal(
            "too-few-nodes",
            f"--nodes {num_nodes} is too few: {workload.name} needs at least {least}; submit with "
            f"--nodes {least}",
        )
    if workload.hardware is Hardware.CPU:
        if num_nodes > 1 and not workload.is_array:
            raise Refusal(
                "too-many-nodes",
                f"--nodes {num_nodes}: {workload.name} is one container on an ordinary instance "
                "and cannot be split; leave --nodes out",
            )
        if num_nodes > MAX_ARRAY_SIZE:
            raise Refusal(
                "too-many-nodes",
                f"--nodes {num_nodes}: an array job has at most {MAX_ARRAY_SIZE:,} children; "
                "submit with fewer",
            )
    if workload.max_nodes is not None and num_nodes > workload.max_nodes:
        raise Refusal(
            "too-many-nodes",
            f"--nodes {num_nodes}: {workload.name} runs on at most {workload.max_nodes}; submit "
            f"with --nodes {workload.max_nodes}",
        )


def _check_compile(order: SubmitOrder) -> None:
    """Refuse ``--compile`` if there is nothing to compile, or nothing to compile for."""
    if order.program is not None:
        raise Refusal(
            "nothing-to-compile",
            "--compile: only the program itself knows its graphs; leave --compile out, they are "
            "kept with the run once they are compiled",
        )
    if order.workload.preset is None:
        raise Refusal(
            "nothing-to-compile",
            f"--compile: {order.workload.name} has no graphs to compile beforehand; leave "
            "--compile out",
        )
    if order.values.given.get("compile-only"):
        raise Refusal(
            "nothing-to-compile",
            "--compile and --compile-only exclude each other: the one compiles before training, "
            "the other instead; keep one of them",
        )
    compile_run(order.run)
