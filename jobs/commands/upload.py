"""`jobs upload`: copy a tokenizer, text, a model or other files to the deployment's bucket."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from jobs.bucket.objects import Bucket
from jobs.bucket.transfers import (
    Direction,
    TransferItem,
    TransferredFile,
    TransferResult,
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
from jobs.deployment import Deployment, DeploymentFields
from jobs.errors import EXIT_OK, Refusal
from jobs.output.console import echo, note, print_document
from jobs.program.files import kind_of
from trainium_catalogue import contract
from trainium_catalogue.models.in_bucket import MODEL_CONFIG, workload_of
from trainium_catalogue.parameters.data import CORPORA, TEXT_SUFFIXES
from trainium_catalogue.wording import counted

InputKind = Literal["tokenizer", "corpus", "model", "files"]
FILES: Final = "files"
"""Kind of an upload for programs: any files."""
_HEAD_BYTES = 4096
_LFS_POINTER = b"version https://git-lfs"


@command
def upload(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(parser=parse_path, metavar="PATH", help="File or folder to upload."),
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name in the bucket.", show_default="the file's or folder's"),
    ] = None,
    include_all: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Upload every file in the folder unchanged, not only text, for your program.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be uploaded; upload nothing.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Upload a tokenizer, training text, pretrained weights, or files for your program.

    *.model and tokenizer*.json go to tokenizers/; a folder or file of text, JSONL or Parquet to
    corpora/<name>/; a Hugging Face model folder (config.json and *.safetensors) to models/<name>/.
    Any other file, or folder without text, goes to corpora/<name>/ unchanged: submit with --input
    NAME, and your program finds it in TRAINIUM_INPUT_DIR. Files already uploaded, with the same
    size and checksum, are skipped, so an interrupted upload resumes.

    \b
    Examples:
      python -m jobs upload ./tokenizer.model
      python -m jobs upload ./my-text/ --name my-corpus
      python -m jobs upload articles.jsonl.gz --dry-run
      python -m jobs upload ./Llama-2-7b-hf/
      python -m jobs upload ./images/ --all --name my-images
    """
    planned = plan_upload(path, name, include_all=include_all)
    aws, target = open_deployment(context, deployment, region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    where = f"s3://{target.bucket}/{planned.prefix}"
    if planned.left_out:
        note(f"skipped, not {planned.content}: {_some(planned.left_out)}")
        if planned.kind == "corpus":
            note("--all uploads every file, for your program")
    outcome = None
    if dry_run:
        note(f"would upload {files(planned.items)}, {_size(planned.num_bytes)}, to {where}")
        for item in () if as_json else planned.items:
            echo(f"s3://{target.bucket}/{item.key}")
    else:
        up_to_date = same_files(bucket, planned.items, prefix=planned.prefix)
        from jobs.output.terminal import Terminal  # not needed by a dry run

        outcome = move(
            bucket,
            planned.items,
            Direction.UP,
            up_to_date=up_to_date,
            note=note,
            console=Terminal(stderr=True),
        )
        _report(target, bucket, planned, outcome)
    if as_json:
        document = UploadDocument(
            deployment=target.name,
            region=target.region,
            uri=where,
            files=transferred(planned.items, outcome),
            kind=planned.kind,
            name=planned.name,
            left_out=planned.left_out,
        )
        print_document(document)
    return EXIT_OK


def _report(target: Deployment, bucket: Bucket, planned: "Upload", outcome: TransferResult) -> None:
    present = f"; {files(outcome.skipped)} already present" if outcome.skipped else ""
    note(f"uploaded {files(outcome.moved)} to s3://{target.bucket}/{planned.prefix}{present}")
    if planned.kind == "tokenizer":
        note(f"use it with: python -m jobs submit tokenize --tokenizer {planned.name} ...")
        return
    mine = {item.key for item in planned.items}
    if planned.kind == "model":
        (described,) = (item.path for item in planned.items if item.path.name == MODEL_CONFIG)
        workload = workload_of(json.loads(described.read_bytes()))
        note(f"use it with: python -m jobs submit {workload} --init-from {planned.name} ...")
        return
    strays = [
        stored.key.removeprefix(planned.prefix)
        for stored in bucket.objects(planned.prefix)
        if stored.key not in mine
    ]
    if strays:
        note(
            f"{planned.prefix} also contains {counted(len(strays), 'file')} from earlier uploads, "
            f"which {'a program receives' if planned.kind == FILES else 'tokenize reads'} too: "
            f"{_some(strays)}; delete {'it' if len(strays) == 1 else 'them'}, or use another --name"
        )
    if planned.kind == FILES:
        uri = f"s3://{target.bucket}/{planned.prefix}"
        note(
            f"use it with: python -m jobs submit ./train.py --input {uri} ..., which copies it to "
            f"{contract.ENV_INPUT_DIR} on every node"
        )
        return
    note(f"use it with: python -m jobs submit tokenize --input {planned.name} ...")


def _some(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


@dataclass(frozen=True, kw_only=True)
class UploadDocument(DeploymentFields):
    """A completed upload or, with --dry-run, a planned one."""

    uri: str
    """S3 URI of the prefix."""
    files: tuple[TransferredFile, ...]
    kind: InputKind
    name: str
    """Name for ``tokenize`` or ``--init-from``; for files, the last part of their prefix."""
    left_out: tuple[str, ...]
    """Skipped entries of the folder: files that are neither text nor part of a model, and entries
    that are not regular files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Files to upload, and their kind of input."""

    kind: InputKind
    name: str
    """Name for ``tokenize`` or ``--init-from``; for files, the last part of their prefix."""
    prefix: str
    """Prefix of its objects in the bucket."""
    items: tuple[TransferItem, ...]
    left_out: tuple[str, ...] = ()
    """Skipped entries of the folder: files that are neither text nor part of a model, and entries
    that are not regular files."""

    @property
    def content(self) -> str:
        """Description of each uploaded file."""
        return {"model": "part of a model", FILES: "a regular file"}.get(self.kind, "text")

    @property
    def num_bytes(self) -> int:
        """Total size of the files."""
        return sum(item.size for item in self.items)


def plan_upload(path: Path, name: str | None, *, include_all: bool = False) -> Upload:
    """Plan the upload; refuse a file whose contents do not match its name."""
    if not path.exists():
        raise Refusal("no-such-path", f"there is no {path}; specify an existing file or folder")
    if name == "":
        _checked_name(name)  # an empty name must not fall back to the default
    if path.is_dir() and not include_all and is_model_folder(path):
        return plan_model_upload(path, name or path.resolve().name)
    if path.is_dir():
        return _folder(path, _corpus_name(name or path.resolve().name), include_all=include_all)
    if not path.is_file():
        raise Refusal(
            "no-such-path", f"{path} is neither a file nor a folder; specify a file or folder"
        )
    if is_tokenizer_name(path.name) and not include_all:
        return _tokenizer(path, _checked_name(name or path.name))
    corpus = _corpus_name(name or _stem(path.name))
    _check_size(path)
    prefix = f"{contract.CORPORA_PREFIX}{corpus}/"
    item = _item(path, prefix + path.name)
    is_text = is_text_name(path.name) and not include_all
    return Upload(kind="corpus" if is_text else FILES, name=corpus, prefix=prefix, items=(item,))


def is_model_folder(path: Path) -> bool:
    """Return whether a folder contains a model as written by transformers' save_pretrained."""
    try:
        return "model_type" in json.loads((path / MODEL_CONFIG).read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def plan_model_upload(path: Path, name: str) -> Upload:
    """Plan the upload of a model; refuse one whose weights are missing."""
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise Refusal(
            "no-weights",
            f"{path} has no *.safetensors; download the model's weights in that format, or save it "
            "again with transformers' save_pretrained",
        )
    for file in weights:
        with file.open("rb") as opened_file:
            if opened_file.read(_HEAD_BYTES).startswith(_LFS_POINTER):
                raise Refusal(
                    "no-weights",
                    f"{file} is a Git LFS pointer; download the file itself (git lfs pull)",
                )
    # Include small files about the model or its tokenizer, but not its weights in other formats.
    others = [file for file in sorted(path.iterdir()) if file not in weights and file.is_file()]
    taken = [*weights, *(file for file in others if file.name.endswith((".json", ".model")))]
    prefix = f"{contract.MODELS_PREFIX}{_checked_name(name)}/"
    return Upload(
        kind="model",
        name=name,
        prefix=prefix,
        items=tuple(_item(file, prefix + file.name) for file in taken),
        left_out=tuple(
            file.name for file in others if file not in taken and not file.name.startswith(".")
        ),
    )


def is_tokenizer_name(name: str) -> bool:
    """Return whether a name looks like ``tokenizer.model`` or ``tokenizer.json``."""
    return name.endswith(".model") or re.fullmatch(r"tokenizer.*\.json", name) is not None


def is_text_name(name: str) -> bool:
    """Return whether ``tokenize`` reads files of that name."""
    lower = name.lower()
    stem = lower.removesuffix(".gz")
    return stem.endswith(TEXT_SUFFIXES) and not (
        lower.endswith(".gz") and stem.endswith(".parquet")
    )


def check_tokenizer(path: Path) -> None:
    """Refuse a file that is neither a SentencePiece model nor a ``tokenizer.json``."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_LFS_POINTER):
        raise _not_a_tokenizer(
            path, "it is a Git LFS pointer; download the file itself (git lfs pull)"
        )
    if path.name.endswith(".json"):
        try:
            document = json.loads(path.read_bytes())
        except ValueError:
            raise _not_a_tokenizer(path, "it is not JSON; upload the original file") from None
        model = document.get("model") if isinstance(document, Mapping) else None
        if not isinstance(model, Mapping) or "type" not in model:
            raise _not_a_tokenizer(
                path,
                "it has no 'model' field; upload tokenizer.json (not tokenizer_config.json) or "
                "tokenizer.model",
            )
    elif not _starts_like_sentencepiece(head):
        raise _not_a_tokenizer(
            path,
            "it is not a SentencePiece model; upload the model's original tokenizer.model",
        )


def _tokenizer(path: Path, name: str) -> Upload:
    _check_size(path)
    check_tokenizer(path)
    if not is_tokenizer_name(name):
        like = f"{name}.model" if path.suffix == ".model" else f"tokenizer-{name}.json"
        raise Refusal(
            "unknown-kind",
            f"--name {name} is not the name of a tokenizer (*.model or tokenizer*.json); use "
            f"{like!r}, for example",
        )
    item = _item(path, contract.TOKENIZERS_PREFIX + name)
    return Upload(kind="tokenizer", name=name, prefix=contract.TOKENIZERS_PREFIX, items=(item,))


def _folder(path: Path, name: str, *, include_all: bool) -> Upload:
    prefix = f"{contract.CORPORA_PREFIX}{name}/"
    paths, non_files = _list_files(path, hidden=include_all)
    texts = [
        file
        for file in paths
        if is_text_name(file.name)
        and not is_tokenizer_name(file.name)
        # Markers such as _SUCCESS are not text.
        and not any(part.startswith("_") for part in file.relative_to(path).parts)
    ]
    others = [file for file in paths if file not in texts]
    if not texts and not include_all:
        _refuse_model_or_tokenizer(path, others)
    is_text = bool(texts) and not include_all
    taken, left = (texts, others) if is_text else (paths, [])
    items = tuple(_item(file, prefix + file.relative_to(path).as_posix()) for file in taken)
    if not any(item.size for item in items):
        what = f"{counted(len(items), 'file')} with 0 bytes" if items else "no files"
        raise Refusal("empty-folder", f"{path} contains {what}; specify another file or folder")
    marks = (".", "_")  # of hidden files and markers, which are not reported
    names = [file.relative_to(path) for file in left]
    return Upload(
        kind="corpus" if is_text else FILES,
        name=name,
        prefix=prefix,
        items=items,
        left_out=(
            *(n.as_posix() for n in names if not any(p.startswith(marks) for p in n.parts)),
            *non_files,
        ),
    )


def _list_files(folder: Path, *, hidden: bool) -> tuple[list[Path], list[str]]:
    """List the files below a folder, and describe entries that are neither files nor folders.

    Hidden files and folders are listed only if ``hidden``.
    """

    def fail(error: OSError) -> None:
        raise error

    files: list[Path] = []
    non_files: list[str] = []
    for here, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(n for n in folders if hidden or not n.startswith("."))
        links = [n for n in folders if Path(here, n).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(here, name)
            if name.startswith(".") and not hidden:
                continue
            if path.is_file():
                files.append(path)
            else:
                non_files.append(f"{path.relative_to(folder).as_posix()} ({kind_of(path)})")
    return sorted(files), non_files


def _refuse_model_or_tokenizer(path: Path, files: list[Path]) -> None:
    """Refuse a folder without text that was probably meant as a model or a tokenizer."""
    names = [file.relative_to(path).as_posix() for file in files]
    weights = [name for name in names if name.endswith(".safetensors")]
    if weights:
        raise Refusal(
            "empty-folder",
            f"{path} has weights ({weights[0]}) but no {MODEL_CONFIG} with a model_type; specify a "
            "folder with both, as transformers' save_pretrained writes it, or pass --all to upload "
            "its files unchanged",
        )
    tokenizers = [name for name in names if is_tokenizer_name(Path(name).name)]
    if tokenizers:
        raise Refusal(
            "empty-folder",
            f"{path} contains no text; upload its tokenizer with `python -m jobs upload "
            f"{path / tokenizers[0]}`, or pass --all to upload its files unchanged",
        )


def _check_size(path: Path) -> None:
    if not path.stat().st_size:
        raise Refusal("empty-file", f"{path} is empty; specify another file")


def _checked_name(name: str) -> str:
    if not re.fullmatch(contract.DATASET_NAME_PATTERN, name):
        raise Refusal(
            "upload-name",
            f"{name!r} cannot be used as a name in the bucket; set --name to "
            f"{contract.DATASET_NAME_HELP}",
        )
    return name


def _corpus_name(name: str) -> str:
    if name in CORPORA:
        raise Refusal(
            "reserved-name",
            f"{name!r} is the name of a corpus that `submit prepare` creates; use another --name",
        )
    return _checked_name(name)


def _item(path: Path, key: str) -> TransferItem:
    return TransferItem(path=path, key=key, size=path.stat().st_size)


def _stem(name: str) -> str:
    return Path(name[:-3] if name.lower().endswith(".gz") else name).stem


def _starts_like_sentencepiece(head: bytes) -> bool:
    """Return whether data starts like a ModelProto: with a piece that starts with its text.

    Both are field 1, length-delimited (google/sentencepiece, sentencepiece_model.proto).
    """
    if len(head) < 4 or head[0] != 0x0A:
        return False
    position = 1
    while position < len(head) and head[position] & 0x80:
        position += 1
    return head[position + 1 : position + 2] == b"\x0a"


def _not_a_tokenizer(path: Path, why: str) -> Refusal:
    return Refusal("not-a-tokenizer", f"{path} is not a tokenizer: {why}")
