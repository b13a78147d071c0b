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
    RehearsedProgram,
    Settings,
)
from rehearsal.proofs.endings import NODE_FAULTS, find_faults
from rehearsal.steps import batch, cluster
from rehearsal.steps import program as own_program
from rehearsal.steps.jobs import ALL_REDUCE, own_parameters
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.models.presets import PRESETS, PRETRAIN
from trainium_catalogue.releases import DEFAULT_RELEASE, NeuronRelease, TorchBackend, find_release
from trainium_catalogue.suggest import did_you_mean

Orchestrators = Annotated[
    str | None,
    typer.Option(
        "--orchestrators",
        help="Orchestrators to rehearse: batch, eks or both.",
        show_default="both; batch with --fault, --containers or --program",
    ),
]
OrchestratorsOfUp = Annotated[
    str | None,
    typer.Option(
        "--orchestrators",
        help="Orchestrators to deploy: batch, eks or both.",
        show_default="both; batch with --containers",
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Run only the first part, an all-reduce on Batch.")
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=1,
        help="Number of nodes per job.",
        show_default="4; 2 with --quick or --program",
    ),
]
NodesOfUp = Annotated[
    int | None,
    typer.Option("--nodes", min=1, help="Maximum number of nodes per job.", show_default="4"),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes-per-node",
        min=1,
        help="Number of worker processes per node.",
        show_default="1; 2 for training",
    ),
]
InstanceType = Annotated[str, typer.Option("--instance-type", help="Instance type to deploy for.")]
Release = Annotated[
    str,
    typer.Option(
        "--neuron-release",
        help="Neuron release to deploy; with a TorchNeuron release and a trn2 type, nodes train "
        "on an emulated device.",
    ),
]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        help="Workload to run: all-reduce or llama-tiny on Batch, mnist or bert-tiny on EKS, "
        "program on either; repeatable.",
        show_default="all",
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault", help="Name of a fault to inject into a separate job, or `all`; repeatable."
    ),
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
        help="Rehearse only your own program: run it, kill a node once a snapshot contains one of "
        "its files, and check that it resumes. Arguments after -- are passed to it.",
    ),
]
Module = Annotated[
    str | None,
    typer.Option("--module", "-m", help="Module to run instead of a file, as with `python -m`."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", metavar="NAME=VALUE", help="Environment variable of the program; repeatable."
    ),
]
CheckpointDir = Annotated[
    str | None,
    typer.Option("--checkpoint-dir", help="Folder that the program itself saves to."),
]
Requirements = Annotated[
    Path | None,
    typer.Option("--requirements", metavar="FILE", help="Requirements file of the program."),
]
Workdir = Annotated[
    Path | None,
    typer.Option("--workdir", metavar="DIR", help="Folder of the program, whose files are packed."),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="GLOB",
        help="Files to pack even if git ignores them or they look like credentials; repeatable.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="Files to exclude; repeatable."),
]
FaultAfter = Annotated[
    str | None,
    typer.Option(
        "--fault-after",
        metavar="GLOB",
        help="Inject the fault once a snapshot contains a matching file, such as '*.ckpt'; by "
        "default any file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")]
Keep = Annotated[
    bool,
    typer.Option("--keep", help="Keep the deployment up after the jobs, until Ctrl-C or `down`."),
]
FolderPath = Annotated[Path, typer.Option("--folder", help="Folder for logs and receipt.")]
Addresses = Annotated[
    str, typer.Option("--addresses", help="First three octets of the nodes' loopback addresses.")
]
DEFAULT = "batch,eks"
WORKLOADS = {
    "batch": (ALL_REDUCE, batch.WORKLOAD, own_program.WORKLOAD),
    "eks": (*cluster.WORKLOADS, own_program.WORKLOAD),
}
"""Workloads of each orchestrator."""


def check(
    *,
    quick: bool = False,
    orchestrators: str | None,
    nodes: int | None,
    processes_per_node: int | None,
    instance_type: str,
    neuron_release: str = DEFAULT_RELEASE,
    workloads: list[str] | None = None,
    faults: list[str] | None = None,
    parameters: list[str] | None = None,
    containers: bool,
    addresses: str,
    path: str,
    program: RehearsedProgram | None = None,
) -> Settings:
    """Validate the options; raise ``ValueError`` if they are invalid.

    Args:
        path: The user's PATH, searched for container tools.
    """
    if quick and (workloads or faults or orchestrators not in (None, "batch")):
        raise OptionsError(
            "--quick runs only an all-reduce on Batch; omit the other options, or omit --quick"
        )
    if quick:
        orchestrators, workloads = "batch", [ALL_REDUCE]
    if program is not None:
        _check_program(program, faults or (), alone=not (quick or workloads))
        workloads = [own_program.WORKLOAD]
    nodes = nodes or (2 if quick or program is not None else 4)
    release = _release(neuron_release, containers=containers)
    is_neuron = release.backend is TorchBackend.TORCH_NEURON
    on_batch = faults or containers or program is not None or is_neuron
    chosen = _orchestrators(orchestrators or ("batch" if on_batch else DEFAULT))
    known = list(dict.fromkeys(name for each in chosen for name in WORKLOADS[each]))
    for pair in parameters or ():
        if "=" not in pair:
            raise OptionsError(f"--set {pair} has no value; write --set key=value")
        if not any(own_parameters([pair], name) for name in (*known, batch.VERIFY)):
            raise OptionsError(
                f"--set {pair}: none of {', '.join(known)} has this parameter; check its name"
            )
    names = _workloads(workloads, faults if program is None else None, known)
    if set(names) & set(cluster.WORKLOADS) and nodes < cluster.TOO_MANY:
        raise OptionsError(
            f"--nodes {nodes}: the steps on the cluster need {cluster.TOO_MANY}; pass --nodes "
            f"{cluster.TOO_MANY} or more"
        )
    if containers and "eks" in chosen:
        raise OptionsError(
            "--containers: pods of the cluster run as processes; pass --orchestrators batch"
        )
    if containers:
        refuse_without_tools(path)
    return Settings(
        orchestrators=chosen,
        nodes=nodes,
        processes_per_node=processes_per_node or 1,
        processes_of=processes_of(program) if processes_per_node is None else {},
        instance_type=find_instance_type(instance_type).name,
        neuron_release=release.name,
        workloads=names,
        faults=find_faults(faults or ()),
        parameters=tuple(parameters or ()),
        containers=containers,
        addresses=addresses,
        program=program or EXAMPLE,
    )


