"""Bundles: unpacking, and refusals before anything runs."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE
from tests.training.program.bundles import bundle, leave
from training.core.arguments import ArgumentError, parse
from training.program import downloads
from training.program.preparation import judged
from training.program.settings import (
    NotPrepared,
    ProgramFolders,
    ProgramSettings,
    Workspace,
    no_space,
)
from training.storage import LocalObjects
from training.workloads import refuse_unfit
from trainium_catalogue.exit_codes import ExitCode


def workspace(folder: Path, digest: str, *, script: str = "train.py") -> Workspace:
    request = parse(["program", f"--code={digest}", f"--script={script}"])
    settings = ProgramSettings.from_request(request)
    node = replace(CPU_NODE, run="test-run")
    scratch = folder / "scratch"
    scratch.mkdir()
    return Workspace(
        node=node,
        settings=settings,
        folders=ProgramFolders.of(scratch, settings, node),
        bucket=LocalObjects(folder / "build"),
        open=lambda uri: LocalObjects(Path(uri)),
        report=lambda step: None,
    )


def refusal(folder: Path, data: bytes, *, script: str = "train.py") -> str:
    place = workspace(folder, leave(folder, data), script=script)
    with pytest.raises(NotPrepared) as refused:
        downloads.unpack_bundle(place)
    assert refused.value.code is ExitCode.CONFIGURATION
    return refused.value.reason


def archive(add: Callable[[tarfile.TarFile], None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        add(tar)
    return buffer.getvalue()


def member(name: str, **attributes: object) -> bytes:
    info = tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(info, key, value)
    return archive(lambda tar: tar.addfile(info, io.BytesIO(b"")))


def with_another_checksum(data: bytes) -> bytes:
    """Corrupt the CRC-32 that ends a gzip file (RFC 1952), up to which the archive is read."""
    data = gzip.compress(gzip.decompress(data)[:1024], mtime=0)  # without the end of a tar
    return data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]


def test_files_keep_their_content_and_mode(tmp_path: Path) -> None:
    place = workspace(tmp_path, leave(tmp_path, bundle({"train.py": "1", "a/b c.sh": b"\x00"})))

    downloads.unpack_bundle(place)

    assert (place.folders.code / "train.py").read_text() == "1"
    assert (place.folders.code / "a/b c.sh").read_bytes() == b"\x00"
    assert not list(tmp_path.glob("scratch/*.gz"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (member("../outside"), "leads out of its folder"),
        (member("/etc/absolute"), "absolute path"),
        (member("a", type=tarfile.SYMTYPE, linkname="../../outside"), "is not a regular file"),
        (member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is not a regular file"),
        (member("a", type=tarfile.LNKTYPE, linkname="../../outside"), "is not a regular file"),
        (member("a", type=tarfile.CHRTYPE), "is not a regular file"),
        (b"not an archive", "cannot be unpacked"),
        (bundle({"train.py": "1" * 100_000})[:60], "cannot be unpacked"),
        (gzip.compress(b"no tar"), "cannot be unpacked"),
        (with_another_checksum(bundle({"train.py": "1"})), "cannot be unpacked"),
    ],
    # Archives contain their creation time, and every pytest worker creates its own.
    ids=[
        *("outside", "absolute", "link-outside", "link-absolute", "hard-link", "device"),
        *("no-archive", "cut-short", "no-tar", "checksum"),
    ],
)
def test_an_unsafe_archive_is_refused(data: bytes, text: str, tmp_path: Path) -> None:
    reason = refusal(tmp_path, data)

    assert text in reason
    assert "submit the program again" in reason
    assert not (tmp_path / "outside").exists()


def test_a_bundle_with_a_different_hash_is_refused(tmp_path: Path) -> None:
    digest = leave(tmp_path, bundle({"train.py": "1"}))
    path = tmp_path / f"build/runs/test-run/code/{digest}.tar.gz"
    path.write_bytes(bundle({"train.py": "2"}))

    with pytest.raises(NotPrepared, match="differ from those that were submitted") as refused:
        downloads.unpack_bundle(workspace(tmp_path, digest))

    assert hashlib.sha256(path.read_bytes()).hexdigest() in refused.value.reason


def test_a_missing_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPrepared, match=r"the program's files are missing: there is no .*gz; "):
        downloads.unpack_bundle(workspace(tmp_path, "0" * 64))


def test_a_script_that_is_not_in_the_bundle_is_refused(tmp_path: Path) -> None:
    reason = refusal(tmp_path, bundle({"train.py": "1"}), script="other.py")

    assert reason.startswith("--script other.py: the bundle has no such file")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "a program is either --script FILE or --module NAME"),
        (["--script=a.py", "--module=a"], "a program is either --script FILE or --module NAME"),
        (["--script=a.py", "--progress-pattern=("], "not a regular expression"),
        (["--script=a.py", r"--progress-pattern=(\d+)"], "has no group for the step"),
        (["--script=../a.py"], "a path below the program's folder"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(words: list[str], text: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        refuse_unfit(parse(["program", f"--code={'0' * 64}", *words]), CPU_NODE)

    assert text in str(refused.value)


def test_a_full_disk_is_reported_with_a_remedy(tmp_path: Path) -> None:
    full = judged(OSError(28, "No space left on device"), tmp_path)
    hopeless = no_space(tmp_path / "missing", "--dataset all", 2**60)

    assert full.code is ExitCode.PREFLIGHT
    assert hopeless.code is ExitCode.CONFIGURATION
    for refused in (full, hopeless):
        assert refused.reason.startswith("no space left on the node: ")
        assert "root_volume_gib" in refused.reason
