"""`jobs down`: destroy a deployment, and prove what is left of it."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    given_path,
)
from jobs.errors import EXIT_INTERRUPTED, EXIT_OK
from jobs.output.console import confirm

EXIT_LEFT = 1
"""Exit code if something is left, or could not be looked for."""


@command
def down(
    context: typer.Context,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for jobs to end."),
    ] = 1800,
    assembly: Annotated[
        Path | None,
        typer.Option(
            "--assembly",
            parser=given_path,
            metavar="DIR",
            help="What `cdk synth` wrote.",
            show_default="synthesised with the deployed settings",
        ),
    ] = None,
    receipt: Annotated[
        Path | None,
        typer.Option(
            "--receipt",
            parser=given_path,
            metavar="FILE",
            help="Path of the receipt; its table is written next to it as .txt. A dry run "
            "writes one only if it is given.",
            show_default="build/down/<deployment>.json of this checkout",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go and stay; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Destroy the deployment with care, and list what is left of it.

    Shows unfinished jobs with what they have not saved, and asks. Then it stops the jobs, waits
    until they have saved and ended, scales the cluster to 0 nodes, empties the bucket if it is to
    go (`retain_data` false at deploy), runs `cdk destroy`, and deletes stacks that the app no
    longer has. At last it looks for what is left, by the deployment's tag and in every service,
    and writes a receipt with the price of each thing for a month. It deletes no leftovers.

    Interrupted anywhere, run it again: it continues from what is there. Words after -- go to
    `cdk synth`, besides the settings that were deployed, which the stacks remember.

    Exit codes: 0 nothing is left but what was asked to stay; 1 something is left, or a right to
    look for it is missing; 2 refused; 130 interrupted.

    \b
    Examples:
      python -m jobs down --dry-run
      python -m jobs --deployment small down
      python -m jobs down --yes --json -- -c trainium:instance_type=trn1.2xlarge
    """
    from jobs.deploy_check.assembly import REPOSITORY
    from jobs.teardown.phases import CarefulDestroy

    given = chosen(context, deployment, region)
    destroy = CarefulDestroy(
        deployment=given.deployment,
        aws=Aws(given.region),
        path=receipt or REPOSITORY / "build" / "down" / f"{given.deployment}.json",
        writes=not dry_run or receipt is not None,
        wait_s=wait,
        as_json=as_json,
    )
    try:
        destroy.plan(assembly, context.args)
        if dry_run:
            destroy.end("planned")
            return EXIT_OK
        if destroy.order and not yes:
            confirm(
                f"destroying deployment {given.deployment!r}",
                question="destroy it?",
                declined="nothing was changed",
            )
        return EXIT_OK if destroy.run() == "empty" else EXIT_LEFT
    except KeyboardInterrupt:
        destroy.end("interrupted")
        return EXIT_INTERRUPTED
