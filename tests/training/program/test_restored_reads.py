"""Detecting from outside whether a program reads restored files."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.program.remarks import RestoredReads
from training.program.snapshots.folder import file_state
from training.program.snapshots.restore import RECORD


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "kept" / "epoch-1" / "model.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"saved")
    return path


def watched(model: Path) -> RestoredReads:
    kept = model.parents[1]
    entry = {
        "root": "checkpoints", "path": "epoch-1/model.pt", "sha256": "0", "own": True,
        "seen": file_state(model),
    }  # fmt: skip
    (kept.parent / RECORD).write_text(json.dumps({"number": 1, "entries": [entry]}))
    folders: Any = SimpleNamespace(checkpoints=kept)
    return RestoredReads(folders, kept.parent)


def test_a_file_read_and_immediately_replaced_is_an_input(model: Path) -> None:
    reads = watched(model)
    model.read_bytes()
    model.with_suffix(".new").write_bytes(b"newer")
    model.with_suffix(".new").replace(model)

    assert reads.first() == "epoch-1/model.pt"


def test_a_mapped_database_is_an_input(model: Path) -> None:
    reads = watched(model)
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:1] == b"s"

    assert reads.first() == "epoch-1/model.pt"


def test_an_open_database_that_is_read_and_written_is_an_input(model: Path) -> None:
    reads = watched(model)
    with model.open("r+b") as file:
        assert file.read() == b"saved"
        file.write(b" again")
        file.flush()

        assert reads.first() == "epoch-1/model.pt"


def test_an_append_only_log_is_not_an_input(model: Path) -> None:
    reads = watched(model)
    with model.open("ab") as file:
        file.write(b" again")
    model.read_bytes()

    assert reads.first() is None


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_read_only_after_it_was_written_is_not_an_input(model: Path, in_place: bool) -> None:
    reads = watched(model)
    if in_place:
        model.write_bytes(b"of this attempt")
    else:
        model.with_suffix(".new").write_bytes(b"of this attempt")
        model.with_suffix(".new").replace(model)
    model.read_bytes()

    assert reads.num_files == 1
    assert reads.first() is None


def test_checking_names_and_sizes_reads_no_content(model: Path) -> None:
    reads = watched(model)
    assert [path.stat().st_size for path in model.parent.iterdir()] == [5]

    assert reads.first() is None
    reads.close()
