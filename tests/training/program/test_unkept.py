"""What a program writes beside the folder that is kept is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.program.unkept import Unkept


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def test_a_folder_that_is_not_kept_is_named_with_the_option_that_keeps_it(code: Path) -> None:
    unkept = Unkept(code, code.parent / "checkpoints", chosen="")
    write(code / "ckpts" / "a" / "1.pt", 8_000_000)
    write(code / "ckpts" / "2.pt", 4_000_000)

    assert unkept.words() == (
        "wrote ckpts/ (2 files, 12 MB), which is not kept; --checkpoint-dir ckpts keeps it"
    )


def test_what_was_there_and_what_is_kept_and_caches_are_not_told(code: Path) -> None:
    unkept = Unkept(code, code / "out", chosen="out")
    write(code / "out" / "1.pt", 10)
    write(code / "pkg" / "__pycache__" / "model.pyc", 10)
    write(code / "train.py", 10)
    (code / "link").symlink_to(code / "out")

    assert unkept.words() is None


def test_who_keeps_a_folder_already_is_told_where_the_rest_may_go(code: Path) -> None:
    unkept = Unkept(code, code / "out", chosen="out")
    write(code / "runs" / "events", 10)

    assert unkept.words() == (
        "wrote runs/ (1 file, 10 bytes), which is not kept; what is written below out or to "
        "TRAINIUM_OUTPUT_DIR is"
    )


def test_files_at_the_top_cannot_be_kept_by_the_name_of_a_folder(code: Path) -> None:
    unkept = Unkept(code, code.parent / "checkpoints", chosen="")
    for number in range(5):
        write(code / f"{number}.pt", 2000)

    assert unkept.words() == (
        "wrote 0.pt (2 kB), 1.pt (2 kB), 2.pt (2 kB) and 2 more, which are not kept; what is "
        "written to TRAINIUM_CHECKPOINT_DIR or TRAINIUM_OUTPUT_DIR is"
    )
