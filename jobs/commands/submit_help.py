"""`submit WORKLOAD --help`: the parameters of that workload."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Parameter, Workload

_WORDS = "jobs.submit.words"


class SubmitCommand(TyperCommand):
    """Shows a workload's own help when one is named before ``--help``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, which ``--help`` would otherwise end before they are read."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the workload's help, or that of ``submit``."""
        named = next((word for word in ctx.meta.get(_WORDS, ()) if word in WORKLOADS), None)
        if named is None:
            super().format_help(ctx, formatter)
        else:
            _print_workload(WORKLOADS[named])


def _print_workload(workload: Workload) -> None:
    from rich.console import Console

    from jobs.output.catalogue import parameters_table

    console = Console(highlight=False)
    required = "".join(f" --{p.name} {_value(p)}" for p in workload.parameters if p.required)
    console.print(
        f"usage: python -m jobs submit {workload.name}{required} [--parameter value]... [option]..."
        f"\n\n{workload.summary}\n",
        markup=False,
    )
    console.print(parameters_table(f"Parameters of {workload.name}", workload.parameters))
    console.print(parameters_table("Parameters of every workload", LAUNCH_PARAMETERS))
    own = "--nodes, --name, --follow, --time-limit, --yes, --dry-run, --json"
    if workload.preset is not None:
        own = f"--compile, {own}"
    console.print(
        f"A boolean may stand alone and is then true. Options of submit itself ({own}):\n"
        "python -m jobs submit --help",
        markup=False,
    )


def _value(item: Parameter) -> str:
    return item.name.rpartition("-")[2].upper()