def _release(name: str, *, containers: bool) -> NeuronRelease:
    release = find_release(name)
    if containers and release.backend is TorchBackend.TORCH_NEURON:
        raise OptionsError(
            f"--containers: no image contains the emulated device of --neuron-release {name}; omit "
            "either option"
        )
    return release


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
) -> RehearsedProgram | None:
    """Return the program that the options name, if any; without one, refuse the other options."""
    if file is not None and module is not None:
        raise OptionsError(f"--program {file} and -m {module} are two programs; pass one of them")
    if file is not None or module is not None:
        if module is not None and workdir is None:
            workdir = Path()
        return RehearsedProgram(
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
    own_options = {
        "--env": bool(env),
        "--checkpoint-dir": checkpoint_dir is not None,
        "--requirements": requirements is not None,
        "--workdir": workdir is not None,
        "--include": bool(include),
        "--exclude": bool(exclude),
        "--fault-after": fault_after is not None,
        " ".join(argv): bool(argv),
    }
    for option, is_set in own_options.items():
        if is_set:
            raise OptionsError(
                f"{option} requires a program of your own; specify one with --program FILE "
                "or --module NAME"
            )
    return None


def _check_program(program: RehearsedProgram, faults: Sequence[str], *, alone: bool) -> None:
    if not alone:
        raise OptionsError(
            "--program cannot be combined with --quick or --workload; omit them, or omit --program"
        )
    for name in find_faults(faults):
        if name not in NODE_FAULTS:
            raise OptionsError(
                f"--fault {name} does not apply to programs; with --program, choose one of "
                f"{', '.join(NODE_FAULTS)}"
            )
    for path in (program.file, program.requirements):
        if path and not Path(path).exists():
            raise OptionsError(f"{path} does not exist; specify an existing file")


def usual_time(settings: Settings) -> str:
    """Describe a rehearsal's steps, and its duration on two idle cores."""
    first = "deploy, all-reduce, destroy: usually within a minute"
    if set(settings.workloads) == {ALL_REDUCE}:
        return f"{first}; about 10 s for every fault" if settings.faults else first
    if settings.program != EXAMPLE:
        return "deploy, run, kill a node, resume, destroy: a minute, plus your program twice"
    halves = " and ".join(settings.orchestrators)
    rest = f"deploy, train on {halves}, destroy: usually two to three minutes"
    return f"{first}; then {rest}" if ALL_REDUCE in settings.workloads else rest


def processes_of(program: RehearsedProgram | None = None) -> dict[str, int]:
    """Return the processes per node of workloads that use more than one."""
    models = dict.fromkeys((*PRESETS, PRETRAIN), batch.PROCESSES_PER_NODE)
    # The example runs concurrently with everything else; more processes would prove nothing more.
    of_program = {own_program.WORKLOAD: 1 if program is None else own_program.PROCESSES_PER_NODE}
    return {**models, **cluster.PROCESSES_OF, **of_program}


def for_manual_jobs(settings: Settings) -> Settings:
    """Use the same number of processes for every workload, because environment.sh sets only one."""
    uniform = dict.fromkeys(settings.processes_of, batch.PROCESSES_PER_NODE)
    return replace(settings, processes_of=uniform)


def _orchestrators(text: str) -> tuple[str, ...]:
    """Return the orchestrators without duplicates, in rehearsal order."""
    names = ORCHESTRATORS if text == "both" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ORCHESTRATORS:
            known = did_you_mean(name, (*ORCHESTRATORS, "both"))
            raise OptionsError(f"--orchestrators {text}: {name!r} is unknown; {known}")
    return tuple(name for name in ORCHESTRATORS if name in names)


def _workloads(
    workloads: list[str] | None, faults: list[str] | None, known: list[str]
) -> tuple[str, ...]:
    """Choose the workloads; faults without a workload are injected into all-reduce jobs."""
    for name in workloads or ():
        if name not in known:
            raise OptionsError(f"--workload {name} is not rehearsed; {did_you_mean(name, known)}")
    chosen = workloads or ([ALL_REDUCE] if faults else known)
    if faults and ALL_REDUCE not in {*chosen} & {*known}:
        raise OptionsError(f"--fault needs --workload {ALL_REDUCE} and --orchestrators batch")
    return tuple(name for name in known if name in chosen)
