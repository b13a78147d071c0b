"""`jobs check-deploy`: what the next `cdk deploy` would end, replace or leave behind."""

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.aws import Aws
from jobs.commands.options import (
    DeploymentOption,
    Globals,
    JsonOption,
    RegionOption,
    chosen,
    command,
    given_path,
)
from jobs.errors import EXIT_OK, as_refusal
from jobs.output.console import note, print_document

if TYPE_CHECKING:
    from jobs.deploy_check.account import ActiveJob, Stack
    from jobs.deploy_check.assembly import Assembly
    from jobs.deploy_check.changes import Update
    from jobs.deploy_check.findings import DeployFinding, StackAction

EXIT_FOUND = 1
"""Exit code if there are findings to read before deploying."""


@command
def check_deploy(
    context: typer.Context,
    assembly: Annotated[
        Path,
        typer.Option(
            "--assembly", parser=given_path, metavar="DIR", help="What `cdk synth` wrote."
        ),
    ] = Path("cdk.out"),
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Say what the next `cdk deploy --all` would do to jobs and data that are there.

    Compares the templates of an assembly with those that are deployed, and asks Batch and the
    cluster for jobs: which would end and when, what would be replaced and lost, which stacks would
    be left behind, and what CloudFormation would refuse. It changes nothing.

    Exit codes: 0 nothing ends, is lost or stays; 1 something to read first; 2 refused.

    \b
    Examples:
      cdk synth --quiet -c trainium:max_nodes=8
      python -m jobs check-deploy && cdk deploy --all --app cdk.out
    """
    from jobs.deploy_check.account import BatchJobs, read_stacks
    from jobs.deploy_check.assembly import read_assembly
    from jobs.deploy_check.changes import Update
    from jobs.deploy_check.findings import HARMLESS, Running, find_all
    from jobs.deploy_check.replacements import read_replacements

    given = chosen(context, deployment, region)
    aws = Aws(given.region)
    planned = read_assembly(assembly, deployment=given.deployment, region=aws.region)
    replacements = read_replacements()
    stacks = read_stacks(aws.cloudformation(), given.deployment)
    update = Update(
        {name: stack.template for name, stack in stacks.items()}, planned.templates, replacements
    )
    found = find_all(
        update,
        stacks=stacks,
        assembly=planned,
        running=Running(
            batch=BatchJobs(aws.batch()),
            cluster=cache(lambda: _jobs_on_cluster(aws, given)),
            now_s=time.time(),
        ),
        replacements=replacements,
    )
    if planned.newer is not None:
        note(
            f"{planned.newer} was changed after {planned.folder} was made, so this may not be what "
            f"you deploy; renew it with `{planned.synth_command}` and the -c settings"
        )
    if as_json:
        print_document(_document(given, aws, planned, stacks, update, found))
    else:
        _show(planned, stacks, update, found)
    grave = any(finding.kind not in HARMLESS for finding in found)
    return EXIT_FOUND if grave else EXIT_OK


def _jobs_on_cluster(aws: Aws, given: Globals) -> "list[ActiveJob] | None":
    """List unfinished jobs on the deployment's cluster; None if it does not answer."""
    from jobs.deploy_check.account import ActiveJob
    from jobs.deployment import read_deployment
    from jobs.eks.service import EksService

    try:
        target = read_deployment(aws.ssm(), given.deployment, region=aws.region)
        runs = EksService(aws, target).runs()
    except Exception as error:
        refusal = as_refusal(error, region=aws.region)
        if refusal is None:
            raise
        note(f"jobs on the cluster are not known: {refusal.message}")
        return None
    return [ActiveJob(summary=run, limit_s=None) for run in runs if not run.ended]


def _actions(
    planned: "Assembly", stacks: "dict[str, Stack]", update: "Update"
) -> "dict[str, StackAction]":
    """Name the outcome for each stack."""
    changed = {change.stack for change in update.changes()}
    actions: dict[str, StackAction] = {
        name: "create" if name not in stacks else "update" if name in changed else "unchanged"
        for name in planned.templates
    }
    return {**actions, **{name: "left-behind" for name in stacks if name not in actions}}


def _document(
    given: Globals,
    aws: Aws,
    planned: "Assembly",
    stacks: "dict[str, Stack]",
    update: "Update",
    found: "list[DeployFinding]",
) -> object:
    from jobs.deploy_check.findings import DeployChange, DeployDocument, DeployStack

    changes = update.changes()
    return DeployDocument(
        deployment=given.deployment,
        region=aws.region,
        assembly=str(planned.folder),
        newer_source=planned.newer,
        stacks=tuple(
            DeployStack(
                name=name,
                action=action,
                changes=tuple(
                    DeployChange(
                        resource=change.logical_id,
                        type=change.resource_type,
                        fate=change.fate,
                        because=tuple(change.reasons),
                    )
                    for change in changes
                    if change.stack == name
                ),
            )
            for name, action in _actions(planned, stacks, update).items()
        ),
        findings=tuple(found),
    )


def _show(
    planned: "Assembly",
    stacks: "dict[str, Stack]",
    update: "Update",
    found: "list[DeployFinding]",
) -> None:
    from rich.table import Table
    from rich.text import Text

    from jobs.deploy_check.changes import Fate
    from jobs.deploy_check.findings import HARMLESS
    from jobs.output.terminal import Terminal

    console = Terminal()
    if found:
        table = Table(show_lines=True)
        for heading in ("finding", "where", "what happens", "what to do"):
            # Names are there to be copied, so none is truncated on a narrow terminal.
            table.add_column(heading, overflow="fold")
        for finding in found:
            where = [finding.stack, finding.resource, finding.resource_type]
            lines = [finding.message, *(_job_line(job) for job in finding.jobs)]
            cells = (finding.kind, "\n".join(filter(None, where)), "\n".join(lines))
            table.add_row(*(Text(cell) for cell in (*cells, finding.remedy)))
        console.print(table)
    actions = _actions(planned, stacks, update)
    said = [
        f"{wanted} {', '.join(name for name, action in actions.items() if action == wanted)}"
        for wanted in ("create", "update", "unchanged")
        if wanted in actions.values()
    ]
    console.print("; ".join(said), soft_wrap=True)
    replaced = [
        f"{change.stack}/{change.logical_id}"
        for change in update.changes()
        if change.fate in (Fate.REPLACED, Fate.MAYBE_REPLACED)
    ]
    if replaced:
        console.print(f"replaced: {', '.join(replaced)}", soft_wrap=True)
    if all(finding.kind in HARMLESS for finding in found):
        console.print("no job ends, nothing is lost, nothing is left behind")


def _job_line(job: Any) -> str:
    left = ""
    if job.minutes_left is not None and job.status == "RUNNING":
        left = f", {job.minutes_left / 60:.1f} h from its own time limit"
    return f"- run {job.run}, {job.status}{left}"
