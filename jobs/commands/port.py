"""`jobs port`: what of a GPU program has to be changed for Trainium, without running it."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    given_path,
    is_deployment_given,
    opened,
)
from jobs.errors import EXIT_JOB_FAILED, EXIT_OK, Refusal
from jobs.output.console import print_document, printable
from jobs.port.findings import SourceFolder, find
from jobs.port.report import backend_of, document, lines
from jobs.submit.program import named_program
from jobs.submit.read import OWN_OPTIONS
from trainium_catalogue.releases import TorchBackend


@command
def port(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="A program of yours, such as ./train.py, or a folder with a workload.toml.",
            show_default=False,
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", help="Module of yours, as with `python -m`."),
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            "--workdir",
            parser=given_path,
            metavar="DIR",
            help="Folder of your program.",
            show_default="the file's; with -m: this one",
        ),
    ] = None,
    torch_backend: Annotated[
        TorchBackend | None,
        typer.Option(
            "--torch-backend",
            help="How PyTorch reaches the chips: xla on trn1 and trn1n, and on trn2 up to SDK "
            "2.31; torchneuron on trn2 from SDK 2.33 on.",
            show_default="that of --deployment; else both",
        ),
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """List by file and line what of a GPU program does not run, or runs badly, on Trainium.

    Reads the program and the modules of its own that it imports; runs nothing, changes nothing,
    and needs no AWS account unless --deployment is given.

    Exit codes: 0 nothing found, 1 something found, 2 refused.

    \b
    Examples:
      python -m jobs port ./train.py
      python -m jobs port ./train.py --torch-backend torchneuron
      python -m jobs port -m mypkg.train --json
    """
    program = named_program(what, module, workdir, reserved=OWN_OPTIONS)
    if program is None:
        raise Refusal(
            "no-program",
            f"{f'{what} is no program of yours' if what else 'no program was given'}; name its "
            "file or folder, such as ./train.py",
        )
    entry = program.entry
    if not entry.file:
        raise Refusal(
            "no-such-file",
            f"-m {entry.module} is not in {entry.folder.absolute()}; name the folder that holds "
            "it with --workdir",
        )
    if torch_backend is None and is_deployment_given(context, deployment):
        _, target = opened(context, deployment, region)
        torch_backend = backend_of(target.neuron_release)
    found = find(entry, SourceFolder(entry.folder))
    if as_json:
        print_document(document(entry.shown, found, torch_backend))
    else:
        for line in lines(found, torch_backend):
            typer.echo(printable(line))
    return EXIT_JOB_FAILED if found else EXIT_OK
