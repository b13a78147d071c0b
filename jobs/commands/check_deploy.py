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
    from jobs.deploy_check.findings import (
        DeployChange,
        DeployDocument,
        DeployFinding,
        FindingItem,
        StackAction,
    )

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
    from jobs.deploy_check.findings import HARMLESS, RunningJobs, find_all

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
    actions = _actions(planned, deployed, update)
    if as_json:
        print_document(_document(options, aws, planned, actions, update, findings, running.now_s))
    else:
        _show(actions, update, findings, running.now_s)
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


def _actions(
    planned: "SynthesizedStacks", deployed: Mapping[str, Any], update: "Update"
) -> "dict[str, StackAction]":
    """Return the action for each stack."""
    changed = {change.stack for change in update.changes}
    actions: dict[str, StackAction] = {
        name: "create" if name not in deployed else "update" if name in changed else "unchanged"
        for name in planned.templates
    }
    return {**actions, **{name: "left-behind" for name in deployed if name not in actions}}


def _document(
    options: Globals,
    aws: Aws,
    planned: "SynthesizedStacks",
    actions: "Mapping[str, StackAction]",
    update: "Update",
    findings: "list[DeployFinding]",
    now_s: float,
) -> "DeployDocument":
    from jobs.deploy_check.findings import DeployDocument, DeployStack

    return DeployDocument(
        deployment=options.deployment,
        region=aws.region,
        assembly=str(planned.folder),
        newer_source=planned.newer,
        stacks=tuple(
            DeployStack(name=name, action=action, changes=tuple(_changes(name, update)))
            for name, action in actions.items()
        ),
        findings=tuple(_finding(finding, now_s) for finding in findings),
    )


def _changes(stack: str, update: "Update") -> "Iterator[DeployChange]":
    from jobs.deploy_check.findings import DeployChange

    for change in update.changes:
        if change.stack == stack:
            yield DeployChange(
                resource=change.logical_id,
                type=change.resource_type,
                fate=change.fate,
                because=tuple(change.reasons),
            )


def _finding(finding: "DeployFinding", now_s: float) -> "FindingItem":
    from jobs.deploy_check.findings import AffectedJob, FindingItem

    change = finding.change
    return FindingItem(
        kind=finding.kind,
        stack=finding.stack,
        resource=None if change is None else change.logical_id,
        resource_type=None if change is None else change.resource_type,
        message=finding.message,
        remedy=finding.remedy,
        jobs=tuple(
            AffectedJob(
                run=job.summary.run,
                job_id=job.summary.job_id,
                status=job.summary.status,
                orchestrator=job.summary.orchestrator,
                within_minutes=finding.within_minutes,
                minutes_left=None if (left := job.seconds_left(now_s)) is None else left // 60,
            )
            for job in finding.jobs
        ),
    )


def _show(
    actions: "Mapping[str, StackAction]",
    update: "Update",
    findings: "list[DeployFinding]",
    now_s: float,
) -> None:
    from rich.table import Table
    from rich.text import Text

    from jobs.deploy_check.changes import Fate
    from jobs.deploy_check.findings import HARMLESS
    from jobs.output.terminal import Terminal

    console = Terminal()
    if findings:
        table = Table(show_lines=True)
        for heading in ("finding", "where", "effect", "remedy"):
            # Folded rather than truncated, so that names can be copied from a narrow terminal.
            table.add_column(heading, overflow="fold")
        for finding in findings:
            where = [finding.stack]
            if finding.change is not None:
                where += [finding.change.logical_id, finding.change.resource_type]
            lines = [finding.message, *(_job_line(job, now_s) for job in finding.jobs)]
            cells = (finding.kind, "\n".join(where), "\n".join(lines), finding.remedy)
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
    parts = [
        f"{each} {', '.join(name for name, action in actions.items() if action == each)}"
        for each in ("create", "update", "unchanged")
        if each in actions.values()
    ]
    console.print("; ".join(parts), soft_wrap=True)
    replaced = [
        f"{change.stack}/{change.logical_id}"
        for change in update.changes
        if change.fate in (Fate.REPLACED, Fate.MAYBE_REPLACED)
    ]
    if replaced:
        console.print(f"replaced: {', '.join(replaced)}", soft_wrap=True)
    if all(finding.kind in HARMLESS for finding in findings):
        console.print("no job ends, no data is lost, nothing is left behind")


def _job_line(job: "ActiveJob", now_s: float) -> str:
    left_s = job.seconds_left(now_s)
    left = "" if left_s is None else f", {left_s / 3600:.1f} h from its own time limit"
    is_running = job.summary.status == "RUNNING"
    return f"- run {job.summary.run}, {job.summary.status}{left if is_running else ''}"
