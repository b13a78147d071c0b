"""`jobs kubeconfig`: let kubectl and torchx into the deployment's cluster."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.cluster import eks_deployment
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    note,
    print_document,
)
from jobs.errors import EXIT_OK

_DEFAULT = "~/.kube/config"


@command
def kubeconfig(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Option(
            "--kubeconfig",
            envvar="KUBECONFIG",
            metavar="FILE",
            help="File to write into; of a list, its first.",
        ),
    ] = _DEFAULT,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Write a context of the deployment's cluster, and make it the current one.

    So does `aws eks update-kubeconfig`. The command says which was current before, and how to go
    back to it.

    kubectl and torchx then call `python -m jobs token` for credentials: the AWS settings that are
    in force when they are called decide. What else is in the file stays.

    \b
    Examples:
      python -m jobs kubeconfig
      kubectl get pods,vcjob
    """
    from jobs.eks.cluster import read_endpoint
    from jobs.eks.kubeconfig import context_name, entries, write

    given = chosen(context, deployment, region)
    aws, target, eks = eks_deployment(given, "a kubeconfig")
    endpoint = read_endpoint(aws, eks.cluster)
    first = next((part for part in path.split(":") if part), _DEFAULT)
    file = Path(first).expanduser()
    before = write(file, entries(target, endpoint, aws))
    name = context_name(target)
    note(
        f"context {name} of cluster {eks.cluster}, namespace {eks.namespace}, is in {file}, and "
        "the current one"
    )
    if before not in (None, name):
        back = f"--kubeconfig {shlex.quote(str(file))} use-context {shlex.quote(str(before))}"
        note(f"current context was: {before}; go back to it with: kubectl config {back}")
    if as_json:
        print_document(
            {
                "deployment": target.name,
                "region": target.region,
                "kubeconfig": str(file),
                "context": name,
                "context_before": before,
                "cluster": eks.cluster,
                "namespace": eks.namespace,
                "server": endpoint.url,
            }
        )
    return EXIT_OK
