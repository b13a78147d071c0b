"""What a program writes beside the folder that is kept is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.program.remarks import Place, UnkeptFiles, places
from training.program.reports import UNKEPT_FILE


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def test_a_folder_that_is_not_kept_is_named_with_the_option_that_keeps_it(
    code: Path, tmp_path: Path
) -> None:
    unkept = UnkeptFiles(code, code.parent / "checkpoints", chosen="")
    write(code / "ckpts" / "a" / "1.pt", 8_000_000)
    write(code / "ckpts" / "2.pt", 4_000_000)

    assert unkept.news(code) == (
        "wrote ckpts/ (2 files, 12 MB), which is not kept; --checkpoint-dir ckpts keeps it"
    )


def test_what_was_there_and_what_is_kept_and_caches_are_not_told(
    code: Path, tmp_path: Path
) -> None:
    unkept = UnkeptFiles(code, code / "out", chosen="out")
    write(code / "out" / "1.pt", 10)
    write(code / "pkg" / "__pycache__" / "model.pyc", 10)
    write(code / "train.py", 10)
    (code / "link").symlink_to(code / "out")

    assert unkept.news(tmp_path) is None


def test_who_keeps_a_folder_already_is_told_where_the_rest_may_go(
    code: Path, tmp_path: Path
) -> None:
    unkept = UnkeptFiles(code, code / "out", chosen="out")
    write(code / "runs" / "events", 10)

    assert unkept.news(code) == (
        "wrote runs/ (1 file, 10 bytes), which is not kept; what is written below out or to "
        "TRAINIUM_OUTPUT_DIR is"
    )


def test_a_path_outside_that_the_program_was_told_is_looked_at(code: Path) -> None:
    elsewhere, note = code.parent / "elsewhere", code.parent / "note.txt"
    argv, env = ["--out", str(elsewhere), f"--log={note}"], {"DATA": "/usr/share/x:relative"}
    outside = places(argv, env, home="/root", shares_machine=True)
    assert [place.path for place in outside] == [elsewhere, note]
    unkept = UnkeptFiles(code, code.parent / "checkpoints", chosen="", outside=outside)
    write(elsewhere / "step-1" / "model.pt", 5_000_000)
    write(note, 10)

    assert unkept.news(code) == (
        f"wrote {elsewhere}/ (1 file, 5 MB), {note} (10 bytes), which are not kept; what is "
        "written to TRAINIUM_CHECKPOINT_DIR or TRAINIUM_OUTPUT_DIR is"
    )


def test_an_argument_that_cannot_be_a_path_is_no_place(code: Path, tmp_path: Path) -> None:
    outside = places(["/" + "a" * 300], {}, home="", shares_machine=True)

    assert (
        UnkeptFiles(code, code.parent / "checkpoints", chosen="", outside=outside).news(tmp_path)
        is None
    )


def test_a_node_of_its_own_is_looked_at_where_programs_write_by_themselves(
    code: Path, tmp_path: Path
) -> None:
    outside = places([], {}, home="/root", shares_machine=False)
    assert outside == [Place(Path(x), is_whole=False) for x in ("/tmp", "/var/tmp", "/root")]

    top = code.parent / "top"
    write(top / "old" / "data", 10)
    place = Place(top, is_whole=False)
    unkept = UnkeptFiles(
        code, code.parent / "out", chosen="", outside=[place], without=[top / "mine"]
    )
    for name in ("ckpt/1.pt", "tmpab12/x", ".cache/y", "torchinductor_root/z", "mine/w", "old/new"):
        write(top / name, 2000)

    assert unkept.news(code) == (
        f"wrote {top}/ckpt/ (1 file, 2 kB), {top}/old/ (1 file, 2 kB), which are not kept; what "
        "is written to TRAINIUM_CHECKPOINT_DIR or TRAINIUM_OUTPUT_DIR is"
    )


def test_what_holds_the_program_or_is_kept_is_no_place_outside(code: Path, tmp_path: Path) -> None:
    argv = [str(code), str(code.parent), str(code.parent / "fsx" / "data")]
    outside = places(argv, {}, home="", shares_machine=True)
    unkept = UnkeptFiles(
        code, code / "out", chosen="out", outside=outside, without=[code.parent / "fsx"]
    )
    for path in (code / "out" / "1.pt", code.parent / "other", code.parent / "fsx/data/x"):
        write(path, 10)

    assert unkept.news(tmp_path) is None


def test_it_is_told_again_when_there_is_more(code: Path, tmp_path: Path) -> None:
    unkept = UnkeptFiles(code, code.parent / "checkpoints", chosen="")
    assert unkept.news(tmp_path) is None
    write(code / "a" / "1.pt", 10)
    assert (unkept.news(tmp_path) or "").startswith("wrote a/ (1 file, 10 bytes)")
    write(code / "a" / "2.pt", 10)
    assert unkept.news(tmp_path) is None
    write(code / "b" / "1.pt", 10)
    words = unkept.news(tmp_path)
    assert words is not None and "a/ (2 files" in words and "b/ (1 file" in words
    assert (tmp_path / UNKEPT_FILE).read_text() == words


def test_a_place_of_more_files_than_are_looked_at_is_left_out(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.program.remarks._MOST_FILES", 3)
    data = code.parent / "data"
    for number in range(4):
        write(data / f"{number}", 10)
    place = Place(data, is_whole=True)
    unkept = UnkeptFiles(code, code.parent / "out", chosen="", outside=[place])
    for path in list(data.iterdir()):
        path.unlink()
        assert unkept.news(tmp_path) is None
