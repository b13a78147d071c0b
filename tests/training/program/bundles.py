"""Program bundles, as uploaded by `submit`, and the workspace of a node that unpacks them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.training.s3_server import s3_client
from training.core.arguments import parse
from training.core.contract import NodeContract
from training.program.settings import ProgramFolders, ProgramSettings, Workspace
from training.storage import LocalObjects
from trainium_catalogue.contract import bundle_key

SAMPLE = Path(__file__).resolve().parents[2] / "programs" / "sample" / "train.py"

FLAGS = (f"--code={'0' * 64}", "--script=train.py")


def workspace(folder: Path, node: NodeContract, *flags: str) -> Workspace:
    """Return a program's workspace on a node; its bucket and other storage are in ``folder``."""
    settings = ProgramSettings.from_request(parse(["program", *flags]))
    scratch = folder / f"scratch-{node.node_index}"
    scratch.mkdir(exist_ok=True)
    return Workspace(
        node=node,
        settings=settings,
        folders=ProgramFolders.of(scratch, settings, node),
        bucket=LocalObjects(folder / "build"),
        open=lambda uri: LocalObjects(folder / uri.removeprefix("s3://")),
        report=lambda step: None,
    )


def bundle(files: Mapping[str, str | bytes]) -> bytes:
    """Return an archive of files by their paths."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, text in files.items():
            data = text.encode() if isinstance(text, str) else text
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def leave(folder: Path, data: bytes, *, run: str = "test-run") -> str:
    """Put an archive where a launcher without a bucket looks; return its hash."""
    digest = hashlib.sha256(data).hexdigest()
    path = folder / "build" / bundle_key(run, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return digest


def upload(bucket: Mapping[str, str], data: bytes, *, run: str = "test-run") -> str:
    """Put an archive into an emulated bucket; return its hash."""
    digest = hashlib.sha256(data).hexdigest()
    client = s3_client(bucket["AWS_ENDPOINT_URL"])
    client.put_object(Bucket=bucket["TRAINIUM_BUCKET"], Key=bundle_key(run, digest), Body=data)
    return digest


def program(folder: Path, *files: tuple[str, str], **main: str) -> list[str]:
    """Store a program of one script, ``train.py``, and other files; return the flags to run it."""
    texts = {"train.py": main["script"], **dict(files)}
    return [f"--code={leave(folder, bundle(texts))}", "--script=train.py"]
