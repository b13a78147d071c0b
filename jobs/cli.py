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
    "port": "port.port",
    "upload": "upload.upload",
    "download": "download.download",
    "code": "code.code",
    "list": "list_runs.list_runs",
    "status": "status.status",
    "explain": "explain.explain",
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
"""Each command, and its module and function below ``jobs.commands``."""
_ARGV = "jobs.argv"
_SUBMIT_ARGV = "jobs.submit.argv"


class LazyCommands(UserDict[str, Any]):
    """The commands as Typer calls them; each is imported when it is asked for."""

    def __getitem__(self, key: str) -> Any:
        if self.data[key] is None:
            module, function = COMMANDS[key].split(".")
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            register = single.command(key, **_SETTINGS.get(key, {}))
            register(getattr(import_module(f"jobs.commands.{module}"), function))
            self.data[key] = typer.main.get_command(single)
        return self.data[key]


class JobsGroup(TyperGroup):
    """Prints a refusal's JSON document before Typer prints the error, and exits with 2.

    Ends with a code of its own where the command's output cannot be written.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands(dict.fromkeys(COMMANDS))

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse the options before the command; prints help."""
        with _output_may_fail():
            return super().make_context(*args, **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep argv: the parsed options are lost when a command refuses."""
        ctx.meta[_ARGV] = tuple(args)
        with _usage_errors_shown(args):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _usage_errors_shown(ctx.meta[_ARGV]), _output_may_fail():
            return super().invoke(ctx)


@contextmanager
def _usage_errors_shown(argv: Sequence[str]) -> Iterator[None]:
    """Make usage errors, which repeat the command line, printable; print their JSON document."""
    try:
        yield
    except Exception as error:
        # Recognised by attributes only they have: Typer keeps their class private
        said = getattr(error, "format_message", None)
        if said is not None:
            message = said()
            error.format_message = lambda: printable(message)  # type: ignore[attr-defined]
            if "--json" in argv:
                from jobs.output.documents import Refused

                print_document(Refused(refused="usage", message=message))
        raise


@contextmanager
def _output_may_fail() -> Iterator[None]:
    """End the program where its output cannot be written: quietly if its reader is gone."""
    try:
        yield
    except OSError as error:
        if error.filename not in OUTPUTS:
            raise
        for stream in (sys.stdout, sys.stderr):
            if stream.name == error.filename:
                # Python flushes it once more at its end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(EXIT_PIPE_CLOSED) from None
        reason = (error.strerror or str(error)).lower()
        with suppress(OSError):
            note(
                f"{error.filename} cannot be written: {reason}; anything that the command "
                "has changed stays changed"
            )
        raise typer.Exit(EXIT_OUTPUT_LOST) from None
    except SystemExit as error:
        # Of the console that prints Typer's help: Rich ends with 1 then.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        raise typer.Exit(EXIT_PIPE_CLOSED) from None


class WorkloadCommand(TyperCommand):
    """Takes a workload's parameters as options, and a program's arguments after ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep argv, since ``--help`` ends parsing before it is read."""
        own = args[: args.index(ARGV_MARK)] if ARGV_MARK in args else args
        ctx.meta[_SUBMIT_ARGV] = tuple(own)
        # Click drops the mark; the words after it are the program's, whatever they look like.
        ctx.meta[PROGRAM_ARGV] = None if own is args else tuple(args[len(own) + 1 :])
        return super().parse_args(ctx, own)


class SubmitCommand(WorkloadCommand):
    """Shows a workload's own help if one is named before ``--help``."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the workload's help, or that of ``submit``."""
        words = ctx.meta.get(_SUBMIT_ARGV, ())
        named = next((word for word in words if word in WORKLOADS or is_path(word)), None)
        if named is None:
            super().format_help(ctx, formatter)
        elif named in WORKLOADS:
            _print_workload(named, WORKLOADS[named].of_model({"model": _named_model(words)}))
        else:
            _print_program(named)


# A workload's parameters are options too, but only the catalogue knows them.
_ANY_OPTION = {"ignore_unknown_options": True, "allow_extra_args": True}
_SETTINGS: Mapping[str, dict[str, Any]] = {
    "submit": {"cls": SubmitCommand, "context_settings": _ANY_OPTION},
    "plan": {"cls": WorkloadCommand, "context_settings": _ANY_OPTION},
    "down": {"context_settings": {"allow_extra_args": True}},  # what follows -- is for `cdk synth`
    "token": {"hidden": True},
}


def _named_model(words: Sequence[str]) -> str:
    """Return the model that ``--model`` names, if there is one of that name."""
    text = " ".join(words).replace("=", " ").partition("--model ")[2]
    name = text.partition(" ")[0]
    return name if name in MODELS else ""


def _print_program(path: str) -> None:
    """Print the help of a program of the user's own: of its workload.toml, if it has one."""
    from jobs.submit.program import named_program
    from jobs.submit.read import OWN_OPTIONS

    try:
        program = named_program(path, None, None, reserved=OWN_OPTIONS)
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
    console.print(parameters_table("Advanced: seldom needed", tuple(advanced)))
    own = "--nodes, --name, --follow, --verbose, --time-limit, --yes, --dry-run, --json"
    if workload.preset is not None:
        own = f"--compile, {own}"
    if named not in WORKLOADS:
        own = f"--workdir, --include, --exclude, --requirements, --from-snapshot, {own}"
    console.print(
        f"A boolean may stand alone and is then true. Options of submit itself ({own}):\n"
        "python -m jobs submit --help",
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
            "--deployment", envvar="TRAINIUM_DEPLOYMENT", help="Deployment to use, by its name."
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
        # A rehearsal's nodes run fewer processes than the instance type; plans have to match.
        typer.Option("--processes-per-node", envvar=ENV_PROCESSES_PER_NODE, min=1, hidden=True),
    ] = None,
) -> None:
    """Run multi-node Trainium jobs on a deployment of this project.

    Nothing but the deployment's name is needed: `cdk deploy` has published the rest. Credentials
    and region come from the usual AWS settings.

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
