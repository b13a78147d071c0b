"""What every command shares: its options, its exit codes and how it refuses."""

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec

import typer

from jobs import errors
from jobs.batch.runs import Job
from jobs.deployment import Deployment
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT

P = ParamSpec("P")

DeploymentOption = Annotated[
    str | None,
    typer.Option("--deployment", help="Deployment to use.", show_default=False),
]
RegionOption = Annotated[
    str | None,
    typer.Option("--region", help="AWS region of the deployment.", show_default=False),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.")
]


@dataclass(slots=True)
class Globals:
    """Options given before the command."""

    deployment: str = DEFAULT_DEPLOYMENT
    region: str | None = None
    processes_per_node: int | None = None
    """Of a rehearsal, in place of the instance type's."""


def chosen(context: typer.Context, deployment: str | None, region: str | None) -> Globals:
    """Merge the options given before and after the command; the latter win."""
    given = context.ensure_object(Globals)
    return Globals(
        deployment=deployment or given.deployment,
        region=region or given.region,
        processes_per_node=given.processes_per_node,
    )


def command(function: Callable[P, int]) -> Callable[P, None]:
    """Give a command its exit code, and turn refusals and AWS's errors into one message."""

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
            if "botocore" not in sys.modules:
                raise
            mapped = errors.from_aws(error, region=region)
            if mapped is None and "kubernetes" in sys.modules:
                from jobs.eks.errors import from_kubernetes

                mapped = from_kubernetes(error)
            if mapped is None:
                raise
            code = refuse(mapped, as_json=bool(kwargs.get("as_json")))
        raise typer.Exit(code)

    return run


def refuse(refusal: errors.Refusal, *, as_json: bool) -> int:
    """Say why, on standard error, and return the exit code."""
    if as_json:
        from jobs.output.documents import refused_document

        print_document(refused_document(refusal.code, refusal.message))
    note(f"refused: {refusal.message}")
    return errors.EXIT_REFUSED


def print_document(document: dict[str, Any]) -> None:
    """Print the one document of ``--json``."""
    typer.echo(json.dumps(document, indent=2))


def note(text: str) -> None:
    """Say something to a person: on standard error, so that output can be piped."""
    typer.echo(text, err=True)


def exit_code(job: Job) -> int:
    """1 when the job ended and did not succeed, else 0."""
    return errors.EXIT_JOB_FAILED if job.ended and not job.succeeded else errors.EXIT_OK


def follow_command(deployment: Deployment, run: str) -> str:
    """The command that follows a run again."""
    return f"{_helper(deployment)} logs {run} --follow"


def status_command(deployment: Deployment, run: str) -> str:
    """The command that says how a run stands, or ended."""
    return f"{_helper(deployment)} status {run}"


def _helper(deployment: Deployment) -> str:
    """`python -m jobs` with the options that find the deployment."""
    name = "" if deployment.name == DEFAULT_DEPLOYMENT else f" --deployment {deployment.name}"
    region = f" --region {deployment.region}" if deployment.region else ""
    return f"python -m jobs{name}{region}"
