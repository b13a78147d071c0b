"""`jobs check-deploy`: jobs and data that the next `cdk deploy` would affect."""

import time
from collections.abc import Iterator, Mapping
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
    command,
    global_options,
    parse_path,
)
from jobs.errors import EXIT_OK, as_refusal
from jobs.output.console import note, print_document

if TYPE_CHECKING:
    from jobs.deploy_check.account import ActiveJob
    from jobs.deploy_check.assembly import SynthesizedStacks
    from jobs.deploy_check.changes import Update
    from jobs.deploy_check.findings import AffectedJob, DeployDocument, DeployStack

EXIT_FOUND = 1
"""Exit code if findings need attention before deploying."""


@command
def check_deploy(
    context: typer.Context,
    assembly: Annotated[
        Path,
        typer.Option(
            "--assembly",
            parser=parse_path,
            metavar="DIR",
            help="Existing cloud assembly to check: the output folder of `cdk synth`.",
        ),
    ] = Path("cdk.out"),
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Preview how the next `cdk deploy --all` affects running jobs and data.

    Compares the templates of a cloud assembly with the deployed ones, and lists the jobs that would
    end and when, the resources that would be replaced, the data that would be lost, the stacks that
    would be left behind, and the changes that CloudFormation would refuse. Read-only.

    Exit codes: 0 no job ends, and nothing is lost or left behind; 1 anything else, also if
    CloudFormation would refuse a change or a check could not run; 2 invalid arguments.

    \b
    Examples:
      cdk synth --quiet -c trainium:max_nodes=8
      python -m jobs check-deploy && cdk deploy --all --app cdk.out
    """
    from jobs.deploy_check.account import jobs_of_queues, read_stacks
    from jobs.deploy_check.assembly import read_assembly
    from jobs.deploy_check.changes import compare
    from jobs.deploy_check.findings import HARMLESS, DeployDocument, RunningJobs, find_all

    options = global_options(context, deployment, region)
    aws = Aws(options.region)
    planned = read_assembly(assembly, deployment=options.deployment, region=aws.region)
    stacks = read_stacks(aws.cloudformation(), options.deployment)
    deployed = {name: stack.template for name, stack in stacks.items()}
    update = compare(deployed, planned.templates)
    running = RunningJobs(
        on_queues=lambda queues: jobs_of_queues(aws.batch(), queues),
        on_cluster=cache(lambda: _jobs_on_cluster(aws, options)),
        now_s=time.time(),
    )
    findings = find_all(update, stacks=stacks, assembly=planned, running=running)
    if planned.newer is not None:
        note(
            f"{planned.newer} was changed after {planned.folder} was synthesized, so this may not "
            f"be what you deploy; synthesize again with `{planned.synth_command}` and the -c "
            "settings"
        )
    document = DeployDocument(
        deployment=options.deployment,
        region=aws.region,
        assembly=str(planned.folder),
        newer_source=planned.newer,
        stacks=tuple(_stacks(planned, deployed, update)),
        findings=tuple(findings),
    )
    if as_json:
        print_document(document)
    else:
        _show(document)
    is_affected = any(finding.kind not in HARMLESS for finding in findings)
    return EXIT_FOUND if is_affected else EXIT_OK


def _jobs_on_cluster(aws: Aws, options: Globals) -> "list[ActiveJob] | None":
    """List unfinished jobs on the deployment's cluster; None if it does not respond."""
    from jobs.deploy_check.account import ActiveJob
    from jobs.deployment import read_deployment
    from jobs.eks.service import EksService

    try:
        target = read_deployment(aws.ssm(), options.deployment, region=aws.region)
        runs = EksService(aws, target).runs()
    except Exception as error:
        refusal = as_refusal(error, region=aws.region)
        if refusal is None:
            raise
        note(f"the cluster's jobs could not be listed: {refusal.message}")
        return None
    return [ActiveJob(summary=run, limit_s=None) for run in runs if not run.ended]


def _stacks(
    planned: "SynthesizedStacks", deployed: Mapping[str, Any], update: "Update"
) -> "Iterator[DeployStack]":
    """Yield the action for each stack, with its changes."""
    from jobs.deploy_check.findings import DeployChange, DeployStack, StackAction

    for name in dict.fromkeys((*planned.templates, *deployed)):
        changes = tuple(
            DeployChange(
                resource=change.logical_id,
                type=change.resource_type,
                fate=change.fate,
                because=change.reasons,
            )
            for change in update.changes
            if change.stack == name
        )
        action: StackAction = "update" if changes else "unchanged"
        if name not in planned.templates:
            action = "left-behind"
        elif name not in deployed:
            action = "create"
        yield DeployStack(name=name, action=action, changes=changes)


def _show(document: "DeployDocument") -> None:
    from rich.table import Table
    from rich.text import Text

    from jobs.deploy_check.changes import Fate
    from jobs.deploy_check.findings import HARMLESS
    from jobs.output.terminal import Terminal

    console = Terminal()
    if document.findings:
        table = Table(show_lines=True)
        for heading in ("finding", "where", "effect", "remedy"):
            # Folded rather than truncated, so that names can be copied from a narrow terminal.
            table.add_column(heading, overflow="fold")
        for finding in document.findings:
            where = (finding.stack, finding.resource, finding.resource_type)
            lines = [finding.message, *(_job_line(job) for job in finding.jobs)]
            cells = (finding.kind, "\n".join(filter(None, where)), "\n".join(lines), finding.remedy)
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
    parts = [
        f"{action} {', '.join(names)}"
        for action in ("create", "update", "unchanged")
        if (names := [stack.name for stack in document.stacks if stack.action == action])
    ]
    console.print("; ".join(parts), soft_wrap=True)
    replaced = [
        f"{stack.name}/{change.resource}"
        for stack in document.stacks
        for change in stack.changes
        if change.fate in (Fate.REPLACED, Fate.MAYBE_REPLACED)
    ]
    if replaced:
        console.print(f"replaced: {', '.join(replaced)}", soft_wrap=True)
    if all(finding.kind in HARMLESS for finding in document.findings):
        console.print("no job ends, no data is lost, nothing is left behind")


def _job_line(job: "AffectedJob") -> str:
    left = ""
    if job.status == "RUNNING" and job.minutes_left is not None:
        left = f", {job.minutes_left / 60:.1f} h from its own time limit"
    return f"- run {job.run}, {job.status}{left}"
