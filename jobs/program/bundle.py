"""The bundle: an archive of a program's files that is the same for the same files.

Kept as part of the run and named by its SHA-256, so it is sent once, and a node can tell that it
has the very files of the submission.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.output.console import human
from jobs.program.files import Git, Selection, largest
from jobs.program.globs import match_any
from jobs.program.secrets import find_secrets, secret_name
from trainium_catalogue import contract
from trainium_catalogue.documents import Keywords, Natural, Positive, Sha256

FORMAT: Literal[1] = 1
MAX_PACKED_BYTES = 100_000_000
"""Largest archive: every node fetches and unpacks it in each attempt, while its chips wait."""
MAX_BYTES = 1_000_000_000
"""Most that the files may hold unpacked, for the same reason."""
_LARGE_BYTES = 5_000_000
"""Size of an archive that takes a moment to send."""
_INSTEAD = (
    "put data into the bucket with `python -m jobs upload FILE`, which takes any file or folder "
    "and shows the --input that puts it into TRAINIUM_INPUT_DIR on every node; leave it out here "
    "with --exclude"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledFile:
    """One file of a bundle."""

    path: str
    """Relative path, with slashes."""
    bytes: Natural
    sha256: Sha256
    mode: Annotated[int, Keywords(enum=[0o644, 0o755])]
    """Permissions: 0o644, or 0o755 of what can be executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleListing:
    """The document next to an archive, which is a tar.gz named by its SHA-256."""

    format: Literal[1]
    sha256: Sha256
    """Of the archive."""
    bytes: Positive
    """Size of the archive."""
    files: tuple[BundledFile, ...]
    git: Git | None
    """Null where the folder is in no repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A packed archive, and what it holds."""

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

    @property
    def num_bytes(self) -> int:
        """Size of all files, unpacked."""
        return sum(file.bytes for file in self.files)

    def contents(self) -> dict[str, bytes]:
        """Unpack the files."""
        return dict(members(self.data))

    def sources(self, file: str) -> dict[str, bytes]:
        """Unpack what is Python: ``file``, whatever its name, and modules."""
        found = members(self.data)
        return {path: data for path, data in found if path == file or path.endswith(".py")}

    def mentions(self, word: str) -> bool:
        """Tell whether a word is in any of the files."""
        return any(word.encode() in data for _, data in members(self.data))

    @property
    def listing(self) -> BundleListing:
        """The document next to the archive."""
        return BundleListing(
            format=FORMAT,
            sha256=self.sha256,
            bytes=len(self.data),
            files=self.files,
            git=self.git,
        )


def pack(selection: Selection, *, include: Sequence[str] = ()) -> Bundle:
    """Pack the selected files; refuse keys, links that leave the folder, and too much."""
    import gzip  # only programs need these, and every command would wait for them
    import tarfile

    sources = dict(_sources(selection))
    _check_names(selection.folder, sources, include)
    before = {path: _state(selection.folder, path, source) for path, source in sources.items()}
    sizes = [(path, state.st_size) for path, state in before.items()]
    total = sum(size for _, size in sizes)
    if total > MAX_BYTES:
        raise Refusal(
            "bundle-too-large",
            f"the files of {selection.folder} hold {human(total)}, more than {human(MAX_BYTES)}; "
            f"the largest are {largest(sizes)}; {_INSTEAD}",
        )
    files: list[BundledFile] = []
    unnamed: dict[str, bytes] = {}
    packed = io.BytesIO()
    # Everything that differs between machines and moments is left out: names, times, owners.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(sources):
            data = _read(selection.folder, path, sources[path])
            _check_unchanged(selection.folder, path, sources[path], before[path])
            if match_any(path, include) is None:
                unnamed[path] = data
            mode = 0o755 if before[path].st_mode & 0o100 else 0o644
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
            digest = hashlib.sha256(data).hexdigest()
            files.append(BundledFile(path=path, bytes=len(data), sha256=digest, mode=mode))
            if packed.tell() > MAX_PACKED_BYTES:
                raise Refusal(
                    "bundle-too-large",
                    f"the files of {selection.folder} ({human(total)}) make an archive of more "
                    f"than {human(MAX_PACKED_BYTES)}; the largest are {largest(sizes)}; {_INSTEAD}",
                )
    for path, source in sources.items():
        _check_unchanged(selection.folder, path, source, before[path])
    for path, what in find_secrets(unnamed).items():
        raise _secret(path, what)
    content = packed.getvalue()
    return Bundle(
        sha256=hashlib.sha256(content).hexdigest(),
        data=content,
        files=tuple(files),
        git=selection.git,
        left_out=selection.left_out,
        remark=selection.remark,
    )


def upload(
    bucket: Bucket, run: str, bundle: Bundle, note: Callable[[str], None] | None = None
) -> bool:
    """Put the bundle below the run, unless it is there; tell whether it was sent."""
    key = contract.bundle_key(run, bundle.sha256)
    if find(bucket, run, bundle.sha256) is not None:
        return False
    if note is not None and len(bundle.data) >= _LARGE_BYTES:
        note(f"sending {human(len(bundle.data))}")
    # The list first: whoever finds the archive finds what is in it.
    text = json.dumps(asdict(bundle.listing), indent=1).encode()
    bucket.write(listing_key(run, bundle.sha256), text)
    checksum = base64.b64encode(bytes.fromhex(bundle.sha256)).decode()
    # S3 refuses what arrives differently, and can tell the checksum later without its being read.
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=bundle.data, ChecksumSHA256=checksum)
    return True


