"""`jobs down`: destroy a deployment, and list the resources that remain."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    global_options,
    parse_path,
)
from jobs.errors import EXIT_INTERRUPTED, EXIT_OK
from jobs.output.console import confirm

EXIT_LEFT = 1
"""Exit code if there are leftovers, or if the search for them was incomplete."""


@command
def down(
    context: typer.Context,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="Maximum time to wait for jobs to end."
        ),
    ] = 1800,
    assembly: Annotated[
        Path | None,
        typer.Option(
            "--assembly",
            parser=parse_path,
            metavar="DIR",
            help="Existing cloud assembly (output folder of `cdk synth`) to use.",
            show_default="synthesized with the deployed settings",
        ),
    ] = None,
    receipt: Annotated[
        Path | None,
        typer.Option(
            "--receipt",
            parser=parse_path,
            metavar="FILE",
            help="Path of the receipt; its table is written next to it as .txt. A dry run writes "
            "a receipt only with this option.",
            show_default="build/down/<deployment>.json of this checkout",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted and kept; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Destroy the deployment safely, and list the resources that remain.

    Lists unfinished jobs with their unsaved work, and asks for confirmation. Then disables the job
    queues, stops the jobs, waits until they have saved and ended, scales the cluster to 0 nodes,
    empties the bucket if it will be deleted (deployed with `retain_data` false), runs `cdk
    destroy`, and deletes stacks that are no longer part of the app. Finally searches for leftovers,
    by the deployment's tag and in every service that it uses, and writes a receipt, which lists
    each leftover with its monthly cost, and what earlier runs of this command deleted. Leftovers
    are not deleted.

    Idempotent: if it is interrupted, run it again. If interrupted before anything is deleted, it
    re-enables the job queues, or prints the command that does. Arguments after -- are passed to
    `cdk synth`, in addition to the settings of the deployed stacks, which this command reads
    from them.

    Exit codes: 0 nothing is left except what you chose to keep; 1 something is left, or a
    permission to search for it is missing; 2 refused; 130 interrupted.

    \b
    Examples:
      python -m jobs down --dry-run
      python -m jobs --deployment small down
      python -m jobs down --yes --json -- -c trainium:instance_type=trn1.2xlarge
    """
    from jobs.deploy_check.assembly import REPOSITORY
    from jobs.teardown.phases import Teardown

    options = global_options(context, deployment, region)
    teardown = Teardown(
        deployment=options.deployment,
        aws=Aws(options.region),
        path=receipt or REPOSITORY / "build" / "down" / f"{options.deployment}.json",
        writes=not dry_run or receipt is not None,
        wait_s=wait,
        as_json=as_json,
    )
    try:
        teardown.plan(assembly, context.args)
        if dry_run:
            teardown.end("planned")
            return EXIT_OK
        if teardown.order and not yes:
            confirm(
                f"destroying deployment {options.deployment!r}",
                question="destroy it?",
                declined="nothing was changed",
            )
        return EXIT_OK if teardown.run() == "empty" else EXIT_LEFT
    except KeyboardInterrupt:
        teardown.end("interrupted")
        return EXIT_INTERRUPTED
