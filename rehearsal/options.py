"""The options of the command line, and their check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rehearsal import eks_story, story
from rehearsal.containers import refuse_without_tools
from rehearsal.eks_gangs import TOO_MANY
from rehearsal.eks_scenes import PROCESSES_OF
from rehearsal.faults import find_faults
from rehearsal.state import ORCHESTRATORS, Refused, Settings
from rehearsal.submission import ALL_REDUCE, own_parameters
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.models import PRESETS
from trainium_catalogue.suggest import did_you_mean

Orchestrators = Annotated[
    str | None,
    typer.Option(
        "--orchestrators",
        help="batch, eks or both: the halves to rehearse.",
        show_default="both; batch with --fault or --containers",
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Nodes of a job.")]
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
        help="all-reduce or llama-tiny on Batch, mnist or bert-tiny on EKS; repeatable.",
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
AsJson = Annotated[bool, typer.Option("--json", help="Print the receipt and nothing else.")]
Keep = Annotated[bool, typer.Option("--keep", help="Stay up after the jobs until Ctrl-C or down.")]
FolderPath = Annotated[Path, typer.Option("--folder", help="Where logs and the receipt go.")]
Addresses = Annotated[
    str, typer.Option("--addresses", help="First three parts of the nodes' loopback addresses.")
]
DEFAULT = "batch,eks"
STORIES = {
    "batch": (ALL_REDUCE, story.WORKLOAD),
    "eks": eks_story.WORKLOADS,
}
"""What is run on each orchestrator."""


def check(
    *,
    orchestrators: str | None,
    nodes: int,
    processes_per_node: int | None,
    instance_type: str,
    workloads: list[str] | None = None,
    faults: list[str] | None = None,
    parameters: list[str] | None = None,
    containers: bool,
    addresses: str,
    path: str,
) -> Settings:
    """What was asked for; raises ``ValueError`` for what cannot be.

    Args:
        path: The user's PATH, where tools for containers are looked for.
    """
    chosen = _orchestrators(orchestrators or ("batch" if faults or containers else DEFAULT))
    known = [name for orchestrator in chosen for name in STORIES[orchestrator]]
    for pair in parameters or ():
        if "=" not in pair:
            raise Refused(f"--set {pair} has no value; write --set key=value")
        if not any(own_parameters([pair], name) for name in known):
            raise Refused(f"--set {pair}: none of {', '.join(known)} has it")
    if "eks" in chosen and nodes < TOO_MANY:
        raise Refused(
            f"--nodes {nodes}: the cluster's story needs {TOO_MANY}; "
            f"give --nodes {TOO_MANY} or more"
        )
    if containers and "eks" in chosen:
        raise Refused(
            "--containers: pods of the cluster run as processes; give --orchestrators batch"
        )
    if containers:
        refuse_without_tools(path)
    return Settings(
        orchestrators=chosen,
        nodes=nodes,
        processes_per_node=processes_per_node or 1,
        processes_of=processes_of() if processes_per_node is None else {},
        instance_type=find_instance_type(instance_type).name,
        workloads=_stories(workloads, faults, known),
        faults=find_faults(faults or ()),
        parameters=tuple(parameters or ()),
        containers=containers,
        addresses=addresses,
    )


def processes_of() -> dict[str, int]:
    """Processes per node of workloads that are to show more than one."""
    models = dict.fromkeys(PRESETS, story.PROCESSES_PER_NODE)
    return {**models, **PROCESSES_OF}


def for_visitors(settings: Settings) -> Settings:
    """Every workload with as many processes: environment.sh tells the helper one number."""
    alike = dict.fromkeys(settings.processes_of, story.PROCESSES_PER_NODE)
    return replace(settings, processes_of=alike)


def _orchestrators(text: str) -> tuple[str, ...]:
    """Each once, in the order in which they are rehearsed."""
    words = ORCHESTRATORS if text == "both" else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in ORCHESTRATORS:
            known = did_you_mean(word, (*ORCHESTRATORS, "both"))
            raise Refused(f"--orchestrators {text}: {word!r} is unknown; {known}")
    return tuple(name for name in ORCHESTRATORS if name in words)


def _stories(
    workloads: list[str] | None, faults: list[str] | None, known: list[str]
) -> tuple[str, ...]:
    """What to run; faults alone are injected into all-reduce jobs."""
    for name in workloads or ():
        if name not in known:
            raise Refused(f"--workload {name} is not rehearsed; {did_you_mean(name, known)}")
    chosen = workloads or ([ALL_REDUCE] if faults else known)
    if faults and ALL_REDUCE not in {*chosen} & {*known}:
        raise Refused(f"--fault needs --workload {ALL_REDUCE} and --orchestrators batch")
    return tuple(name for name in known if name in chosen)
