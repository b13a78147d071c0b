"""The bundle: a reproducible archive of a program's files.

It is stored with the run and named by its SHA-256, so that it is uploaded once, and nodes can
verify that they have the submitted files.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.output.console import human, note
from jobs.program.files import Git, Selection, largest
from jobs.program.globs import match_any
from jobs.program.secrets import find_secrets, secret_name
from trainium_catalogue import contract
from trainium_catalogue.documents import Keywords, Natural, Positive, Sha256

FORMAT: Literal[1] = 1
MAX_PACKED_BYTES = 100_000_000
"""Size limit of the archive: in each attempt the nodes idle while downloading and unpacking it."""
MAX_BYTES = 1_000_000_000
"""Size limit of the unpacked files, for the same reason."""
_LARGE_BYTES = 5_000_000
"""Size above which uploading an archive takes noticeable time."""
_INSTEAD = (
    "upload data with `python -m jobs upload PATH`, which prints the --input option that copies it "
    "to TRAINIUM_INPUT_DIR on every node, and exclude it from the bundle with --exclude"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledFile:
    """One file of a bundle."""

    path: str
    """Relative path, with slashes."""
    bytes: Natural
    sha256: Sha256
    mode: Annotated[int, Keywords(enum=[0o644, 0o755])]
    """Permissions: 0o644, or 0o755 for executables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleListing:
    """The document next to an archive, which is a tar.gz named by its SHA-256."""

    format: Literal[1]
    sha256: Sha256
    """SHA-256 of the archive."""
    bytes: Positive
    """Size of the archive."""
    files: tuple[BundledFile, ...]
    git: Git | None
    """Null outside a git repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A packed archive, and its contents."""

    sha256: str
    data: bytes
    files: tuple[BundledFile, ...]
    git: Git | None
    left_out: tuple[str, ...] = ()
    remark: str | None = None

    @property
    def paths(self) -> frozenset[str]:
        """Paths of the files."""
        return frozenset(file.path for file in self.files)

    def contents(self) -> dict[str, bytes]:
        """Unpack the files."""
        return dict(members(self.data))

    def sources(self, file: str) -> dict[str, bytes]:
        """Unpack the Python code: ``file``, whatever its name, and all modules."""
        entries = members(self.data)
        return {path: data for path, data in entries if path == file or path.endswith(".py")}

    def mentions(self, word: str) -> bool:
        """Return whether any of the files contains a word."""
        return any(word.encode() in data for _, data in members(self.data))


def pack(selection: Selection, *, include: Sequence[str] = ()) -> Bundle:
    """Pack the selected files; refuse credentials, links out of the folder, and too much data."""
    import gzip  # imported here to keep other commands fast
    import tarfile

    sources = dict(_sources(selection))
    _check_names(selection.folder, sources, include)
    before = {path: _state(selection.folder, path, source) for path, source in sources.items()}
    sizes = [(path, state.st_size) for path, state in before.items()]
    total = sum(size for _, size in sizes)
    if total > MAX_BYTES:
        raise Refusal(
            "bundle-too-large",
            f"the files in {selection.folder} total {human(total)}, but the limit is "
            f"{human(MAX_BYTES)}; the largest are {largest(sizes)}; {_INSTEAD}",
        )
    files: list[BundledFile] = []
    to_scan: dict[str, bytes] = {}
    packed = io.BytesIO()
    # For reproducibility, omit the archive's name, times and owners.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(sources):
            data = _read(selection.folder, path, sources[path])
            _check_unchanged(selection.folder, path, sources[path], before[path])
            if match_any(path, include) is None:
                to_scan[path] = data
            mode = 0o755 if before[path].st_mode & 0o100 else 0o644
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
            digest = hashlib.sha256(data).hexdigest()
            files.append(BundledFile(path=path, bytes=len(data), sha256=digest, mode=mode))
            if packed.tell() > MAX_PACKED_BYTES:
                raise Refusal(
                    "bundle-too-large",
                    f"the files in {selection.folder} ({human(total)}) exceed the limit of "
                    f"{human(MAX_PACKED_BYTES)} even when compressed; the largest are "
                    f"{largest(sizes)}; {_INSTEAD}",
                )
    for path, source in sources.items():
        _check_unchanged(selection.folder, path, source, before[path])
    for path, what in find_secrets(to_scan).items():
        raise _secret_refusal(path, what)
    content = packed.getvalue()
    return Bundle(
        sha256=hashlib.sha256(content).hexdigest(),
        data=content,
        files=tuple(files),
        git=selection.git,
        left_out=selection.left_out,
        remark=selection.remark,
    )


def upload(bucket: Bucket, run: str, bundle: Bundle) -> bool:
    """Upload the bundle to the run unless it exists; return whether it was uploaded."""
    key = contract.bundle_key(run, bundle.sha256)
    if find(bucket, run, bundle.sha256) is not None:
        return False
    if len(bundle.data) >= _LARGE_BYTES:
        note(f"uploading {human(len(bundle.data))}")
    # Write the list first, so that every archive in the bucket has one.
    listing = BundleListing(
        format=FORMAT,
        sha256=bundle.sha256,
        bytes=len(bundle.data),
        files=bundle.files,
        git=bundle.git,
    )
    bucket.write(listing_key(run, bundle.sha256), json.dumps(asdict(listing), indent=1).encode())
    checksum = base64.b64encode(bytes.fromhex(bundle.sha256)).decode()
    # S3 verifies the checksum on upload, and returns it later without a download.
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=bundle.data, ChecksumSHA256=checksum)
    return True


