"""The command line of `python -m jobs`."""

from __future__ import annotations

import os
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from jobs.commands.options import PROGRAM_ARGV, Globals, refuse
from jobs.errors import EXIT_OUTPUT_LOST, EXIT_PIPE_CLOSED, OUTPUTS, Refusal, from_system
from jobs.output.console import note, print_document, printable
from jobs.program.entry import is_path
from trainium_catalogue.contract import ARGV_MARK, DEFAULT_DEPLOYMENT, ENV_PROCESSES_PER_NODE
from trainium_catalogue.models.presets import MODELS
from trainium_catalogue.workloads import WORKLOADS, Parameter, Workload

COMMANDS = {
    "submit": "submit.submit",
    "plan": "plan.plan",
    "doctor": "doctor.doctor",
    "port": "port.port",
    "upload": "upload.upload",
    "download": "download.download",
    "code": "code.code",
    "list": "list_runs.list_runs",
    "status": "status.status",
    "explain": "explain.explain",
    "report": "report.report",
    "logs": "logs.logs",
    "stop": "stop.stop",
    "verify": "verify.verify",
    "catalogue": "catalogue.catalogue",
    "check-deploy": "check_deploy.check_deploy",
    "down": "down.down",
    "kubeconfig": "kubeconfig.kubeconfig",
    "token": "kubeconfig.token",
    "scale": "scale.scale",
    "shell": "shell.shell",
    "top": "top.top",
    "tensorboard": "tensorboard.tensorboard",
}
"""Module and function of each command, relative to ``jobs.commands``."""
_ARGV = "jobs.argv"
_SUBMIT_ARGV = "jobs.submit.argv"


class LazyCommands(UserDict[str, Any]):
    """Commands for Typer, each imported on first access."""

    def __getitem__(self, key: str) -> Any:
        if self.data[key] is None:
            module, function = COMMANDS[key].split(".")
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            register = single.command(key, **_SETTINGS.get(key, {}))
            register(getattr(import_module(f"jobs.commands.{module}"), function))
            self.data[key] = typer.main.get_command(single)
        return self.data[key]


