"""The options of the command line, and their validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rehearsal.deployment.containers import refuse_without_tools
from rehearsal.deployment.state import (
    EXAMPLE,
    ORCHESTRATORS,
    OptionsError,
    ProgramOptions,
    Settings,
)
from rehearsal.proofs.endings import OF_NODES, find_faults
from rehearsal.steps import batch, cluster
from rehearsal.steps import program as own
from rehearsal.steps.jobs import ALL_REDUCE, own_parameters
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.models.presets import PRESETS, PRETRAIN
from trainium_catalogue.suggest import did_you_mean

Orchestrators = Annotated[
    str | None,
    typer.Option(
        "--orchestrators",
        help="batch, eks or both: the halves to rehearse.",
        show_default="both; batch with --fault, --containers or --program",
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="The first minute alone: an all-reduce on Batch.")
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", min=1, help="Nodes of a job.", show_default="4; 2 with --quick or --program"
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes-per-node",
        min=1,
        help="Worker processes of each node.",
        show_default="1, and 2 for training",
    ),
]
InstanceType = Annotated[str, typer.Option("--instance-type", help="What is deployed for.")]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        help="all-reduce or llama-tiny on Batch, mnist or bert-tiny on EKS, program on either; "
        "repeatable.",
        show_default="all",
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", help="Inject a fault into a job of its own; repeatable, or all."),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the jobs; repeatable."),
]
Containers = Annotated[
    bool, typer.Option("--containers", help="Build the image and run the nodes in containers.")
]
ProgramFile = Annotated[
    Path | None,
    typer.Option(
        "--program",
        metavar="FILE",
        help="Rehearse this program of yours alone: run it, kill a node once a snapshot has a file "
        "of it, see it continue. Its own arguments come after --.",
    ),
]
Module = Annotated[
    str | None,
    typer.Option("--module", "-m", help="A module instead of a file, as with `python -m`."),
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Environment variable of it; repeatable."),
]
CheckpointDir = Annotated[
    str | None,
    typer.Option("--checkpoint-dir", help="Folder that the program itself saves to."),
]
Requirements = Annotated[
    Path | None,
    typer.Option("--requirements", metavar="FILE", help="What pip has to install for it."),
]
Workdir = Annotated[
    Path | None,
    typer.Option("--workdir", metavar="DIR", help="Its folder, whose files go along."),
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="GLOB", help="Files of it to take along; repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Files of it to leave out; repeatable."),
]
FaultAfter = Annotated[
    str | None,
    typer.Option(
        "--fault-after",
        metavar="GLOB",
        help="Hurt its node once a snapshot has such a file, as '*.ckpt'; otherwise any.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the receipt and nothing else.")]
Keep = Annotated[bool, typer.Option("--keep", help="Stay up after the jobs until Ctrl-C or down.")]
FolderPath = Annotated[Path, typer.Option("--folder", help="Where logs and the receipt go.")]
Addresses = Annotated[
    str, typer.Option("--addresses", help="First three parts of the nodes' loopback addresses.")
]
DEFAULT = "batch,eks"
WORKLOADS = {
    "batch": (ALL_REDUCE, batch.WORKLOAD, own.WORKLOAD),
    "eks": (*cluster.WORKLOADS, own.WORKLOAD),
}
"""Workloads of each orchestrator."""


def check(
    *,
    quick: bool = False,
    orchestrators: str | None,
    nodes: int | None,
    processes_per_node: int | None,
    instance_type: str,
    workloads: list[str] | None = None,
    faults: list[str] | None = None,
    parameters: list[str] | None = None,
    containers: bool,
    addresses: str,
    path: str,
    program: ProgramOptions | None = None,
) -> Settings:
    """Return the settings that were asked for; raise ``ValueError`` if they are not possible.

    Args:
        path: The user's PATH, searched for container tools.
    """
    if quick and (workloads or faults or orchestrators not in (None, "batch")):
        raise OptionsError(
            "--quick is an all-reduce on Batch; leave the other choices out, or --quick"
        )
    if quick:
        orchestrators, workloads = "batch", [ALL_REDUCE]
    if program is not None:
        _check_program(program, faults or (), alone=not (quick or workloads))
        workloads = [own.WORKLOAD]
    nodes = nodes or (2 if quick or program is not None else 4)
    on_batch = faults or containers or program is not None
    chosen = _orchestrators(orchestrators or ("batch" if on_batch else DEFAULT))
    known = list(dict.fromkeys(name for each in chosen for name in WORKLOADS[each]))
    for pair in parameters or ():
        if "=" not in pair:
            raise OptionsError(f"--set {pair} has no value; write --set key=value")
        if not any(own_parameters([pair], name) for name in known):
            raise OptionsError(f"--set {pair}: none of {', '.join(known)} has it")
    names = _workloads(workloads, faults if program is None else None, known)
    if set(names) & set(cluster.WORKLOADS) and nodes < cluster.TOO_MANY:
        raise OptionsError(
            f"--nodes {nodes}: the steps on the cluster need {cluster.TOO_MANY}; "
            f"give --nodes {cluster.TOO_MANY} or more"
        )
    if containers and "eks" in chosen:
        raise OptionsError(
            "--containers: pods of the cluster run as processes; give --orchestrators batch"
        )
    if containers:
        refuse_without_tools(path)
    return Settings(
        orchestrators=chosen,
        nodes=nodes,
        processes_per_node=processes_per_node or 1,
        processes_of=processes_of(program) if processes_per_node is None else {},
        instance_type=find_instance_type(instance_type).name,
        workloads=names,
        faults=find_faults(faults or ()),
        parameters=tuple(parameters or ()),
        containers=containers,
        addresses=addresses,
        program=program or EXAMPLE,
    )


def program_of(
    file: Path | None,
    argv: list[str],
    *,
    module: str | None = None,
    env: Sequence[str] = (),
    checkpoint_dir: str | None = None,
    requirements: Path | None = None,
    workdir: Path | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    fault_after: str | None = None,
) -> ProgramOptions | None:
    """Return the program that was named; refuse what is given for one that was not."""
    if file is not None and module is not None:
        raise OptionsError(f"--program {file} and -m {module} are two programs; give one of them")
    if file is not None or module is not None:
        if module is not None and workdir is None:
            workdir = Path()
        return ProgramOptions(
            file=str(file.resolve()) if file is not None else "",
            module=module,
            argv=tuple(argv),
            env=tuple(env),
            checkpoint_dir=checkpoint_dir,
            requirements=str(requirements.resolve()) if requirements is not None else None,
            workdir=str(workdir.resolve()) if workdir is not None else None,
            include=tuple(include),
            exclude=tuple(exclude),
            fault_after=fault_after or "*",
        )
    given = {
        "--env": bool(env),
        "--checkpoint-dir": checkpoint_dir is not None,
        "--requirements": requirements is not None,
        "--workdir": workdir is not None,
        "--include": bool(include),
        "--exclude": bool(exclude),
        "--fault-after": fault_after is not None,
        " ".join(argv): bool(argv),
    }
    for words, is_given in given.items():
        if is_given:
            raise OptionsError(f"{words}: for a program of yours; name it with --program FILE")
    return None


def _check_program(program: ProgramOptions, faults: Sequence[str], *, alone: bool) -> None:
    if not alone:
        raise OptionsError(
            "--program is rehearsed alone; leave --quick and --workload out, or --program"
        )
    for name in find_faults(faults):
        if name not in OF_NODES:
            raise OptionsError(
                f"--fault {name} is not for programs; with --program give {', '.join(OF_NODES)}"
            )
    for path in (program.file, program.requirements):
        if path and not Path(path).exists():
            raise OptionsError(f"{path} does not exist; name a file that does")


def usual_time(settings: Settings) -> str:
    """Describe what a rehearsal will do, and how long that takes on two idle cores."""
    first = "deploy, all-reduce, destroy: usually within a minute"
    if set(settings.workloads) == {ALL_REDUCE}:
        return f"{first}; about 10 s for every fault" if settings.faults else first
    if settings.program != EXAMPLE:
        return "deploy, run, kill a node, continue, destroy: a minute, and your program twice"
    halves = " and ".join(settings.orchestrators)
    rest = f"deploy, train on {halves}, destroy: usually two to three minutes"
    return f"{first}; then {rest}" if ALL_REDUCE in settings.workloads else rest


def processes_of(program: ProgramOptions | None = None) -> dict[str, int]:
    """Return the processes per node of the workloads that demonstrate more than one."""
    models = dict.fromkeys((*PRESETS, PRETRAIN), batch.PROCESSES_PER_NODE)
    # The example runs beside everything else, and shows nothing more on more of them.
    of_program = {own.WORKLOAD: own.PROCESSES_PER_NODE if program is not None else 1}
    return {**models, **cluster.PROCESSES_OF, **of_program}


def for_visitors(settings: Settings) -> Settings:
    """Give every workload the same number of processes: environment.sh sets only one number."""
    alike = dict.fromkeys(settings.processes_of, batch.PROCESSES_PER_NODE)
    return replace(settings, processes_of=alike)


def _orchestrators(text: str) -> tuple[str, ...]:
    """Return each orchestrator once, in the order in which they are rehearsed."""
    words = ORCHESTRATORS if text == "both" else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in ORCHESTRATORS:
            known = did_you_mean(word, (*ORCHESTRATORS, "both"))
            raise OptionsError(f"--orchestrators {text}: {word!r} is unknown; {known}")
    return tuple(name for name in ORCHESTRATORS if name in words)


def _workloads(
    workloads: list[str] | None, faults: list[str] | None, known: list[str]
) -> tuple[str, ...]:
    """Choose what to run; faults without a workload are injected into all-reduce jobs."""
    for name in workloads or ():
        if name not in known:
            raise OptionsError(f"--workload {name} is not rehearsed; {did_you_mean(name, known)}")
    chosen = workloads or ([ALL_REDUCE] if faults else known)
    if faults and ALL_REDUCE not in {*chosen} & {*known}:
        raise OptionsError(f"--fault needs --workload {ALL_REDUCE} and --orchestrators batch")
    return tuple(name for name in known if name in chosen)