def find(bucket: Bucket, run: str, digest: str) -> dict[str, Any] | None:
    """Return S3's metadata of a bundle; refuse one that does not match the hash in its name."""
    key = contract.bundle_key(run, digest)
    head = bucket.head(key, ChecksumMode="ENABLED")
    if head is None:
        return None
    known = head.get("ChecksumSHA256")
    if known is None:
        actual = hashlib.sha256(bucket.read(key) or b"").hexdigest()
    else:
        actual = base64.b64decode(known).hex() if "-" not in known else "of a multipart upload"
    if actual != digest:
        raise Refusal(
            "bundle-differs",
            f"s3://{bucket.name}/{key} does not match the hash in its name (SHA-256 {actual}): it "
            f"was replaced; remove it with `aws s3 rm s3://{bucket.name}/{key}`, and submit again",
        )
    return head


def fetch(bucket: Bucket, run: str, digest: str) -> dict[str, bytes]:
    """Read the files of a bundle in the bucket, and verify its hash."""
    import tarfile
    import zlib

    key = contract.bundle_key(run, digest)
    data = bucket.read(key)
    if data is None:
        raise Refusal(
            "no-bundle",
            f"the code of run {run} no longer exists: there is no s3://{bucket.name}/{key}; only "
            "the run's program.json still describes it",
        )
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise Refusal(
            "bundle-differs",
            f"s3://{bucket.name}/{key} does not match the hash in its name (SHA-256 {actual}): it "
            "was replaced, and is not the code that ran; restore the object's earlier version",
        )
    try:
        return dict(members(data))
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:
        raise Refusal(
            "bundle-differs",
            f"s3://{bucket.name}/{key} is not an archive written by submit: {error}",
        ) from None


def members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an archive."""
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            if file is not None:
                yield entry.name, file.read()


def listing_key(run: str, digest: str) -> str:
    """Return the key of a bundle's file list."""
    return contract.bundle_key(run, digest).removesuffix(".tar.gz") + ".json"


def _sources(selection: Selection) -> Iterator[tuple[str, Path]]:
    """Yield every path of the archive with its source file, following links."""
    root = selection.folder.resolve()
    for path in selection.paths:
        _check_encoding(path)
        file = selection.folder / path
        if not file.is_symlink():
            # Files that have disappeared are detected when packing.
            yield path, file
            continue
        try:
            target = file.resolve(strict=False)
        except (OSError, RuntimeError):  # Python 3.13 raises the former
            raise _loop_refusal(path, file) from None
        if not target.is_relative_to(root):
            raise Refusal(
                "link-outside",
                f"{path} is a link to {file.readlink()}, outside {selection.folder}, and would be "
                "broken on the nodes; copy the file, specify a folder that contains both with "
                f"--workdir, or exclude the link with --exclude {path}",
            )
        if target.is_file():
            yield path, target
        elif target.is_dir():
            if file.parent.resolve().is_relative_to(target):
                raise _loop_refusal(path, file)
            below = target.relative_to(root).as_posix() + "/"
            for other in selection.paths:
                if not other.startswith(below):
                    continue
                if (selection.folder / other).is_dir():
                    raise Refusal(
                        "link-loop",
                        f"{path} is a link to a folder that contains the link {other}, and links "
                        f"are followed only once; exclude one of them: --exclude {path}",
                    )
                yield f"{path}/{other.removeprefix(below)}", selection.folder / other
        elif target.is_symlink():  # where resolve() gives up, since Python 3.13
            raise _loop_refusal(path, file)
        else:
            raise Refusal(
                "link-outside",
                f"{path} is a link to {file.readlink()}, which does not exist; fix the link, or "
                f"exclude it with --exclude {path}",
            )


def _loop_refusal(path: str, link: Path) -> Refusal:
    return Refusal(
        "link-loop",
        f"{path} is a link to {link.readlink()}, which leads back to the link itself; exclude it "
        f"with --exclude {path}",
    )


def _check_encoding(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Refusal(
            "file-name",
            f"{path!r} is not a UTF-8 name, so nodes could not write it; rename the file, or "
            "exclude its folder with --exclude",
        ) from None


def _check_names(folder: Path, sources: Mapping[str, Path], include: Sequence[str]) -> None:
    """Refuse files named like credentials, unless explicitly included."""
    root = folder.resolve()
    for path, source in sources.items():
        real = source.resolve()
        target_path = real.relative_to(root).as_posix() if real.is_relative_to(root) else path
        what = secret_name(path) or secret_name(target_path)
        if what is not None and match_any(path, include) is None:
            raise _secret_refusal(path, what)


def _secret_refusal(path: str, what: str) -> Refusal:
    return Refusal(
        "secret",
        f"{path}: {what}, and everyone with access to the bucket can read the bundle; exclude it "
        f"with --exclude {path}, or include it anyway with --include {path}",
    )


def _state(folder: Path, path: str, source: Path) -> os.stat_result:
    try:
        return source.stat()
    except OSError:
        raise _changed_refusal(folder, path) from None


def _read(folder: Path, path: str, source: Path) -> bytes:
    try:
        return source.read_bytes()
    except FileNotFoundError:
        raise _changed_refusal(folder, path) from None
    except OSError as error:
        raise Refusal(
            "file",
            f"{folder / path} cannot be read: {error.strerror or error}; fix its permissions, or "
            f"exclude it with --exclude {path}",
        ) from None


def _check_unchanged(folder: Path, path: str, source: Path, before: os.stat_result) -> None:
    now = _state(folder, path, source)
    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise _changed_refusal(folder, path)


def _changed_refusal(folder: Path, path: str) -> Refusal:
    return Refusal(
        "bundle-changed",
        f"{folder / path} changed while the program was being packed; submit again, or exclude it "
        f"with --exclude {path}",
    )
