"""`jobs port`: find code to change in a GPU program for Trainium, without running it."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    is_deployment_given,
    open_deployment,
    parse_path,
)
from jobs.errors import EXIT_JOB_FAILED, EXIT_OK, Refusal
from jobs.output.console import print_document, printable
from jobs.port.findings import SourceFolder, find
from jobs.port.report import backend_of, document, lines
from jobs.submit.program import find_program
from jobs.submit.read import OWN_OPTIONS
from trainium_catalogue.releases import TorchBackend


@command
def port(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="Your program, such as ./train.py, or a folder with a workload.toml.",
            show_default=False,
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", help="Module to check, as with `python -m`."),
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            "--workdir",
            parser=parse_path,
            metavar="DIR",
            help="Folder of your program.",
            show_default="the file's; with -m: the current one",
        ),
    ] = None,
    torch_backend: Annotated[
        TorchBackend | None,
        typer.Option(
            "--torch-backend",
            help="PyTorch backend: xla on trn1 and trn1n, and on trn2 up to SDK 2.31; torchneuron "
            "on trn2 with SDK 2.33 and later.",
            show_default="that of --deployment; otherwise both",
        ),
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """List the code in a GPU program that fails or runs slowly on Trainium, by file and line.

    Reads the program and the modules it imports from its own folder; executes nothing and changes
    nothing, and needs no AWS account unless --deployment is given.

    Exit codes: 0 no findings, 1 findings, 2 invalid arguments.

    \b
    Examples:
      python -m jobs port ./train.py
      python -m jobs port ./train.py --torch-backend torchneuron
      python -m jobs port -m mypkg.train --json
    """
    program = find_program(what, module, workdir, reserved=OWN_OPTIONS)
    if program is None:
        raise Refusal(
            "no-program",
            f"{f'{what} is not a program of your own' if what else 'no program was specified'}; "
            "specify your program's file or folder, such as ./train.py",
        )
    entry = program.entry
    if not entry.file:
        raise Refusal(
            "no-such-file",
            f"-m {entry.module} is not in {entry.folder.absolute()}; specify the folder that "
            "contains it with --workdir",
        )
    if torch_backend is None and is_deployment_given(context, deployment):
        _, target = open_deployment(context, deployment, region)
        torch_backend = backend_of(target.neuron_release)
    findings = find(entry, SourceFolder(entry.folder))
    if as_json:
        print_document(document(entry.shown, findings, torch_backend))
    else:
        for line in lines(findings, torch_backend):
            typer.echo(printable(line))
    return EXIT_JOB_FAILED if findings else EXIT_OK
