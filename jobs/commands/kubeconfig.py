"""`jobs kubeconfig` and `jobs token`: access to the deployment's cluster for kubectl and torchx."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.aws import Aws
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    eks_deployment,
    given_path,
)
from jobs.deployment import Deployment, OfDeployment
from jobs.errors import EXIT_OK, Refusal
from jobs.output.console import note, print_document

if TYPE_CHECKING:
    from jobs.eks.cluster import Endpoint

_DEFAULT = "~/.kube/config"
Json = dict[str, Any]
_ROOT = Path(__file__).resolve().parents[2]
"""Folder to run `python -m jobs` in, since kubectl may be called from any."""


def first_of_list(text: str) -> Path:
    """Parse a list of files, as KUBECONFIG has it; return its first."""
    return given_path(next(filter(None, str(text).split(":")), ""))


@command
def kubeconfig(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Option(
            "--kubeconfig",
            parser=first_of_list,
            envvar="KUBECONFIG",
            metavar="FILE",
            help="File to write into; of a list, its first.",
        ),
    ] = Path(_DEFAULT),
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

    given = chosen(context, deployment, region)
    aws, target, eks = eks_deployment(given, "a kubeconfig")
    endpoint = read_endpoint(aws, eks.cluster)
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
            KubeconfigDocument(
                deployment=target.name,
                region=target.region,
                kubeconfig=str(file),
                context=name,
                context_before=before,
                cluster=eks.cluster,
                namespace=eks.namespace,
                server=endpoint.url,
            )
        )
    return EXIT_OK


@command
def token(
    context: typer.Context,
    cluster: Annotated[str, typer.Argument(help="Name of the EKS cluster.")],
    region: RegionOption = None,
) -> int:
    """Print an ExecCredential for one cluster; kubectl calls this."""
    from jobs.eks.cluster import exec_credential, make_token

    aws = Aws(chosen(context, None, region).region)
    print_document(exec_credential(make_token(aws, cluster), now=datetime.now(UTC)))
    return EXIT_OK


@dataclass(frozen=True, kw_only=True)
class KubeconfigDocument(OfDeployment):
    """The context that was written."""

    kubeconfig: str
    """File that was written."""
    context: str
    """The current one from now on."""
    context_before: str | None
    """The current one before; null where there was none."""
    cluster: str
    """Name of the EKS cluster."""
    namespace: str
    server: str
    """Address of the API server."""


def context_name(deployment: Deployment) -> str:
    """Build the name shared by context, cluster and user."""
    return f"trainium-{deployment.name}"


def entries(deployment: Deployment, endpoint: "Endpoint", aws: Aws) -> Json:
    """Build a deployment's kubeconfig entries."""
    assert deployment.eks is not None
    name = context_name(deployment)
    cluster = {"server": endpoint.url}
    if endpoint.certificate:
        cluster["certificate-authority-data"] = endpoint.certificate
    profile = [{"name": "AWS_PROFILE", "value": aws.profile}] if aws.profile else []
    command = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": sys.executable,
        "args": ["-m", "jobs", "--region", deployment.region, "token", endpoint.name],
        "env": [{"name": "PYTHONPATH", "value": str(_ROOT)}, *profile],
        "interactiveMode": "Never",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": command}}],
        "contexts": [
            {
                "name": name,
                # torchx lists and watches jobs in the context's namespace.
                "context": {
                    "cluster": name,
                    "user": name,
                    "namespace": deployment.eks.namespace,
                },
            }
        ],
        "current-context": name,
    }


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """Return ``old`` with the entries of ``new``, which replace those with the same names."""
    result: Json = {**old, **{key: value for key, value in new.items() if isinstance(value, str)}}
    for section in ("clusters", "users", "contexts"):
        names = {item["name"] for item in new[section]}
        kept = [item for item in old.get(section) or () if item.get("name") not in names]
        result[section] = [*kept, *new[section]]
    return result


def write(path: Path, new: Mapping[str, Any]) -> str | None:
    """Merge into the file, readable only by its owner; refuse a file that is not a kubeconfig.

    Returns the previous current context.
    """
    import yaml

    old: Any = {}
    if path.exists():
        try:
            old = yaml.safe_load(path.read_text()) or {}
        except (yaml.YAMLError, UnicodeDecodeError):
            old = None
    if not isinstance(old, dict):
        raise Refusal(
            "not-a-kubeconfig",
            f"{path} is no kubeconfig, and would be lost; give another with --kubeconfig",
        )
    before = old.get("current-context") or None
    # A symbolic link, to a dotfiles folder for example, stays one.
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.touch(mode=0o600)
    partial.write_text(yaml.safe_dump(merged(old, new), sort_keys=False))
    partial.replace(path)
    return before
