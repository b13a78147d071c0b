"""Common parts of all commands: options, exit codes and refusals."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from jobs import errors
from jobs.aws import Aws
from jobs.deployment import Deployment, EksTarget, read_deployment
from jobs.errors import Refusal
from jobs.output.console import note, print_document
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT, Orchestrator

if TYPE_CHECKING:
    from jobs.eks.service import EksService

P = ParamSpec("P")
PROGRAM_ARGV = "jobs.submit.program_argv"
"""Context key of the program's arguments; its value is None without ``--``."""
DeploymentOption = Annotated[
    str | None,
    typer.Option("--deployment", help="Deployment to use.", show_default=False),
]
RegionOption = Annotated[
    str | None,
    typer.Option("--region", help="AWS region of the deployment.", show_default=False),
]
MaxUsdOption = Annotated[
    float | None,
    typer.Option(
        "--max-usd",
        metavar="USD",
        help="Refuse a submission that can cost more than this, including retries and billed "
        "waiting time.",
        show_default="the deployment's max_cost_per_job_usd",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.")
]


def parse_path(text: str) -> Path:
    """Parse a local path."""
    if not text:
        # pathlib would read it as the current folder.
        raise typer.BadParameter(
            "'' is not a path; specify a file or folder, or . for the current folder"
        )
    try:
        # A shell expands neither --to=~/x nor '~/x', and removing a folder named ~ is dangerous.
        return Path(text).expanduser()
    except RuntimeError:
        raise typer.BadParameter(
            f"{text!r} begins with the home folder of an unknown user; write the full path"
        ) from None


parse_path.__name__ = "local path"  # shown by --help as the type of an argument


WorkdirOption = Annotated[
    Path | None,
    typer.Option("--workdir", parser=parse_path, metavar="DIR", help="Folder of your program."),
]
AssignmentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="The same as --KEY VALUE, for scripts; repeatable."
    ),
]


@dataclass(slots=True)
class Globals:
    """Global options, before the command."""

    deployment: str = DEFAULT_DEPLOYMENT
    region: str | None = None
    processes_per_node: int | None = None
    """Processes per node of a rehearsal, instead of the instance type's."""


def global_options(context: typer.Context, deployment: str | None, region: str | None) -> Globals:
    """Merge the global options with those after the command, which take precedence."""
    given = context.ensure_object(Globals)
    return Globals(
        deployment=deployment or given.deployment,
        region=region or given.region,
        processes_per_node=given.processes_per_node,
    )


def is_deployment_given(context: typer.Context, deployment: str | None) -> bool:
    """Return whether a deployment is named on the command line or in the environment."""
    if deployment is not None:
        return True
    if context.parent is None:
        return False
    before = context.parent.get_parameter_source("deployment")
    return before is not None and before.name != "DEFAULT"


def open_deployment(
    context: typer.Context, deployment: str | None, region: str | None
) -> tuple[Aws, Deployment]:
    """Read the deployment that the options name."""
    return _open(global_options(context, deployment, region))


def _open(given: Globals) -> tuple[Aws, Deployment]:
    aws = Aws(given.region)
    return aws, read_deployment(aws.ssm(), given.deployment, region=aws.region)


def command(function: Callable[P, int]) -> Callable[P, None]:
    """Make a command exit with its code, and turn refusals and other errors into one message.

    Other errors are those of AWS, the cluster and the file system.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        context: Any = kwargs["context"]
        region: Any = kwargs.get("region") or context.ensure_object(Globals).region
        try:
            code = function(*args, **kwargs)
        except KeyboardInterrupt:
            code = errors.EXIT_INTERRUPTED
        except errors.Refusal as refusal:
            code = refuse(refusal, as_json=bool(kwargs.get("as_json")))
        except Exception as error:
            mapped = _as_refusal(error, region)
            if mapped is None:
                raise
            code = refuse(mapped, as_json=bool(kwargs.get("as_json")))
        raise typer.Exit(code)

    return run


def _as_refusal(error: Exception, region: str | None) -> Refusal | None:
    """Turn an error from AWS, the cluster or the file system into a refusal; None for a defect."""
    mapped = None
    if "botocore" in sys.modules:
        mapped = errors.from_aws(error, region=region)
    if mapped is None and "kubernetes" in sys.modules:
        from jobs.eks.cluster import from_kubernetes

        mapped = from_kubernetes(error)
    if mapped is None and isinstance(error, OSError):
        mapped = errors.from_system(error)
    return mapped


def refuse(refusal: errors.Refusal, *, as_json: bool) -> int:
    """Print the refusal, and return its exit code."""
    if as_json:
        from jobs.output.documents import RefusalDocument

        print_document(RefusalDocument(refused=refusal.code, message=refusal.message))
    note(f"refused: {refusal.message}")
    return errors.EXIT_REFUSED


def eks_deployment(
    given: Globals, what: str, *, instead: str = ""
) -> tuple[Aws, Deployment, EksTarget]:
    """Read the deployment; refuse one without a cluster, appending ``instead`` to the message."""
    aws, target = _open(given)
    if Orchestrator.EKS in target.unusable:
        raise target.unusable[Orchestrator.EKS]
    if target.eks is None:
        raise Refusal(
            "no-eks",
            f"{what} needs a cluster, but deployment {target.name!r} has none; deploy one with "
            f"{target.redeploy(orchestrators='batch,eks')}{instead}",
        )
    return aws, target, target.eks


def eks_service(given: Globals, what: str, *, instead: str = "") -> "EksService":
    """Open the deployment's cluster."""
    from jobs.eks.service import EksService  # not needed by commands for Batch

    aws, target, _ = eks_deployment(given, what, instead=instead)
    return EksService(aws, target)