class JobsGroup(TyperGroup):
    """Group that also prints usage errors as JSON, and has a separate exit code for lost output."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands(dict.fromkeys(COMMANDS))

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse the options before the command, and print help."""
        with _handle_output_errors():
            return super().make_context(*args, **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep argv, because the parsed options are lost when a command refuses."""
        ctx.meta[_ARGV] = tuple(args)
        with _show_usage_errors(args):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _show_usage_errors(ctx.meta[_ARGV]), _handle_output_errors():
            return super().invoke(ctx)


@contextmanager
def _show_usage_errors(argv: Sequence[str]) -> Iterator[None]:
    """Escape usage errors, which quote the command line; print them as JSON if requested."""
    try:
        yield
    except Exception as error:
        # Typer keeps the class of usage errors private; only they have this attribute.
        format_message = getattr(error, "format_message", None)
        if format_message is not None:
            message = format_message()
            error.format_message = lambda: printable(message)  # type: ignore[attr-defined]
            if "--json" in argv:
                from jobs.output.documents import RefusalDocument

                print_document(RefusalDocument(refused="usage", message=message))
        raise


@contextmanager
def _handle_output_errors() -> Iterator[None]:
    """Exit if output cannot be written; silently if its reader has closed the pipe."""
    try:
        yield
    except OSError as error:
        if error.filename not in OUTPUTS:
            raise
        for stream in (sys.stdout, sys.stderr):
            if stream.name == error.filename:
                # Python flushes the stream again on exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(EXIT_PIPE_CLOSED) from None
        reason = (error.strerror or str(error)).lower()
        with suppress(OSError):
            note(
                f"{error.filename} cannot be written: {reason}; changes already made by the "
                "command remain"
            )
        raise typer.Exit(EXIT_OUTPUT_LOST) from None
    except SystemExit as error:
        # Raised by the console that prints Typer's help; Rich then exits with 1.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        raise typer.Exit(EXIT_PIPE_CLOSED) from None


class WorkloadCommand(TyperCommand):
    """Command with a workload's parameters as options, and a program's arguments after ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep argv, since ``--help`` ends parsing before the workload is read."""
        own = args[: args.index(ARGV_MARK)] if ARGV_MARK in args else args
        ctx.meta[_SUBMIT_ARGV] = tuple(own)
        # Click drops the ``--``; everything after it belongs to the program.
        ctx.meta[PROGRAM_ARGV] = None if own is args else tuple(args[len(own) + 1 :])
        return super().parse_args(ctx, own)


class SubmitCommand(WorkloadCommand):
    """Command that shows a workload's own help if one is named before ``--help``."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the workload or of ``submit``."""
        words = ctx.meta.get(_SUBMIT_ARGV, ())
        named = next((word for word in words if word in WORKLOADS or is_path(word)), None)
        if named is None:
            super().format_help(ctx, formatter)
        elif named in WORKLOADS:
            _print_workload(named, WORKLOADS[named].of_model({"model": _named_model(words)}))
        else:
            _print_program(named)


# A workload's parameters are options too, but are defined only in the catalogue.
_ANY_OPTION = {"ignore_unknown_options": True, "allow_extra_args": True}
_SETTINGS: Mapping[str, dict[str, Any]] = {
    "submit": {"cls": SubmitCommand, "context_settings": _ANY_OPTION},
    "plan": {"cls": WorkloadCommand, "context_settings": _ANY_OPTION},
    "doctor": {"cls": WorkloadCommand, "context_settings": _ANY_OPTION},
    "down": {"context_settings": {"allow_extra_args": True}},  # arguments of `cdk synth`, after --
    "token": {"hidden": True},
}


def _named_model(words: Sequence[str]) -> str:
    """Return the model named by ``--model``, or "" if there is none of that name."""
    text = " ".join(words).replace("=", " ").partition("--model ")[2]
    name = text.partition(" ")[0]
    return name if name in MODELS else ""


def _print_program(path: str) -> None:
    """Print the help of a user's program, with the parameters of its workload.toml, if any."""
    from jobs.submit.program import find_program
    from jobs.submit.read import OWN_OPTIONS

    try:
        program = find_program(path, None, None, reserved=OWN_OPTIONS)
    except (Refusal, OSError) as error:
        refusal = from_system(error) if isinstance(error, OSError) else error
        if refusal is None:
            raise
        raise typer.Exit(refuse(refusal, as_json=False)) from None
    assert program is not None
    own = frozenset() if program.file is None else program.file.own_names
    _print_workload(path, program.workload, own)


def _print_workload(named: str, workload: Workload, of_program: Set[str] = frozenset()) -> None:
    from jobs.output.catalogue import parameters_table
    from jobs.output.terminal import Terminal

    console = Terminal()
    required = "".join(f" --{p.name} {_value(p)}" for p in workload.parameters if p.required)
    arguments = "" if named in WORKLOADS else " [-- argument...]"
    console.print(
        f"usage: python -m jobs submit {named}{required} [--parameter value]... [option]..."
        f"{arguments}\n\n{workload.summary}\n",
    )
    common: list[Parameter] = []
    advanced: list[Parameter] = []
    for item in (*workload.parameters, *workload.launch_parameters):
        if item.name not in of_program:
            (advanced if item.is_advanced else common).append(item)
    own_parameters = tuple(p for p in workload.parameters if p.name in of_program)
    if own_parameters:
        console.print(parameters_table(f"Parameters of {workload.name}", own_parameters))
    title = f"Parameters of {workload.name}" if named in WORKLOADS else "Parameters of any program"
    console.print(parameters_table(title, tuple(common)))
    console.print(parameters_table("Advanced: rarely needed", tuple(advanced)))
    own = "--nodes, --name, --follow, --verbose, --time-limit, --yes, --dry-run, --json"
    if workload.preset is not None:
        own = f"--compile, {own}"
    if named not in WORKLOADS:
        own = f"--workdir, --include, --exclude, --requirements, --from-snapshot, {own}"
    console.print(
        f"A boolean without a value is true. Options of submit itself ({own}):\npython -m jobs "
        "submit --help",
    )


def _value(item: Parameter) -> str:
    return item.name.rpartition("-")[2].upper()


app = typer.Typer(
    name="python -m jobs",
    cls=JobsGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def main(
    context: typer.Context,
    deployment: Annotated[
        str,
        typer.Option(
            "--deployment", envvar="TRAINIUM_DEPLOYMENT", help="Name of the deployment to use."
        ),
    ] = DEFAULT_DEPLOYMENT,
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            # boto3 reads AWS_DEFAULT_REGION and the profile, but not AWS_REGION.
            envvar="AWS_REGION",
            help="AWS region of the deployment.",
            show_default="the profile's",
        ),
    ] = None,
    processes_per_node: Annotated[
        int | None,
        # A rehearsal runs fewer processes per node than a real instance does, and its plans must
        # match.
        typer.Option("--processes-per-node", envvar=ENV_PROCESSES_PER_NODE, min=1, hidden=True),
    ] = None,
) -> None:
    """Run multi-node Trainium jobs on a deployment of this project.

    Needs only the deployment's name: `cdk deploy` publishes the rest. Credentials and region
    come from the usual AWS settings.

    \b
    Examples:
      python -m jobs catalogue
      python -m jobs submit ./train.py --nodes 2 --name mine -- --epochs 3
      python -m jobs submit all-reduce --nodes 4 --follow
      python -m jobs submit llama2-7b --help
      python -m jobs status
      python -m jobs --deployment team-b --region us-east-2 list
    """
    context.obj = Globals(
        deployment=deployment, region=region, processes_per_node=processes_per_node
    )
