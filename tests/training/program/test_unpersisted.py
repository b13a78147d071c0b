"""Files written outside the persisted folder are reported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from training.program.remarks import Place, UnpersistedFiles, places
from training.program.reports import UNPERSISTED_FILE


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


def watch(
    code: Path, *, chosen: str = "", outside: Iterable[Place] = (), excluded: Iterable[Path] = ()
) -> UnpersistedFiles:
    """Watch a program's files; its checkpoint folder is ``chosen``, or next to its own folder."""
    kept = code / chosen if chosen else code.parent / "checkpoints"
    return UnpersistedFiles(code, kept, chosen=chosen, outside=outside, excluded=excluded)


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def test_an_unpersisted_folder_is_named_with_the_option_to_persist_it(
    code: Path, tmp_path: Path
) -> None:
    unpersisted = watch(code)
    write(code / "ckpts" / "a" / "1.pt", 8_000_000)
    write(code / "ckpts" / "2.pt", 4_000_000)

    assert unpersisted.describe_new(code) == (
        "wrote ckpts/ (2 files, 12 MB), which is not kept; --checkpoint-dir ckpts keeps it"
    )


def test_preexisting_and_persisted_files_and_caches_are_not_reported(
    code: Path, tmp_path: Path
) -> None:
    unpersisted = watch(code, chosen="out")
    write(code / "out" / "1.pt", 10)
    write(code / "pkg" / "__pycache__" / "model.pyc", 10)
    write(code / "train.py", 10)
    (code / "link").symlink_to(code / "out")

    assert unpersisted.describe_new(tmp_path) is None


def test_a_user_of_checkpoint_dir_learns_where_other_files_may_go(
    code: Path, tmp_path: Path
) -> None:
    unpersisted = watch(code, chosen="out")
    write(code / "runs" / "events", 10)

    assert unpersisted.describe_new(code) == (
        "wrote runs/ (1 file, 10 bytes), which is not kept; only files below out and in "
        "TRAINIUM_OUTPUT_DIR are"
    )


def test_a_path_argument_outside_the_code_folder_is_scanned(code: Path) -> None:
    elsewhere, note = code.parent / "elsewhere", code.parent / "note.txt"
    argv, env = ["--out", str(elsewhere), f"--log={note}"], {"DATA": "/usr/share/x:relative"}
    outside = places(argv, env, home="/root", shares_machine=True)
    assert [place.path for place in outside] == [elsewhere, note]
    unpersisted = watch(code, outside=outside)
    write(elsewhere / "step-1" / "model.pt", 5_000_000)
    write(note, 10)

    assert unpersisted.describe_new(code) == (
        f"wrote {elsewhere}/ (1 file, 5 MB), {note} (10 bytes), which are not kept; only "
        "files in TRAINIUM_CHECKPOINT_DIR and TRAINIUM_OUTPUT_DIR are"
    )


def test_an_argument_that_cannot_be_a_path_is_ignored(code: Path, tmp_path: Path) -> None:
    outside = places(["/" + "a" * 300], {}, home="", shares_machine=True)

    assert watch(code, outside=outside).describe_new(tmp_path) is None


def test_temporary_and_home_folders_are_scanned_unless_nodes_share_a_machine(
    code: Path, tmp_path: Path
) -> None:
    outside = places([], {}, home="/root", shares_machine=False)
    assert outside == [Place(Path(x), is_whole=False) for x in ("/tmp", "/var/tmp", "/root")]

    top = code.parent / "top"
    write(top / "old" / "data", 10)
    place = Place(top, is_whole=False)
    unpersisted = watch(code, outside=[place], excluded=[top / "mine"])
    for name in ("ckpt/1.pt", "tmpab12/x", ".cache/y", "torchinductor_root/z", "mine/w", "old/new"):
        write(top / name, 2000)

    assert unpersisted.describe_new(code) == (
        f"wrote {top}/ckpt/ (1 file, 2 kB), {top}/old/ (1 file, 2 kB), which are not kept; only "
        "files in TRAINIUM_CHECKPOINT_DIR and TRAINIUM_OUTPUT_DIR are"
    )


def test_program_and_persisted_folders_are_not_outside(code: Path, tmp_path: Path) -> None:
    argv = [str(code), str(code.parent), str(code.parent / "fsx" / "data")]
    outside = places(argv, {}, home="", shares_machine=True)
    unpersisted = watch(code, chosen="out", outside=outside, excluded=[code.parent / "fsx"])
    for path in (code / "out" / "1.pt", code.parent / "other", code.parent / "fsx/data/x"):
        write(path, 10)

    assert unpersisted.describe_new(tmp_path) is None


def test_it_is_reported_again_when_there_is_more(code: Path, tmp_path: Path) -> None:
    unpersisted = watch(code)
    assert unpersisted.describe_new(tmp_path) is None
    write(code / "a" / "1.pt", 10)
    assert (unpersisted.describe_new(tmp_path) or "").startswith("wrote a/ (1 file, 10 bytes)")
    write(code / "a" / "2.pt", 10)
    assert unpersisted.describe_new(tmp_path) is None
    write(code / "b" / "1.pt", 10)
    words = unpersisted.describe_new(tmp_path)
    assert words is not None and "a/ (2 files" in words and "b/ (1 file" in words
    assert (tmp_path / UNPERSISTED_FILE).read_text() == words


def test_a_location_with_too_many_files_is_skipped(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.program.remarks._MAX_FILES", 3)
    data = code.parent / "data"
    for number in range(4):
        write(data / f"{number}", 10)
    place = Place(data, is_whole=True)
    unpersisted = watch(code, outside=[place])
    for path in list(data.iterdir()):
        path.unlink()
        assert unpersisted.describe_new(tmp_path) is None
