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
    command,
    eks_deployment,
    global_options,
    parse_path,
)
from jobs.deployment import Deployment, DeploymentFields
from jobs.errors import EXIT_OK, Refusal
from jobs.output.console import note, print_document

if TYPE_CHECKING:
    from jobs.eks.cluster import Endpoint

_DEFAULT = "~/.kube/config"
Json = dict[str, Any]
_ROOT = Path(__file__).resolve().parents[2]
"""Folder that contains the ``jobs`` package; kubectl can run in any folder."""


def parse_path_list(text: str) -> Path:
    """Parse a colon-separated list of files, as in KUBECONFIG; return the first."""
    return parse_path(next(filter(None, str(text).split(":")), ""))


@command
def kubeconfig(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Option(
            "--kubeconfig",
            parser=parse_path_list,
            envvar="KUBECONFIG",
            metavar="FILE",
            help="File to write to; if several are listed, the first.",
        ),
    ] = Path(_DEFAULT),
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Add the deployment's cluster to your kubeconfig, and make it the current context.

    Works like `aws eks update-kubeconfig`. Prints the previous context, and the command to switch
    back to it.

    kubectl and torchx then call `python -m jobs token` for credentials, with the deployment's
    region and the AWS profile in use now, if one is set; other AWS settings are those in effect at
    each call. Other entries in the file are kept.

    \b
    Examples:
      python -m jobs kubeconfig
      kubectl get pods,vcjob
    """
    from jobs.eks.cluster import read_endpoint

    options = global_options(context, deployment, region)
    aws, target, eks = eks_deployment(options, "a kubeconfig")
    endpoint = read_endpoint(aws, eks.cluster)
    before = write(file, entries(target, endpoint, aws))
    name = context_name(target)
    note(
        f"added context {name} of cluster {eks.cluster}, namespace {eks.namespace}, to {file}, "
        "and made it the current context"
    )
    if before not in (None, name):
        back = f"--kubeconfig {shlex.quote(str(file))} use-context {shlex.quote(str(before))}"
        note(f"previous context: {before}; switch back with: kubectl config {back}")
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
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of the EKS cluster.")],
    region: RegionOption = None,
) -> int:
    """Print an ExecCredential for one cluster, for kubectl."""
    from jobs.eks.cluster import exec_credential, make_token

    aws = Aws(global_options(context, None, region).region)
    print_document(exec_credential(make_token(aws, cluster), now=datetime.now(UTC)))
    return EXIT_OK


@dataclass(frozen=True, kw_only=True)
class KubeconfigDocument(DeploymentFields):
    """The new kubeconfig context."""

    kubeconfig: str
    """Path of the file."""
    context: str
    """The new current context."""
    context_before: str | None
    """The previous current context; null if there was none."""
    cluster: str
    """Name of the EKS cluster."""
    namespace: str
    server: str
    """Address of the API server."""


def context_name(deployment: Deployment) -> str:
    """Return the name of a deployment's context, which is also that of its cluster and user."""
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
    """Return ``old`` with the entries of ``new``, replacing entries of the same name."""
    result: Json = {**old, **{key: value for key, value in new.items() if isinstance(value, str)}}
    for section in ("clusters", "users", "contexts"):
        names = {item["name"] for item in new[section]}
        kept = [item for item in old.get(section) or () if item.get("name") not in names]
        result[section] = [*kept, *new[section]]
    return result


def write(path: Path, new: Mapping[str, Any]) -> str | None:
    """Merge ``new`` into a kubeconfig, or create one; return the previous current context.

    The file becomes readable only by its owner. A file that is not a kubeconfig is refused.
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
            f"{path} exists and is not a kubeconfig; specify another file with --kubeconfig",
        )
    before = old.get("current-context") or None
    # Keep a symbolic link, for example into a dotfiles folder.
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.touch(mode=0o600)
    partial.write_text(yaml.safe_dump(merged(old, new), sort_keys=False))
    partial.replace(path)
    return before
