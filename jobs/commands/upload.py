"""`jobs upload`: a tokenizer, text, a model or any other files into the deployment's bucket."""

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
    given_path,
    opened,
)
from jobs.deployment import Deployment, OfDeployment
from jobs.errors import EXIT_OK, Refusal
from jobs.job import counted
from jobs.output.console import echo, note, print_document
from jobs.program.files import kind_of
from trainium_catalogue import contract
from trainium_catalogue.models.in_bucket import MODEL_CONFIG, workload_of
from trainium_catalogue.parameters.data import CORPORA, TEXT_SUFFIXES

InputKind = Literal["tokenizer", "corpus", "model", "files"]
FILES: Final = "files"
"""Kind of an upload of any files, for programs."""
_HEAD_BYTES = 4096
_LFS_POINTER = b"version https://git-lfs"


@command
def upload(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(parser=given_path, metavar="PATH", help="A file, or a folder."),
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name in the bucket.", show_default="the file's or folder's"),
    ] = None,
    takes_all: Annotated[
        bool,
        typer.Option(
            "--all", help="Every file of a folder, as it is, for a program of yours; not only text."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be uploaded, upload nothing.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Upload a tokenizer, text to train on, a model to begin with, or files for your program.

    *.model and tokenizer*.json go to tokenizers/, a folder or file of text, JSONL or Parquet to
    corpora/<name>/, a folder with config.json and *.safetensors, as Hugging Face's models have,
    to models/<name>/. Any other file, or folder without text, goes to corpora/<name>/ as it is: a
    program of yours gets it with --input, in TRAINIUM_INPUT_DIR. What is there already with the
    same size and checksum is left out, so an upload that was interrupted goes on where it ended.

    \b
    Examples:
      python -m jobs upload ./tokenizer.model
      python -m jobs upload ./my-text/ --name my-corpus
      python -m jobs upload articles.jsonl.gz --dry-run
      python -m jobs upload ./Llama-2-7b-hf/
      python -m jobs upload ./images/ --all --name my-images
    """
    planned = planned_upload(path, name, takes_all=takes_all)
    aws, target = opened(context, deployment, region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    where = f"s3://{target.bucket}/{planned.prefix}"
    if planned.left_out:
        note(f"left out, not {planned.content}: {_some(planned.left_out)}")
        if planned.kind == "corpus":
            note("--all takes every file, for a program of yours")
    outcome = None
    if dry_run:
        note(f"would upload {files(planned.items)}, {_size(planned.num_bytes)}, to {where}")
        for item in () if as_json else planned.items:
            echo(f"s3://{target.bucket}/{item.key}")
    else:
        there = same_files(bucket, planned.items, prefix=planned.prefix)
        from jobs.output.terminal import Terminal  # not needed by a dry run

        outcome = move(
            bucket,
            planned.items,
            Direction.UP,
            there=there,
            note=note,
            console=Terminal(stderr=True),
        )
        _report(target, bucket, planned, outcome)
    if as_json:
        print_document(upload_document(target, planned, outcome))
    return EXIT_OK


def _report(target: Deployment, bucket: Bucket, planned: "Upload", outcome: TransferResult) -> None:
    there = f"; {files(outcome.skipped)} there already" if outcome.skipped else ""
    note(f"uploaded {files(outcome.moved)} to s3://{target.bucket}/{planned.prefix}{there}")
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
        found.key.removeprefix(planned.prefix)
        for found in bucket.objects(planned.prefix)
        if found.key not in mine
    ]
    if strays:
        note(
            f"{planned.prefix} holds {counted(len(strays), 'more file')} of earlier uploads, which "
            f"{'a program gets' if planned.kind == FILES else 'tokenize reads'} too: "
            f"{_some(strays)}; remove them, or use another --name"
        )
    if planned.kind == FILES:
        uri = f"s3://{target.bucket}/{planned.prefix}"
        note(
            f"use it with: python -m jobs submit ./train.py --input {uri} ..., which puts it into "
            f"{contract.ENV_INPUT_DIR} on every node"
        )
        return
    note(f"use it with: python -m jobs submit tokenize --input {planned.name} ...")


def _some(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def upload_document(
    deployment: Deployment, planned: "Upload", outcome: TransferResult | None
) -> "UploadDocument":
    """Make the document of ``upload --json``; without an outcome, nothing was uploaded."""
    return UploadDocument(
        deployment=deployment.name,
        region=deployment.region,
        uri=f"s3://{deployment.bucket}/{planned.prefix}",
        files=transferred(planned.items, outcome),
        kind=planned.kind,
        name=planned.name,
        left_out=planned.left_out,
    )


@dataclass(frozen=True, kw_only=True)
class UploadDocument(OfDeployment):
    """What was uploaded, or would be."""

    uri: str
    """Place in the bucket."""
    files: tuple[TransferredFile, ...]
    kind: InputKind
    name: str
    """Name by which ``tokenize`` or ``--init-from`` finds it."""
    left_out: tuple[str, ...]
    """Files of the folder that are neither text nor a model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Files to upload, and the kind of input they make up."""

    kind: InputKind
    name: str
    """Name by which ``tokenize`` or ``--init-from`` finds it; of files, the end of their prefix."""
    prefix: str
    """Prefix of its objects in the bucket."""
    items: tuple[TransferItem, ...]
    left_out: tuple[str, ...] = ()
    """Names in the folder that are neither text nor a model's, or no files."""

    @property
    def content(self) -> str:
        """What each of the files is."""
        return {"model": "part of a model", FILES: "a regular file"}.get(self.kind, "text")

    @property
    def num_bytes(self) -> int:
        """Total size of the files."""
        return sum(item.size for item in self.items)


def planned_upload(path: Path, name: str | None, *, takes_all: bool = False) -> Upload:
    """Plan the upload; refuse what cannot be what its name says."""
    if not path.exists():
        raise Refusal("no-such-path", f"there is no {path}; name a file or a folder that exists")
    if name == "":
        _checked_name(name)  # the default is for a name that was not given
    if path.is_dir() and not takes_all and is_model_folder(path):
        return planned_model(path, name or path.resolve().name)
    if path.is_dir():
        return _folder(path, _corpus_name(name or path.resolve().name), takes_all=takes_all)
    if not path.is_file():
        raise Refusal("no-such-path", f"{path} is neither a file nor a folder; name one")
    if is_tokenizer_name(path.name) and not takes_all:
        return _tokenizer(path, _checked_name(name or path.name))
    corpus = _corpus_name(name or _stem(path.name))
    _check_size(path)
    prefix = f"{contract.CORPORA_PREFIX}{corpus}/"
    item = TransferItem(path=path, key=prefix + path.name, size=path.stat().st_size)
    is_text = is_text_name(path.name) and not takes_all
    return Upload(kind="corpus" if is_text else FILES, name=corpus, prefix=prefix, items=(item,))


def is_model_folder(path: Path) -> bool:
    """Recognise a model's folder, as transformers' save_pretrained writes it."""
    try:
        return "model_type" in json.loads((path / MODEL_CONFIG).read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def planned_model(path: Path, name: str) -> Upload:
    """Plan the upload of a model; refuse one whose weights are not here."""
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise Refusal(
            "no-weights",
            f"{path} has no *.safetensors; fetch the model's weights in that format, or save it "
            "again with transformers' save_pretrained",
        )
    for file in weights:
        with file.open("rb") as opened_file:
            if opened_file.read(_HEAD_BYTES).startswith(_LFS_POINTER):
                raise Refusal(
                    "no-weights",
                    f"{file} is a Git LFS pointer; fetch the file itself (git lfs pull)",
                )
    # Small files about the model or its tokenizer go along; the same weights in other formats not.
    others = [file for file in sorted(path.iterdir()) if file not in weights and file.is_file()]
    taken = [*weights, *(file for file in others if file.name.endswith((".json", ".model")))]
    prefix = f"{contract.MODELS_PREFIX}{_checked_name(name)}/"
    return Upload(
        kind="model",
        name=name,
        prefix=prefix,
        items=tuple(
            TransferItem(path=file, key=prefix + file.name, size=file.stat().st_size)
            for file in taken
        ),
        left_out=tuple(
            file.name for file in others if file not in taken and not file.name.startswith(".")
        ),
    )


def is_tokenizer_name(name: str) -> bool:
    """Recognise ``tokenizer.model``, ``tokenizer.json`` and the like."""
    return name.endswith(".model") or re.fullmatch(r"tokenizer.*\.json", name) is not None


def is_text_name(name: str) -> bool:
    """Tell whether ``tokenize`` reads a file of that name."""
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
        raise _no_tokenizer(path, "it is a Git LFS pointer; fetch the file itself (git lfs pull)")
    if path.name.endswith(".json"):
        try:
            document = json.loads(path.read_bytes())
        except ValueError:
            raise _no_tokenizer(path, "it is not JSON; upload it as it came") from None
        model = document.get("model") if isinstance(document, Mapping) else None
        if not isinstance(model, Mapping) or "type" not in model:
            raise _no_tokenizer(
                path,
                "it has no model; upload the file named tokenizer.json (tokenizer_config.json is "
                "another one), or tokenizer.model",
            )
    elif not _begins_as_sentencepiece(head):
        raise _no_tokenizer(
            path, "it is no SentencePiece model; upload tokenizer.model as it came with the weights"
        )


def _tokenizer(path: Path, name: str) -> Upload:
    _check_size(path)
    check_tokenizer(path)
    if not is_tokenizer_name(name):
        like = f"{name}.model" if path.suffix == ".model" else f"tokenizer-{name}.json"
        raise Refusal(
            "unknown-kind",
            f"--name {name} is no name of a tokenizer: those are *.model and tokenizer*.json; "
            f"{like!r} would do",
        )
    item = TransferItem(path=path, key=contract.TOKENIZERS_PREFIX + name, size=path.stat().st_size)
    return Upload(kind="tokenizer", name=name, prefix=contract.TOKENIZERS_PREFIX, items=(item,))


def _folder(path: Path, name: str, *, takes_all: bool) -> Upload:
    prefix = f"{contract.CORPORA_PREFIX}{name}/"
    found, no_files = _listed(path, hidden=takes_all)
    texts = [
        file
        for file in found
        if is_text_name(file.name)
        and not is_tokenizer_name(file.name)
        # Hidden files and markers such as _SUCCESS are neither text nor mistakes.
        and not any(part.startswith("_") for part in file.relative_to(path).parts)
    ]
    others = [file for file in found if file not in texts]
    if not texts and not takes_all:
        _check_meant(path, others)
    is_text = bool(texts) and not takes_all
    taken, left = (texts, others) if is_text else (found, [])
    items = tuple(
        TransferItem(
            path=file, key=prefix + file.relative_to(path).as_posix(), size=file.stat().st_size
        )
        for file in taken
    )
    if not any(item.size for item in items):
        what = f"{counted(len(items), 'file')} without a byte" if items else "no file"
        raise Refusal("empty-folder", f"{path} holds {what}; fill it, or name another")
    marks = (".", "_")
    names = [file.relative_to(path) for file in left]
    return Upload(
        kind="corpus" if is_text else FILES,
        name=name,
        prefix=prefix,
        items=items,
        left_out=(
            *(n.as_posix() for n in names if not any(p.startswith(marks) for p in n.parts)),
            *no_files,
        ),
    )


def _listed(folder: Path, *, hidden: bool) -> tuple[list[Path], list[str]]:
    """List the files below a folder, and describe what else is there but folders."""

    def fail(error: OSError) -> None:
        raise error

    files: list[Path] = []
    no_files: list[str] = []
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
                no_files.append(f"{path.relative_to(folder).as_posix()} ({kind_of(path)})")
    return sorted(files), no_files


def _check_meant(path: Path, files: list[Path]) -> None:
    """Refuse a folder without text in which a model or a tokenizer was probably meant."""
    names = [file.relative_to(path).as_posix() for file in files]
    weights = [name for name in names if name.endswith(".safetensors")]
    if weights:
        raise Refusal(
            "empty-folder",
            f"{path} has weights ({weights[0]}) and no {MODEL_CONFIG} that names a model_type; "
            "name the folder that has both, as transformers' save_pretrained writes them, or give "
            "--all to upload its files as they are",
        )
    tokenizers = [name for name in names if is_tokenizer_name(Path(name).name)]
    if tokenizers:
        raise Refusal(
            "empty-folder",
            f"{path} holds no text; for its tokenizer: python -m jobs upload "
            f"{path / tokenizers[0]}; or give --all to upload its files as they are",
        )


def _check_size(path: Path) -> None:
    if not path.stat().st_size:
        raise Refusal("empty-file", f"{path} is empty; name a file that holds something")


def _checked_name(name: str) -> str:
    if not re.fullmatch(contract.DATASET_NAME_PATTERN, name):
        raise Refusal(
            "upload-name",
            f"{name!r} cannot be its name in the bucket: it takes {contract.DATASET_NAME_HELP}; "
            "give one with --name",
        )
    return name


def _corpus_name(name: str) -> str:
    if name in CORPORA:
        raise Refusal(
            "reserved-name",
            f"{name!r} is the name of a corpus that `submit prepare` makes; give another --name",
        )
    return _checked_name(name)


def _stem(name: str) -> str:
    return Path(name[:-3] if name.lower().endswith(".gz") else name).stem


def _begins_as_sentencepiece(head: bytes) -> bool:
    """Recognise a ModelProto, which begins with its first piece, whose first field is its text.

    (google/sentencepiece, sentencepiece_model.proto: field 1 of either, length-delimited.)
    """
    if len(head) < 4 or head[0] != 0x0A:
        return False
    place = 1
    while place < len(head) and head[place] & 0x80:
        place += 1
    return head[place + 1 : place + 2] == b"\x0a"


def _no_tokenizer(path: Path, why: str) -> Refusal:
    return Refusal("not-a-tokenizer", f"{path} is no tokenizer: {why}")
