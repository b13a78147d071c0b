"""`jobs shell`: a command on a node of a running job."""

import shutil
import subprocess
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.aws import Aws
from jobs.commands.options import DeploymentOption, RegionOption, command, open_deployment
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import Job
from jobs.orchestrators import check_node_index, find_job, services_of
from jobs.output.console import note

if TYPE_CHECKING:
    from jobs.eks.service import EksService


@command
def shell(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run name.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Command to run.", show_default="a shell"),
    ] = None,
    node: Annotated[int, typer.Option("--node", metavar="I", min=0, help="Index of the node.")] = 0,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Run a command on a node of a running job, attached to this terminal.

    On EKS, it runs in the node's pod, like `kubectl exec`; on Batch, on the node's host, in an AWS
    Systems Manager session, which the deployment must allow (trainium:node_shell=true).

    Exit codes: that of the command; 2 if the request was refused.

    \b
    Examples:
      python -m jobs shell bert-1 --node 0 -- neuron-top
      python -m jobs shell bert-1 --node 1
    """
    aws, target = open_deployment(context, deployment, region)
    service, job = find_job(services_of(aws, target, note), target, run)
    check_node_index(node, job.shape)
    from jobs.eks.service import EksService  # not needed by commands for Batch

    if isinstance(service, EksService):
        return _run_in_pod(service, job, node, words or ["bash"])
    return _run_on_host(aws, target, job, node, words or [])


def running_pod(job: Job, node: int) -> str:
    """Return the name of a node's pod; refuse one that is not running."""
    pod = job.nodes[node]
    if pod.name is None or pod.status != "RUNNING":
        raise Refusal(
            "no-pod",
            f"node {node} of run {job.run} is {pod.status}, not RUNNING; see `python -m jobs "
            f"status {job.run}`",
        )
    return pod.name


def _run_in_pod(service: "EksService", job: Job, node: int, words: list[str]) -> int:
    from jobs.eks.cluster import refusing
    from jobs.eks.pod_streams import interact

    with refusing():
        return interact(service.cluster(), running_pod(job, node), words)


def _run_on_host(aws: Aws, target: Deployment, job: Job, node: int, words: list[str]) -> int:
    from jobs.batch.shell import (
        PROGRAMS,
        check_session,
        find_instance,
        missing_programs,
        session_command,
    )

    host = find_instance(aws.batch(), aws.ecs(), job, node)
    check_session(aws.managed_instances(), target, host)
    session = session_command(host, target.region, words)
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise missing_programs(session, missing)
    return subprocess.run(session).returncode
