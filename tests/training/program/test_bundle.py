"""Bundles: unpacking, and refusals before anything runs."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE
from tests.training.program.bundles import bundle, leave, workspace
from training.core.arguments import ArgumentError, parse
from training.program import downloads
from training.program.preparation import judged
from training.program.settings import NotPrepared, Workspace, no_space
from training.workloads import refuse_unfit
from trainium_catalogue.exit_codes import ExitCode

NODE = replace(CPU_NODE, run="test-run")


def place_of(folder: Path, digest: str, script: str = "train.py") -> Workspace:
    return workspace(folder, NODE, f"--code={digest}", f"--script={script}")


def refusal(folder: Path, data: bytes, script: str = "train.py") -> str:
    with pytest.raises(NotPrepared) as refused:
        downloads.unpack_bundle(place_of(folder, leave(folder, data), script))
    assert refused.value.code is ExitCode.CONFIGURATION
    return refused.value.reason


def member(name: str, **attributes: object) -> bytes:
    """Return an archive of one empty member with these attributes."""
    buffer, info = io.BytesIO(), tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(info, key, value)
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(info, io.BytesIO(b""))
    return buffer.getvalue()


def with_another_checksum(data: bytes) -> bytes:
    """Corrupt the CRC-32 that ends a gzip file (RFC 1952), up to which the archive is read."""
    data = gzip.compress(gzip.decompress(data)[:1024], mtime=0)  # without the end of a tar
    return data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]


def test_files_keep_their_content_and_mode(tmp_path: Path) -> None:
    place = place_of(tmp_path, leave(tmp_path, bundle({"train.py": "1", "a/b c.sh": b"\x00"})))

    downloads.unpack_bundle(place)

    assert (place.folders.code / "train.py").read_text() == "1"
    assert (place.folders.code / "a/b c.sh").read_bytes() == b"\x00"
    assert not list(tmp_path.glob("scratch-0/*.gz"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (member("../outside"), "leads out of its folder"),
        (member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is not a regular file"),
        (b"not an archive", "cannot be unpacked"),
        (bundle({"train.py": "1" * 100_000})[:60], "cannot be unpacked"),
        (with_another_checksum(bundle({"train.py": "1"})), "cannot be unpacked"),
    ],
    # Archives contain their creation time, and every pytest worker creates its own.
    ids=["outside", "link", "no-archive", "cut-short", "checksum"],
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
        downloads.unpack_bundle(place_of(tmp_path, digest))

    assert hashlib.sha256(path.read_bytes()).hexdigest() in refused.value.reason


def test_a_missing_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPrepared, match=r"the program's files are missing: there is no .*gz; "):
        downloads.unpack_bundle(place_of(tmp_path, "0" * 64))


def test_a_script_that_is_not_in_the_bundle_is_refused(tmp_path: Path) -> None:
    reason = refusal(tmp_path, bundle({"train.py": "1"}), "other.py")

    assert reason.startswith("--script other.py: the bundle has no such file")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "a program is either --script FILE or --module NAME"),
        (["--script=a.py", "--module=a"], "a program is either --script FILE or --module NAME"),
        (["--script=a.py", "--progress-pattern=("], "not a regular expression"),
        (["--script=a.py", r"--progress-pattern=(\d+)"], "has no group for the step"),
        (["--script=../a.py"], "a path below the program's folder"),
        (["--script=a.py", "--env=RANK=1"], "--env RANK: torchrun sets it"),
        (
            ["--script=a.py", "--resume-arguments=--from 'out"],
            "--resume-arguments --from 'out: no closing quotation",
        ),
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
