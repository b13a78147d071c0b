"""`jobs submit`: check, show the cost, ask for confirmation, submit exactly once."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.commands.options import (
    PROGRAM_ARGV,
    DeploymentOption,
    JsonOption,
    MaxUsdOption,
    RegionOption,
    command,
    global_options,
    parse_path,
)
from jobs.errors import EXIT_OK
from jobs.program.entry import ProgramOptions
from jobs.submit.check import check
from jobs.submit.choose import choose
from jobs.submit.plan import ask, check_cap, check_places, check_program, planned, show_plan
from jobs.submit.read import SubmitOptions, read_spec
from jobs.submit.send import join, send, show
from trainium_catalogue.contract import ZONE_PATIENCE_MINUTES, Orchestrator

_OWN, _EKS, _ADVANCED = "Your own program", "On EKS", "Advanced"
"""Help panels."""


@command
def submit(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD|FILE|FOLDER",
            help="A workload from `catalogue`, your own program, such as ./train.py, or a folder "
            "with a workload.toml.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            help="Number of nodes; for tokenize, number of array-job children that share the work.",
            show_default="the workload's",
        ),
    ] = None,
    on: Annotated[
        Orchestrator | None,
        typer.Option(
            "--on",
            help="Orchestrator to run on; data and export jobs always run on Batch.",
            show_default="the deployment's; batch if it has both",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="RUN",
            help="Name of the run, under which checkpoints and results are stored. Submitting the "
            "same name again resumes from the newest checkpoint; only one job per name can run at "
            "a time.",
            show_default="workload and time",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the logs of all nodes until the job ends.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="With --follow: also show each launcher's startup lines.",
        ),
    ] = False,
    compiles: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the graphs of a training workload first, in a separate job.",
        ),
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="HOURS",
            help="Time limit per attempt, in hours; reaching it ends the job.",
            show_default="the workload's",
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            "-m",
            help="Module to run instead of a file, as with `python -m`.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            "--workdir",
            parser=parse_path,
            metavar="DIR",
            help="Folder of your program: its files are packed, and it runs there.",
            show_default="the file's; with -m: the current one",
            rich_help_panel=_OWN,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            metavar="GLOB",
            help="Files to pack even if git ignores them or they look like credentials; "
            "repeatable.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="GLOB",
            help="Files to exclude; repeatable.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME=VALUE",
            help="Environment variable for your program; repeatable.",
            show_default="the run's",
            rich_help_panel=_OWN,
        ),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements",
            parser=parse_path,
            metavar="FILE",
            help="pip requirements file for packages that the image lacks; wheels are collected "
            "once, in a separate job, before any node starts.",
            show_default="the run's; for a folder: from its workload.toml",
            rich_help_panel=_OWN,
        ),
    ] = None,
    from_snapshot: Annotated[
        str | None,
        typer.Option(
            "--from-snapshot",
            metavar="N|none",
            help="Number of an older snapshot to resume from, as listed by `status`; none: start "
            "over.",
            show_default="the newest",
            rich_help_panel=_OWN,
        ),
    ] = None,
    releases: Annotated[
        bool,
        typer.Option(
            "--release",
            help="On EKS, with --follow: remove the nodes after the job ends, unless another run "
            "needs them.",
            rich_help_panel=_EKS,
        ),
    ] = False,
    scales: Annotated[
        bool,
        typer.Option(
            "--scale",
            help="On EKS: add the missing nodes instead of refusing.",
            rich_help_panel=_EKS,
        ),
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="The same as --KEY VALUE, for scripts; repeatable.",
            rich_help_panel=_ADVANCED,
        ),
    ] = None,
    max_usd: MaxUsdOption = None,
    zone_patience: Annotated[
        int | None,
        typer.Option(
            "--zone-patience",
            metavar="MINUTES",
            min=0,
            max=1440,
            help="With several zones: minutes that the job may wait for its nodes before it moves "
            "to the next zone for lack of capacity.",
            show_default=str(ZONE_PATIENCE_MINUTES),
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the exact SubmitJob request or Volcano Job; submit nothing."
        ),
    ] = False,
    check_only: Annotated[
        bool,
        typer.Option(
            "--check-only",
            hidden=True,
            help="Run only the checks that need no deployment, for a rehearsal.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Submit a workload or your own program; workload parameters are options too.

    `submit WORKLOAD --help` lists them. A program's folder is packed and sent with the job, and
    arguments after -- are passed to it unchanged. Submitting the same name again resumes the run.

    Checks parameters, dataset and run before anything is spent, shows the plan with an estimated
    cost, and asks for confirmation if the job needs Trainium nodes or may cost 10 USD or more at
    its time limit. Without a terminal, such a job needs --yes.

    Exit codes: 0 submitted (with --follow: succeeded), 1 the job failed, 2 refused, 130 interrupted
    with Ctrl-C (the job keeps running).

    \b
    Examples:
      python -m jobs submit ./train.py --nodes 4 --name mine --follow -- --epochs 3
      python -m jobs submit -m mypkg.train --requirements requirements.txt --nodes 2
      python -m jobs submit all-reduce --nodes 4 --follow
      python -m jobs submit prepare --dataset wikicorpus
      python -m jobs submit tokenize --input wikicorpus --tokenizer tokenizer.model --dataset wiki
      python -m jobs submit llama2-7b --nodes 4 --dataset wiki --name my-run --compile --follow
      python -m jobs submit llama2-7b --nodes 4 --name my-run --lr 1e-4 --dry-run
      python -m jobs submit export --run my-run
      python -m jobs submit bert --on eks --nodes 2 --scale --compile --name bert-1 --follow
    """
    options = global_options(context, deployment, region)
    argv = context.args
    if module is not None and what is not None and what.startswith("-"):
        argv, what = [what, *argv], None  # Click mistook a parameter for the workload
    spec = read_spec(
        what,
        argv,
        assignments or (),
        options=SubmitOptions(
            name=name,
            nodes=nodes,
            on=on,
            time_limit_hours=time_limit,
            compiles=compiles,
            follows=follow,
            folds=not verbose and not as_json,
            releases=releases,
            scales=scales,
            max_usd=max_usd,
            zone_patience_minutes=zone_patience,
            dry_run=dry_run,
            as_json=as_json,
        ),
        own=ProgramOptions(
            module=module,
            workdir=workdir,
            include=include or (),
            exclude=exclude or (),
            env=env or (),
            requirements=requirements,
            from_snapshot=from_snapshot,
            arguments=context.meta.get(PROGRAM_ARGV),
        ),
    )
    if check_only:
        check_program(spec)
        return EXIT_OK
    submission = check(
        choose(
            spec,
            Aws(options.region),
            options.deployment,
            processes_per_node=options.processes_per_node,
        )
    )
    if submission.running is not None:
        return join(submission, submission.running)
    submission = planned(submission)
    check_cap(submission)
    if not (dry_run and as_json):
        show_plan(submission)
    if dry_run:
        return show(submission)
    check_places(submission)
    if not yes:
        ask(submission)
    return send(submission)
