"""Parse a command line into a specification: a workload or program, its parameters and run name.

Everything that can be refused without a deployment is refused here.
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
from trainium_catalogue.parameters.command_line import ParameterError, ParameterValues, parse_values
from trainium_catalogue.suggest import did_you_mean, nearest
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import WORKLOADS, Hardware, Workload

if TYPE_CHECKING:
    from jobs.submit.program import ProgramSpec

OWN_OPTIONS = (
    *("nodes", "name", "follow", "time-limit", "set", "compile", "dry-run", "yes", "json"),
    *("on", "release", "scale", "max-usd", "zone-patience", "check-only", "verbose"),
    *("module", "workdir", "include", "exclude", "env", "requirements", "from-snapshot"),
    *("deployment", "region", "help"),
)
"""Options of ``submit`` itself, reserved as parameter names."""
_INTERNAL_WORKLOADS = (contract.PROGRAM, contract.WHEELS)
"""Internal workloads, selected by a program's path and its requirements."""
MAX_ARRAY_SIZE = 10_000
"""Maximum number of children of an array job (Batch user guide, array jobs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """Options of ``submit`` for any workload."""

    name: str | None
    """Run name; None for a new one."""
    nodes: int | None
    on: Orchestrator | None
    time_limit_hours: float | None
    compiles: bool = False
    follows: bool = False
    folds: bool = False
    """True to fold the launchers' startup lines into one."""
    releases: bool = False
    scales: bool = False
    max_usd: float | None = None
    """The user's cost cap."""
    dry_run: bool
    as_json: bool
    zone_patience_minutes: int | None = None
    """Minutes that the job may wait for capacity in each of several zones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitSpec:
    """A parsed and validated command line of ``submit``."""

    options: SubmitOptions
    values: ParameterValues
    """The workload and its parameters."""
    run: str
    num_nodes: int
    program: ProgramSpec | None = None
    """The user's own program, if any."""

    @property
    def workload(self) -> Workload:
        """The workload."""
        return self.values.workload

    @property
    def job_workload(self) -> str:
        """Name of the workload whose job definition and role the job uses."""
        return self.workload.name if self.program is None else contract.PROGRAM


def read_spec(
    what: str | None,
    argv: Sequence[str],
    assignments: Sequence[str],
    *,
    options: SubmitOptions,
    own: ProgramOptions,
) -> SubmitSpec:
    """Parse what to run and its parameters, without network access.

    Args:
        what: A workload, or the path of a program.
        argv: Parameters, as ``--name value``.
        assignments: Parameters, as ``name=value``.
        options: Options for any workload.
        own: Options for the user's own programs.
    """
    program: ProgramSpec | None = None
    if own.module is None and (what is None or not is_path(what)):
        workload = resolve_workload(what)
        own.refuse(workload.name)
        values = read_parameters(workload, argv, assignments)
        run = run_name(options.name, values.workload.name)
    else:
        # Imported here, because catalogue workloads do not need it.
        from jobs.submit.program import find_program, packed

        named = find_program(what, own.module, own.workdir, reserved=OWN_OPTIONS)
        assert named is not None
        values = read_parameters(named.workload, argv, assignments)
        run = run_name(options.name, named.name)
        program, values = packed(named, values, own)
    spec = SubmitSpec(
        options=options,
        values=values,
        run=run,
        num_nodes=values.workload.default_nodes if options.nodes is None else options.nodes,
        program=program,
    )
    _check_size(spec.workload, spec.num_nodes)
    if options.compiles:
        _check_compile(spec)
    if own.from_snapshot and options.name is None:
        raise Refusal(
            "no-such-snapshot",
            f"--from-snapshot {own.from_snapshot}: a new run has no snapshots; specify an existing "
            "run with --name",
        )
    return spec


def resolve_workload(name: str | None) -> Workload:
    """Look up the workload; refuse an unknown one."""
    if not name:
        raise Refusal(
            "no-workload",
            "no workload or program specified; pass a workload (`python -m jobs catalogue` lists "
            "them), a program (./train.py), or a module (-m mypkg.train)",
        )
    if name.startswith("-"):
        raise Refusal(
            "no-workload",
            f"{name} comes before the workload; specify the workload or program first, as in "
            f"`submit llama2-7b {name}`",
        )
    if name in _INTERNAL_WORKLOADS:
        raise Refusal(
            "unknown-workload",
            f"{name} cannot be submitted by that name; specify the file of your program: submit "
            "./train.py",
        )
    if name in WORKLOADS:
        return WORKLOADS[name]
    names = [known for known in WORKLOADS if known not in _INTERNAL_WORKLOADS]
    submitted = {known: known for known in names}
    submitted |= {model: f"{PRETRAIN} --model {model}" for model in MODELS}
    near = nearest(name, submitted)
    hint = f"did you mean {submitted[near]!r}?" if near else did_you_mean(name, names)
    raise Refusal("unknown-workload", f"unknown workload {name!r}; {hint}; {_own_program(name)}")


def _own_program(name: str) -> str:
    """Describe how to specify the user's own program."""
    if Path(name).is_dir():
        return f"for the folder of that name, write ./{name}"
    if Path(f"{name}.py").is_file():
        return f"for the file of that name, write ./{name}.py"
    return "for a program of your own, specify its path: ./train.py"


def read_parameters(
    workload: Workload, argv: Sequence[str], assignments: Sequence[str] = ()
) -> ParameterValues:
    """Parse and validate ``--name value`` and ``--set name=value``."""
    try:
        return parse_values(workload, argv, assignments, options=OWN_OPTIONS)
    except ParameterError as error:
        raise Refusal(error.code, str(error)) from None


def run_name(name: str | None, what: str) -> str:
    """Return the validated run name, or a new one from ``what`` and the time."""
    if name is not None:
        return valid_run_name(name)
    return f"{what}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _check_size(workload: Workload, num_nodes: int) -> None:
    """Refuse a number of nodes that the workload does not support."""
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
                f"--nodes {num_nodes}: {workload.name} is one container on a CPU instance and "
                "cannot be split; omit --nodes",
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
            f"--nodes {num_nodes}: {workload.name} runs on at most "
            f"{counted(workload.max_nodes, 'node')}; submit with --nodes {workload.max_nodes}",
        )


def _check_compile(spec: SubmitSpec) -> None:
    """Refuse ``--compile`` for a job without graphs to compile in advance."""
    if spec.program is not None:
        raise Refusal(
            "nothing-to-compile",
            "--compile: the graphs of a program are not known before it runs; omit --compile "
            "(the run saves its graphs as they are compiled)",
        )
    if spec.workload.preset is None:
        raise Refusal(
            "nothing-to-compile",
            f"--compile: {spec.workload.name} has no graphs to compile in advance; omit --compile",
        )
    if spec.values.given.get("compile-only"):
        raise Refusal(
            "nothing-to-compile",
            "--compile and --compile-only are mutually exclusive: one compiles before training, "
            "the other instead of it; use one of them",
        )
    compile_run(spec.run)
