"""`jobs download`: the exported model of a run, or a program's newest snapshot."""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from jobs.bucket.objects import Bucket, ListedObject
from jobs.bucket.training_run import known_runs, read_checkpoints, read_run, read_status
from jobs.bucket.transfers import (
    Direction,
    TransferItem,
    TransferredFile,
    checksum_agrees,
    files,
    move,
    same_files,
    transferred,
)
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
from jobs.output.console import confirm, echo, note, print_document, printable
from jobs.output.program_status import ENDED, NOTHING_KEPT
from jobs.program.snapshots import (
    Snapshot,
    find_snapshot,
    manifest_key,
    newest_snapshot,
    object_key,
)
from trainium_catalogue import contract
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName, path_parts
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.typed_json import typed

_MAX_NAMED = 5
"""Maximum number of files that the confirmation names."""
RECEIPT = "export.json"
"""Receipt with the step, and the files with their sizes; the export workload writes it last."""


@command
def download(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run name.")],
    to: Annotated[
        Path,
        typer.Option("--to", parser=parse_path, metavar="DIR", help="Folder to download into."),
    ],
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="N",
            help="For your own program: number of an older snapshot, as listed by `status`.",
            show_default="the newest",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be downloaded; download nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Overwrite files without confirmation.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Download the model that `submit export --run RUN` wrote, in Hugging Face format.

    For your own program, downloads the regular files in its newest readable snapshot; files that
    differ between nodes go to node-0/, node-1/ and so on. Symbolic links, empty folders and
    permissions are not downloaded.

    Files that exist with the same size and checksum are skipped, so an interrupted download
    resumes. Asks for confirmation before overwriting a file with different contents.

    \b
    Examples:
      python -m jobs submit export --run my-run --follow
      python -m jobs download my-run --to ./checkpoint
    """
    valid_run_name(run)
    aws, target = open_deployment(context, deployment, region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    planned = plan_download(bucket, run, to, snapshot)
    check_target(to, planned)
    up_to_date = same_files(bucket, planned.items, prefix=planned.prefix)
    overwrites = find_overwrites(to, planned, up_to_date)
    outcome = None
    uri = f"s3://{target.bucket}/{planned.prefix}"
    if dry_run:
        size = f"{planned.num_bytes / 1e6:,.1f} MB"
        note(f"would download {files(planned.items)}, {size}, from {uri} to {to}")
        if overwrites:
            note(f"would overwrite {_first_names(overwrites, to)}")
        for item in () if as_json else planned.items:
            echo(printable(str(item.path)))
    else:
        if overwrites and not yes:
            names = _first_names(overwrites, to)
            confirm(
                f"overwriting {names} in {to}",
                question=f"overwrite {names} in {to} with different contents?",
                declined="nothing was downloaded; specify another folder with --to",
            )
        prepare_target(to, planned)
        from jobs.output.terminal import Terminal  # not needed by a dry run

        outcome = move(
            bucket,
            planned.items,
            Direction.DOWN,
            up_to_date=up_to_date,
            note=note,
            console=Terminal(stderr=True),
        )
        check_arrived(bucket, outcome.moved)
        if planned.snapshot is not None:
            check_digests(outcome.moved)
        present = f"; {files(outcome.skipped)} already present" if outcome.skipped else ""
        note(f"downloaded {files(outcome.moved)}{present}: {planned.what} of run {run} is in {to}")
    if as_json:
        document = DownloadDocument(
            **where(target, run),
            uri=uri,
            files=transferred(planned.items, outcome),
            step=planned.step,
            snapshot=planned.snapshot,
            to=str(to),
        )
        print_document(document)
    return EXIT_OK


def _first_names(items: Sequence[TransferItem], to: Path) -> str:
    names = [item.path.relative_to(to).as_posix() for item in items[:_MAX_NAMED]]
    more = f" and {len(items) - len(names):,} more" if len(items) > len(names) else ""
    return f"{', '.join(names)}{more}"


@dataclass(frozen=True, kw_only=True)
class DownloadDocument(RunFields):
    """A completed download or, with --dry-run, a planned one."""

    uri: str
    """S3 URI of the prefix."""
    files: tuple[TransferredFile, ...]
    step: int | None
    """Optimizer steps of the exported checkpoint."""
    snapshot: int | None
    """Number of the snapshot, for a program of your own."""
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Receipt:
    """Fields read from an export's receipt."""

    step: int | None = None
    files: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Files of an export or a snapshot."""

    step: int | None
    prefix: str
    items: tuple[TransferItem, ...]
    snapshot: int | None = None
    """Number of the snapshot, for a program's run."""

    @property
    def what(self) -> str:
        """Description of the content."""
        return f"step {self.step}" if self.snapshot is None else f"snapshot {self.snapshot}"

    @property
    def num_bytes(self) -> int:
        """Total size of the files."""
        return sum(item.size for item in self.items)


def plan_download(bucket: Bucket, run: str, to: Path, number: str | None = None) -> Download:
    """Plan the download of an export, or of a program's snapshot; refuse an incomplete one.

    ``number`` selects a snapshot; by default, it is the newest.
    """
    if number is not None:
        return _plan_snapshot(run, find_snapshot(bucket, run, number, "--snapshot"), to)
    prefix = f"{contract.EXPORT_PREFIX}{run}/"
    objects = list(bucket.objects(prefix))
    receipt = bucket.document(prefix + RECEIPT)
    if not objects:
        snapshot = newest_snapshot(bucket, run)
        if snapshot is None or not snapshot.checkpoints:  # it may contain only compiled graphs
            raise _nothing_to_download(bucket, run)
        return _plan_snapshot(run, snapshot, to)
    if receipt is None:
        raise Refusal(
            "export-incomplete",
            f"the export of run {run} is not complete: {prefix}{RECEIPT} is missing; wait for its "
            f"job, or submit it again: `python -m jobs submit export --run {run}`",
        )
    try:
        exported = typed(receipt, _Receipt)
    except ValueError as error:
        raise Refusal(
            "export-incomplete",
            f"the export of run {run} is damaged: {prefix}{RECEIPT} cannot be read ({error}); "
            f"submit it again: `python -m jobs submit export --run {run}`",
        ) from None
    _check_complete(objects, prefix, exported.files, run)
    items = tuple(
        TransferItem(
            path=_path_in(to, entry.key.removeprefix(prefix), origin=entry.key),
            key=entry.key,
            size=entry.size,
        )
        for entry in objects
        if not entry.key.endswith("/")
    )
    return Download(step=exported.step, prefix=prefix, items=items)


def _plan_snapshot(run: str, snapshot: Snapshot, to: Path) -> Download:
    """Plan the download of a snapshot; files that differ between nodes get a folder per node."""
    counts = Counter(file.path for file in snapshot.checkpoints)
    items = []
    for file in snapshot.checkpoints:
        name = file.path if counts[file.path] == 1 else f"node-{file.node}/{file.path}"
        key = object_key(run, file.sha256)
        origin = manifest_key(run, snapshot.number)
        items.append(TransferItem(path=_path_in(to, name, origin=origin), key=key, size=file.bytes))
    prefix = object_key(run, "")
    return Download(step=None, prefix=prefix, items=tuple(items), snapshot=snapshot.number)


def check_digests(moved: Iterable[TransferItem]) -> None:
    """Refuse files of a snapshot that do not match the hash in their object's name."""
    for item in moved:
        with item.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != item.key.rpartition("/")[2]:
            raise Refusal(
                "not-arrived",
                f"{item.path.name} does not match its snapshot (SHA-256 {digest}): {item.key} was "
                "changed in the bucket, or the local file was changed while it was being written; "
                "run the command again",
            )


def check_target(to: Path, download: Download) -> None:
    """Refuse a folder that is not writable or has too little space."""
    if to.exists() and not to.is_dir():
        raise Refusal("target", f"--to {to} is a file; specify a folder")
    nearest = next(folder for folder in (to.absolute(), *to.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise Refusal(
            "target", f"--to {to} cannot be written to ({nearest}); specify another folder"
        )
    present = sum(_size(item.path) for item in download.items)
    needed, free = download.num_bytes - present, shutil.disk_usage(nearest).free
    if needed > free:
        raise Refusal(
            "target-full",
            f"--to {to} has {free / 1e9:.1f} GB free, but the files need another "
            f"{needed / 1e9:.1f} GB; free some space, or specify another folder",
        )


def find_overwrites(
    to: Path, download: Download, up_to_date: Collection[TransferItem]
) -> list[TransferItem]:
    """List items that would overwrite a file with different contents; refuse links in the path."""
    folder = SafeFolder(to)
    try:
        return [
            item
            for item in download.items
            if item not in up_to_date
            and folder.path(item.path.relative_to(to).as_posix()).is_file()
        ]
    except UnsafeName as error:
        raise _link_refusal(error) from None


def _link_refusal(error: UnsafeName) -> Refusal:
    return Refusal("key", f"{error}, or specify another folder with --to")


def prepare_target(to: Path, download: Download) -> None:
    """Create the folders of the files; refuse a path through a link."""
    folder = SafeFolder(to)
    try:
        for item in download.items:
            folder.prepared(item.path.relative_to(to).as_posix())
    except UnsafeName as error:
        raise _link_refusal(error) from None
    except OSError as error:
        raise Refusal(
            "target",
            f"--to {to}: {error.filename or 'a folder'} cannot be created: "
            f"{error.strerror or error}; specify another folder",
        ) from None


def check_arrived(bucket: Bucket, moved: Iterable[TransferItem]) -> None:
    """Refuse files whose size or checksum differs from the bucket's."""
    mismatched = []
    for item in moved:
        head = bucket.head(item.key, ChecksumMode="ENABLED") or {}
        agrees = checksum_agrees(item.path, bucket, item.key, head)
        if _size(item.path) != item.size or agrees is False:
            mismatched.append(item.path.name)
    if mismatched:
        raise Refusal(
            "not-arrived",
            f"files differ from the bucket's: {', '.join(mismatched)}; run the command again",
        )


def _check_complete(
    objects: list[ListedObject], prefix: str, files: Mapping[str, int], run: str
) -> None:
    sizes = {entry.key.removeprefix(prefix): entry.size for entry in objects}
    mismatched = [name for name, size in files.items() if sizes.get(name) != size]
    if mismatched:
        raise Refusal(
            "export-incomplete",
            f"the export of run {run} is being rewritten or is damaged: files differ from "
            f"{RECEIPT}: {', '.join(mismatched)}; wait for its job, or submit it again: `python "
            f"-m jobs submit export --run {run}`",
        )


def _nothing_to_download(bucket: Bucket, run: str) -> Refusal:
    stored = read_run(bucket, run)
    if stored is None and bucket.head(contract.run_key(run, contract.RUN_PROGRAM)) is not None:
        if (read_status(bucket, run) or {}).get("state") == ENDED:
            return Refusal(
                "nothing-to-download",
                f"run {run}: {NOTHING_KEPT}; submit it again with --checkpoint-dir, or make it "
                f"write its checkpoints to {contract.ENV_CHECKPOINT_DIR}",
            )
        return Refusal(
            "nothing-to-download",
            f"run {run} has no complete snapshot yet, so there is nothing to download; see `python "
            f"-m jobs status {run}`",
        )
    if stored is None:
        runs = known_runs(bucket)
        hint = did_you_mean(run, runs) if runs else "the bucket has no runs"
        return Refusal("unknown-run", f"there is no run {run!r} to download; {hint}")
    checkpoints = read_checkpoints(bucket, run, stored.values)
    if checkpoints.are_seen and not checkpoints.steps:
        return Refusal(
            "nothing-to-download",
            f"run {run} has no complete checkpoint yet, so there is nothing to export or download; "
            f"see `python -m jobs status {run}`",
        )
    steps = ", ".join(str(step) for step in checkpoints.steps) or "not visible from here"
    return Refusal(
        "nothing-to-download",
        f"run {run} has not been exported; run `python -m jobs submit export --run {run}` first "
        f"(checkpoints in {checkpoints.uri}: steps {steps})",
    )


def _path_in(folder: Path, name: str, *, origin: str) -> Path:
    try:
        return folder.joinpath(*path_parts(name))
    except UnsafeName as error:
        raise Refusal(
            "key",
            f"a file name in {origin} cannot be used below {folder}: {error}; this project writes "
            "no such names, so find out what wrote it; for a program's run, --snapshot N downloads "
            "another snapshot",
        ) from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