def find(bucket: Bucket, run: str, digest: str) -> dict[str, Any] | None:
    """Look a run's bundle up; refuse one whose bytes are not those of its name."""
    key = contract.bundle_key(run, digest)
    head = bucket.head(key, ChecksumMode="ENABLED")
    if head is None:
        return None
    known = head.get("ChecksumSHA256")
    if known is None:
        found = hashlib.sha256(bucket.read(key) or b"").hexdigest()
    else:
        found = base64.b64decode(known).hex() if "-" not in known else "that of an upload in parts"
    if found != digest:
        raise Refusal(
            "bundle-differs",
            f"s3://{bucket.name}/{key} does not hold the bytes that its name says (SHA-256 "
            f"{found}): somebody has put something else there; remove it with "
            f"`aws s3 rm s3://{bucket.name}/{key}`, and submit again",
        )
    return head


def fetch(bucket: Bucket, run: str, digest: str) -> dict[str, bytes]:
    """Read the files of a bundle in the bucket, checked by its hash."""
    import tarfile
    import zlib

    key = contract.bundle_key(run, digest)
    data = bucket.read(key)
    if data is None:
        raise Refusal(
            "no-bundle",
            f"the code of run {run} is gone: there is no s3://{bucket.name}/{key}; only the "
            "program.json of the run says what it ran",
        )
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise Refusal(
            "bundle-differs",
            f"s3://{bucket.name}/{key} does not hold the bytes that its name says (SHA-256 "
            f"{found}): somebody has put something else there; it is not what the run ran",
        )
    try:
        return dict(members(data))
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:
        raise Refusal(
            "bundle-differs",
            f"s3://{bucket.name}/{key} is not an archive that submit made: {error}",
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
    """Key of the list of a bundle's files."""
    return contract.bundle_key(run, digest).removesuffix(".tar.gz") + ".json"


def _sources(selection: Selection) -> Iterator[tuple[str, Path]]:
    """Yield every path of the archive and the file with its contents; links are followed."""
    root = selection.folder.resolve()
    for path in selection.paths:
        _check_text(path)
        file = selection.folder / path
        if not file.is_symlink():
            # What is gone is noticed when it is packed.
            yield path, file
            continue
        try:
            target = file.resolve(strict=False)
        except (OSError, RuntimeError):  # Python 3.13 raises the former
            raise _loop(path, file) from None
        if not target.is_relative_to(root):
            raise Refusal(
                "link-outside",
                f"{path} is a link to {file.readlink()}, which is not below "
                f"{selection.folder}: a node would not have it; copy the file, name a folder that "
                f"holds both with --workdir, or leave the link out with --exclude {path}",
            )
        if target.is_file():
            yield path, target
        elif target.is_dir():
            if file.parent.resolve().is_relative_to(target):
                raise _loop(path, file)
            below = target.relative_to(root).as_posix() + "/"
            for other in selection.paths:
                if not other.startswith(below):
                    continue
                if (selection.folder / other).is_dir():
                    raise Refusal(
                        "link-loop",
                        f"{path} is a link to a folder with the link {other}, and links are "
                        f"followed once; leave one out: --exclude {path}",
                    )
                yield f"{path}/{other.removeprefix(below)}", selection.folder / other
        elif target.is_symlink():  # resolve() gives up there, from Python 3.13 on
            raise _loop(path, file)
        else:
            raise Refusal(
                "link-outside",
                f"{path} is a link to {file.readlink()}, and there is nothing; mend the link, "
                f"or leave it out with --exclude {path}",
            )


def _loop(path: str, link: Path) -> Refusal:
    return Refusal(
        "link-loop",
        f"{path} is a link to {link.readlink()}, which leads back to the link itself, so it has "
        f"no end; leave it out with --exclude {path}",
    )


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Refusal(
            "file-name",
            f"{path!r} is no name in UTF-8, so a node could not write it; rename the file, or "
            "leave its folder out with --exclude",
        ) from None


def _check_names(folder: Path, sources: Mapping[str, Path], include: Sequence[str]) -> None:
    """Refuse files that are keys by their name, unless the user has named them."""
    root = folder.resolve()
    for path, source in sources.items():
        real = source.resolve()
        own = real.relative_to(root).as_posix() if real.is_relative_to(root) else path
        what = secret_name(path) or secret_name(own)
        if what is not None and match_any(path, include) is None:
            raise _secret(path, what)


def _secret(path: str, what: str) -> Refusal:
    return Refusal(
        "secret",
        f"{path}: {what}, and a bundle is kept in the bucket for all who read it; leave it out "
        f"with --exclude {path}, or take it along with --include {path}",
    )


def _state(folder: Path, path: str, source: Path) -> os.stat_result:
    try:
        return source.stat()
    except OSError:
        raise _changed(folder, path) from None


def _read(folder: Path, path: str, source: Path) -> bytes:
    try:
        return source.read_bytes()
    except FileNotFoundError:
        raise _changed(folder, path) from None
    except OSError as error:
        raise Refusal(
            "file",
            f"{folder / path} cannot be read: {error.strerror or error}; set its permissions, or "
            f"leave it out with --exclude {path}",
        ) from None


def _check_unchanged(folder: Path, path: str, source: Path, before: os.stat_result) -> None:
    now = _state(folder, path, source)
    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise _changed(folder, path)


def _changed(folder: Path, path: str) -> Refusal:
    return Refusal(
        "bundle-changed",
        f"{folder / path} changed while the program was packed, so the bundle would be neither "
        f"the old nor the new; submit again, or leave it out with --exclude {path}",
    )
