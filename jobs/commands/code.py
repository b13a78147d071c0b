"""`jobs code`: list, fetch and compare the files of a program's run."""

from __future__ import annotations

import hashlib
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import known_runs
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    open_deployment,
    parse_path,
)
from jobs.deployment import RunFields, where
from jobs.errors import EXIT_OK, Refusal
from jobs.job import valid_run_name
from jobs.output.console import echo, human, note, print_document, printable
from jobs.program.bundle import BundledFile, fetch, listing_key, pack
from jobs.program.changes import file_changes
from jobs.program.files import NEVER, select
from jobs.program.record import Submitted, SubmittedProgram, read_record
from trainium_catalogue import contract
from trainium_catalogue.documents import Keywords, Positive, picked
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName, path_parts
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.typed_json import typed
from trainium_catalogue.wording import counted


@command
def code(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run name.")],
    number: Annotated[
        int | None,
        typer.Option(
            "--submission", metavar="N", help="Submission number.", show_default="the newest"
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--fetch",
            parser=parse_path,
            metavar="DIR",
            help="Write the files of a submission to DIR.",
        ),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option(
            "--diff",
            parser=parse_path,
            metavar="DIR",
            help="Compare the files in DIR with those of a submission.",
        ),
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """List the submissions of a program, and list, fetch or compare the files of one.

    Files are verified by their hashes. A file with different contents is never overwritten.

    \b
    Examples:
      python -m jobs code my-run
      python -m jobs code my-run --fetch ./as-it-ran
      python -m jobs code my-run --submission 1 --diff .
    """
    valid_run_name(run)
    aws, target = open_deployment(context, deployment, region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    submissions = read_record(bucket, run)
    if not submissions:
        raise _no_program(bucket, run)
    chosen = _choose_submission(submissions, number, run)
    listing = _listing(bucket, run, chosen.code)
    differences: tuple[str, ...] | None = None
    if diff is not None:
        differences = _compare(bucket, run, chosen, diff)
        for line in differences or ("no differences",):
            note(line)
    written = None if to is None else _fetch(bucket, run, chosen.code, listing, to)
    if written is not None:
        present = len(listing) - written
        others = f"; {counted(present, 'file')} already present" if present else ""
        note(f"wrote {counted(written, 'file')} to {to}{others}")
    if as_json:
        print_document(
            CodeDocument(
                **where(target, run),
                submissions=tuple(picked(SubmittedProgram, item) for item in submissions),
                submission=submissions.index(chosen) + 1,
                files=listing,
                differences=differences,
                to=None if to is None else str(to),
            )
        )
    elif diff is None and to is None:
        _show(run, submissions, chosen, listing)
    return EXIT_OK


def _no_program(bucket: Bucket, run: str) -> Refusal:
    runs = known_runs(bucket)
    if run in runs:
        return Refusal(
            "no-program",
            f"run {run} is not a program of your own: it ran a built-in workload, whose code is in "
            "the deployment's image",
        )
    hint = f": {did_you_mean(run, runs)}" if runs else ": the bucket has no runs"
    return Refusal("unknown-run", f"there is no run {run!r}{hint}")


def _choose_submission(submissions: Sequence[Submitted], number: int | None, run: str) -> Submitted:
    if number is None:
        return submissions[-1]
    if not 1 <= number <= len(submissions):
        which = "omit the option"
        if len(submissions) > 1:
            which = f"specify a number from 1 to {len(submissions)}"
        raise Refusal(
            "no-such-submission",
            f"--submission {number}: run {run} has {counted(len(submissions), 'submission')}; "
            f"{which}",
        )
    return submissions[number - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    files: tuple[BundledFile, ...]


def _listing(bucket: Bucket, run: str, digest: str) -> tuple[BundledFile, ...]:
    document = bucket.document(listing_key(run, digest))
    if document is None:
        raise Refusal(
            "no-bundle",
            f"the code of run {run} no longer exists: there is no "
            f"s3://{bucket.name}/{listing_key(run, digest)}; only the run's "
            f"{contract.RUN_PROGRAM} still describes it",
        )
    try:
        return typed(document, _Listing).files
    except ValueError as error:
        raise _mismatch(f"{listing_key(run, digest)} is not a list of files ({error})") from None


def _compare(bucket: Bucket, run: str, chosen: Submitted, folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        raise Refusal("target", f"--diff {folder} is not a folder; specify the program's folder")
    bundle = pack(select(folder, include=(), exclude=()))
    return tuple(file_changes(bucket, run, chosen.code, bundle))


def _fetch(bucket: Bucket, run: str, digest: str, listing: Sequence[BundledFile], to: Path) -> int:
    """Write the missing files; return their number."""
    if to.exists() and not to.is_dir():
        raise Refusal("target", f"--fetch {to} is a file; specify a folder")
    contents = fetch(bucket, run, digest)
    _check_names(listing)
    folder, missing = SafeFolder(to), dict[str, bytes]()
    try:
        for file in listing:
            path, data = folder.path(file.path), contents.get(file.path)
            if data is None or hashlib.sha256(data).hexdigest() != file.sha256:
                raise _mismatch(f"{file.path} is missing from the bundle or differs from the list")
            if not path.exists():
                missing[file.path] = data
            elif not path.is_file() or path.read_bytes() != data:
                raise Refusal(
                    "target",
                    f"{path} exists with different contents; specify another folder with --fetch",
                )
        executable = {file.path for file in listing if file.mode & stat.S_IXUSR}
        for name, data in missing.items():
            with folder.create(name, mode=0o755 if name in executable else 0o644) as target:
                target.write(data)
    except UnsafeName as error:
        raise Refusal("target", f"{error}, or specify another folder with --fetch") from None
    return len(missing)


def _check_names(listing: Sequence[BundledFile]) -> None:
    """Refuse names that submit never packs.

    They are outside the folder, or in a repository's .git folder, whose hooks git would run.
    """
    for file in listing:
        try:
            parts = path_parts(file.path)
        except UnsafeName as error:
            raise _mismatch(f"the list of files has an invalid name: {error}") from None
        if {part.lower() for part in parts} & set(NEVER):
            raise _mismatch(f"{file.path!r} is in a folder that submit excludes")


def _mismatch(what: str) -> Refusal:
    return Refusal(
        "bundle-differs",
        f"{what}; `submit` never writes such a list, so it does not describe the code that ran",
    )


def _show(
    run: str,
    submissions: Sequence[Submitted],
    chosen: Submitted,
    listing: Sequence[BundledFile],
) -> None:
    for number, item in enumerate(submissions, 1):
        nodes = counted(item.num_nodes, "node")
        resumed = "" if item.from_snapshot is None else f", from snapshot {item.from_snapshot}"
        echo(
            f"submission {number}, {item.submitted_at}, {nodes}, code {item.code[:12]}{resumed}: "
            f"{item.shown} {shlex.join(item.argv)}".rstrip()
        )
    echo(f"files of submission {submissions.index(chosen) + 1} of run {run}:")
    for file in listing:
        echo(printable(f"  {file.sha256[:12]}  {human(file.bytes):>10}  {file.path}"))


@dataclass(frozen=True, kw_only=True)
class CodeDocument(RunFields):
    """The submissions of a program's run, and the files of one."""

    submissions: Annotated[tuple[SubmittedProgram, ...], Keywords(minItems=1)]
    submission: Positive
    """Number of the submission whose files are listed."""
    files: tuple[BundledFile, ...]
    differences: tuple[str, ...] | None
    """With --diff: differences between the folder and the submission; otherwise null."""
    to: str | None
    """With --fetch: the target folder; otherwise null."""
