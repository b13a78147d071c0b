"""`jobs submit`: check, show what it may cost, ask, submit once."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.commands.options import (
    PROGRAM_ARGV,
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    given_path,
)
from jobs.errors import EXIT_OK
from jobs.program.entry import ProgramOptions
from jobs.submit.check import check
from jobs.submit.choose import choose
from jobs.submit.plan import ask, check_places, check_program, planned, show_plan
from jobs.submit.read import SubmitOptions, read_order
from jobs.submit.send import join, send, show
from trainium_catalogue.contract import Orchestrator

_OWN, _EKS, _ADVANCED = "Your own program", "On EKS", "Advanced"
"""Panels of the help."""


@command
def submit(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD|FILE|FOLDER",
            help="What to run: a workload that `catalogue` lists, or a program of yours, such as "
            "./train.py, or a folder with a workload.toml.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            help="Number of nodes; of tokenize: of instances that share the work.",
            show_default="the workload's",
        ),
    ] = None,
    on: Annotated[
        Orchestrator | None,
        typer.Option(
            "--on",
            help="What runs the nodes; data and export jobs run on Batch everywhere.",
            show_default="the deployment's; of two: batch",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="RUN",
            help="Run name: checkpoints and results belong to it, a name that is running is not "
            "submitted again, and training continues from its newest checkpoint.",
            show_default="workload and time",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the log of all nodes until the job ends.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="With --follow: show the first lines of every node's launcher too.",
        ),
    ] = False,
    compiles: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the graphs of a training workload first, as a job of its own that the "
            "training job waits for.",
        ),
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="HOURS",
            help="Hours after which an attempt is ended, and the job with it.",
            show_default="the workload's",
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            "-m",
            help="Module of yours to run, as with `python -m`.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            "--workdir",
            parser=given_path,
            metavar="DIR",
            help="Folder of your program: its files go along, and it runs there.",
            show_default="the file's; with -m: this one",
            rich_help_panel=_OWN,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            metavar="GLOB",
            help="Files of your program to take along although git ignores them, or they look "
            "like keys; repeatable.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="GLOB",
            help="Files of your program to leave out; repeatable.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME=VALUE",
            help="Environment variable of your program; repeatable.",
            show_default="the run's",
            rich_help_panel=_OWN,
        ),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements",
            parser=given_path,
            metavar="FILE",
            help="What your program requires beyond the image, as for pip: wheels are collected "
            "once, by a job of its own, before any node starts.",
            show_default="the run's; of a folder: its workload.toml's",
            rich_help_panel=_OWN,
        ),
    ] = None,
    from_snapshot: Annotated[
        str | None,
        typer.Option(
            "--from-snapshot",
            metavar="N|none",
            help="Snapshot of your program's run to go back to, of those that `status` lists; "
            "none: begin anew.",
            show_default="the newest",
            rich_help_panel=_OWN,
        ),
    ] = None,
    releases: Annotated[
        bool,
        typer.Option(
            "--release",
            help="On EKS, with --follow: scale to 0 nodes when the job has ended.",
            rich_help_panel=_EKS,
        ),
    ] = False,
    scales: Annotated[
        bool,
        typer.Option(
            "--scale",
            help="On EKS: let the cluster get the nodes that are missing, instead of refusing.",
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
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the exact SubmitJob payload or Volcano job, submit nothing."
        ),
    ] = False,
    check_only: Annotated[
        bool,
        typer.Option(
            "--check-only",
            hidden=True,
            help="Check what needs no deployment, and end: of a rehearsal, before it deploys.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Submit a workload, or a program of yours; its parameters are options too.

    `submit WORKLOAD --help` lists them, seldom needed ones last. Of a program, its folder goes
    along, and what comes after -- reaches it word by word; the same name again continues from its
    newest snapshot.

    Checks parameters, dataset and run before anything is spent, shows the plan and an estimate of
    the price, and asks before a job that takes Trainium nodes or may cost 10 USD or more at its
    time limit. Where there is no terminal to ask on, such a job needs --yes.

    Exit codes: 0 submitted (with --follow: succeeded), 1 the job failed, 2 refused,
    130 interrupted with Ctrl-C (the job goes on).

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
    given = chosen(context, deployment, region)
    argv = context.args
    if module is not None and what is not None and what.startswith("-"):
        argv, what = [what, *argv], None  # a parameter, taken for what to run
    order = read_order(
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
        check_program(order)
        return EXIT_OK
    submission = check(
        choose(
            order, Aws(given.region), given.deployment, processes_per_node=given.processes_per_node
        )
    )
    if submission.running is not None:
        return join(submission, submission.running)
    submission = planned(submission)
    if not (dry_run and as_json):
        show_plan(submission)
    if dry_run:
        return show(submission)
    check_places(submission)
    if not yes:
        ask(submission)
    return send(submission)
