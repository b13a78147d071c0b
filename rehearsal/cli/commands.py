"""The commands: run, up and down."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from rich.console import Console

from rehearsal.cli import options
from rehearsal.deployment import cdk
from rehearsal.deployment.server import wait_until
from rehearsal.deployment.state import (
    ROOT,
    OptionsError,
    RehearsalFolder,
    RehearsalState,
    RehearsedProgram,
    Settings,
    load_state,
    refuse_second,
)
from rehearsal.receipt import Receipt
from rehearsal.report import tables as report
from rehearsal.report.progress import ProgressDisplay
from rehearsal.scenario import Rehearsal
from rehearsal.steps import program as own_program
from rehearsal.steps.jobs import ALL_REDUCE
from trainium_catalogue.releases import DEFAULT_RELEASE

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130
# Destroy takes seconds, but a stopping node may use its whole grace period.
DOWN_LIMIT_S = 300.0

app = typer.Typer(
    name="python -m rehearsal",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Deploy, run and destroy everything on this machine, without an AWS account.",
)

FOLDER = Path("build") / "rehearsal"


@app.command(context_settings={"allow_extra_args": True})
def run(
    context: typer.Context,
    quick: options.Quick = False,
    program: options.ProgramFile = None,
    module: options.Module = None,
    env: options.Env = None,
    checkpoint_dir: options.CheckpointDir = None,
    requirements: options.Requirements = None,
    workdir: options.Workdir = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    orchestrators: options.Orchestrators = None,
    nodes: options.Nodes = None,
    processes_per_node: options.Processes = None,
    instance_type: options.InstanceType = "trn1.32xlarge",
    neuron_release: options.Release = DEFAULT_RELEASE,
    workload: options.Workloads = None,
    fault: options.Faults = None,
    fault_after: options.FaultAfter = None,
    set_: options.Parameters = None,
    containers: options.Containers = False,
    as_json: options.AsJson = False,
    keep: options.Keep = False,
    folder: options.FolderPath = FOLDER,
    addresses: options.Addresses = "127.0.0",
) -> None:
    """On emulated Batch and EKS, deploy, run jobs, train, destroy, and verify that nothing is left.

    A short first part gives a result within a minute; the full rehearsal follows.

    To rehearse your own program instead: python -m rehearsal run --program ./train.py -- --epochs 3

    Exit codes: 0 passed, 1 something failed or is left over, 2 refused, 130 interrupted.
    """
    settings = _settings(
        quick=quick,
        orchestrators=orchestrators,
        nodes=nodes,
        processes_per_node=processes_per_node,
        instance_type=instance_type,
        neuron_release=neuron_release,
        workloads=workload,
        faults=fault,
        parameters=set_,
        containers=containers,
        addresses=addresses,
        program=_program(
            context.args,
            program,
            module=module,
            env=env or (),
            checkpoint_dir=checkpoint_dir,
            requirements=requirements,
            workdir=workdir,
            include=include or (),
            exclude=exclude or (),
            fault_after=fault_after,
        ),
    )
    # Run submit's checks before spending a minute on deployment.
    note = partial(typer.echo, err=True)
    if (program or module) and (why := own_program.refused(settings, note)) is not None:
        _refuse(why)
    raise typer.Exit(_rehearse(settings, _folder(folder), as_json=as_json, jobs=True, stay=keep))


@app.command()
def up(
    orchestrators: options.OrchestratorsOfUp = None,
    nodes: options.NodesOfUp = None,
    processes_per_node: options.Processes = None,
    instance_type: options.InstanceType = "trn1.32xlarge",
    neuron_release: options.Release = DEFAULT_RELEASE,
    containers: options.Containers = False,
    as_json: options.AsJson = False,
    folder: options.FolderPath = FOLDER,
    addresses: options.Addresses = "127.0.0",
) -> None:
    """Deploy, and keep the deployment up, to submit jobs and inject faults from another terminal.

    Prints each node's process ID. Ctrl-C, or `down` in another terminal, destroys the deployment
    and proves that nothing is left.
    """
    settings = _settings(
        orchestrators=orchestrators,
        nodes=nodes,
        processes_per_node=processes_per_node,
        instance_type=instance_type,
        neuron_release=neuron_release,
        containers=containers,
        addresses=addresses,
    )
    settings = options.for_manual_jobs(settings)
    raise typer.Exit(_rehearse(settings, _folder(folder), as_json=as_json, jobs=False, stay=True))


@app.command()
def down(folder: options.FolderPath = FOLDER) -> None:
    """Destroy the deployment of `up` or `run --keep`, or interrupt a `run`; wait for the result."""
    place = _folder(folder)
    state = load_state(place)
    if state is None:
        typer.echo(f"no deployment is up in {place.path}")
        return
    os.kill(state.pid, signal.SIGTERM)
    if not wait_until(lambda: not state.alive, limit_s=DOWN_LIMIT_S):
        message = f"process {state.pid} did not end within {DOWN_LIMIT_S:.0f} s; see {place.path}"
        typer.echo(message, err=True)
        raise typer.Exit(EXIT_FAILED)
    document = json.loads(place.receipt.read_text(encoding="utf-8"))
    is_checked = document["proven_empty"] or document["leftovers"]
    left = "leftovers were not searched for"
    if is_checked:
        left = f"{len(document['leftovers'])} left over"
    typer.echo(f"{document['outcome']}, {left}; {place.receipt}")
    raise typer.Exit(0 if document["outcome"] == "passed" else EXIT_FAILED)


def _rehearse(
    settings: Settings, folder: RehearsalFolder, *, as_json: bool, jobs: bool, stay: bool
) -> int:
    """Run all phases; always stop all processes and write a receipt."""
    console = Console(stderr=as_json, highlight=False)
    try:
        refuse_second(folder)
    except OptionsError as refusal:
        _refuse(str(refusal))
    folder.clear()
    RehearsalState.here().save(folder)
    # SIGINT as well, because shells start background processes with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise_interrupt)
    begin = time.monotonic()
    receipt = Receipt(settings=settings)
    progress = ProgressDisplay(console, show_nodes=stay)
    if jobs:
        progress.note(options.usual_time(settings))
    rehearsal = Rehearsal(
        settings=settings,
        folder=folder,
        base_environment=dict(os.environ),
        progress=progress,
        receipt=receipt,
    )
    try:
        rehearsal.run(jobs=jobs, stay=partial(_stay, rehearsal) if stay else None)
    except KeyboardInterrupt:
        receipt.interrupted = True
        progress.note("interrupted: stopping the server and its nodes")
    except cdk.StepFailed as failure:
        receipt.errors.append(str(failure))
    except Exception as error:
        receipt.errors.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        # A second Ctrl-C must not leave processes behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        rehearsal.close()
        receipt.seconds = round(time.monotonic() - begin, 2)
        receipt.write(folder.receipt)
    report.write(receipt, folder.report)
    report.show(receipt, console)
    console.print(
        f"report: {_short(folder.report)}, receipt: {_short(folder.receipt)}; what only AWS can "
        "prove: docs/verification.md",
        soft_wrap=True,
    )
    if as_json:
        typer.echo(json.dumps(receipt.to_document(), indent=2))
    if receipt.interrupted:
        return EXIT_INTERRUPTED
    return 0 if receipt.outcome == "passed" else EXIT_FAILED


def _stay(rehearsal: Rehearsal) -> None:
    """Wait for Ctrl-C or ``down``."""
    settings, folder, note = rehearsal.settings, rehearsal.folder, rehearsal.progress.note
    environment = _short(folder.environment)
    cluster = (
        f"\n  python -m jobs kubeconfig; python -m jobs scale --nodes {settings.nodes} --yes; "
        "kubectl get nodes"
    )
    note(
        f"\nup at {rehearsal.receipt.endpoint} ({rehearsal.receipt.region}); in another terminal:\n"
        "  source .venv/bin/activate; source "
        f"{environment}{cluster if 'eks' in settings.orchestrators else ''}\n  python -m jobs "
        f"submit {ALL_REDUCE} --nodes {settings.nodes} --yes --follow \\\n    --set "
        "max-bytes=16777216 --set iterations=100000 --set seconds-per-size=60 \\\n    --set "
        "peer-timeout-s=5\n  kill -KILL PID, or kill -STOP PID, with a process ID shown here\n"
        f"stop with Ctrl-C, or: python -m rehearsal down{_folder_option(folder)}\n"
    )
    try:
        while rehearsal.server_alive:
            time.sleep(0.5)
    except KeyboardInterrupt:
        return
    raise cdk.StepFailed(f"the server exited unexpectedly; see {folder.server_log}")


def _program(argv: list[str], file: Path | None, **values: Any) -> RehearsedProgram | None:
    try:
        return options.program_of(file, argv, **values)
    except OptionsError as refusal:
        _refuse(str(refusal))


def _settings(**values: Any) -> Settings:
    try:
        return options.check(path=os.environ.get("PATH", ""), **values)
    except ValueError as refusal:
        _refuse(str(refusal))


def _folder(path: Path) -> RehearsalFolder:
    return RehearsalFolder(path if path.is_absolute() else ROOT / path)


def _folder_option(folder: RehearsalFolder) -> str:
    return "" if folder == _folder(FOLDER) else f" --folder {folder.path}"


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _refuse(message: str) -> NoReturn:
    print(f"refused: {message}", file=sys.stderr)
    raise typer.Exit(EXIT_REFUSED)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
