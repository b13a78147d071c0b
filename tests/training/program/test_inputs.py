"""Data for a program: copied once before it starts, to Lustre if available."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.training.nodes import CPU_NODE
from tests.training.program.bundles import FLAGS, workspace
from training.program.downloads import stage_inputs
from training.program.settings import NotPrepared, Workspace
from training.storage import ObjectInfo
from trainium_catalogue.exit_codes import ExitCode

OTHER = "s3://other/some/prefix"


def place_of(folder: Path, *words: str, lustre: bool = False, node: int = 0) -> Workspace:
    mount = folder / "lustre"
    mount.mkdir(exist_ok=True)
    contract = replace(
        CPU_NODE, num_nodes=2, node_index=node, lustre=str(mount) if lustre else None
    )
    return workspace(folder, contract, *FLAGS, *words)


def put(folder: Path, key: str, text: str) -> None:
    (folder / key).parent.mkdir(parents=True, exist_ok=True)
    (folder / key).write_text(text)


def test_a_dataset_and_a_prefix_become_folders(tmp_path: Path) -> None:
    put(tmp_path / "build/datasets/wiki", "a/b.txt", "1")
    put(tmp_path / "build/datasets/wiki-2", "c.txt", "2")
    put(tmp_path / "other/some/prefix", "d.bin", "3")
    place = place_of(tmp_path, "--dataset=wiki", f"--input={OTHER}")

    stage_inputs(place)

    names = [path.name for path in place.folders.dataset.rglob("*") if path.is_file()]
    assert sorted(names) == [".trainium-staged.json", "b.txt"]
    assert (place.folders.dataset / "a/b.txt").read_text() == "1"
    assert (place.folders.input / "d.bin").read_text() == "3"
    assert place.folders.scratch in place.folders.input.parents


def test_on_lustre_the_main_node_copies_changes_for_all(tmp_path: Path) -> None:
    put(tmp_path / "build/datasets/wiki", "a.txt", "1")
    put(tmp_path / "build/datasets/wiki", "b.txt", "1")
    child = place_of(tmp_path, "--dataset=wiki", lustre=True, node=1)
    main = place_of(tmp_path, "--dataset=wiki", lustre=True)

    stage_inputs(child)
    assert not child.folders.dataset.exists()
    stage_inputs(main)
    kept = child.folders.dataset / "a.txt"
    before = kept.stat().st_ino
    put(tmp_path / "build/datasets/wiki", "b.txt", "2")
    stage_inputs(main)

    assert kept.stat().st_ino == before
    assert (child.folders.dataset / "b.txt").read_text() == "2"


@pytest.mark.parametrize("words", [["--dataset=none"], [f"--input={OTHER}"]])
def test_missing_inputs_are_refused(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(NotPrepared) as refused:
        stage_inputs(place_of(tmp_path, *words))

    assert refused.value.code is ExitCode.CONFIGURATION
    assert f"{words[0].replace('=', ' ')}: there are no objects at " in refused.value.reason


class Keys:
    """Storage with objects under any keys, as S3 allows them."""

    uri = "s3://other/some/prefix"

    def __init__(self, *keys: str) -> None:
        self._keys = keys

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        now = datetime.now(UTC)
        return [ObjectInfo(key=key, size=1, etag=key, modified=now) for key in self._keys]

    def get_file(self, key: str, file: BinaryIO, *, on_bytes: object = None) -> None:
        file.write(b"x")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (("a", "../../x"), "leads out of its folder"),
        # Several objects are copied at once, so either of these is the second.
        (("a/b", "a"), " already exists"),
        ((".trainium-staged.json/x",), "is a reserved name"),
    ],
)
def test_keys_that_cannot_be_files_below_a_folder_are_refused(
    tmp_path: Path, keys: tuple[str, ...], reason: str
) -> None:
    objects: Any = Keys(*keys)
    place = replace(place_of(tmp_path, f"--input={OTHER}"), open=lambda uri: objects)

    with pytest.raises(NotPrepared) as refused:
        stage_inputs(place)

    assert refused.value.code is ExitCode.CONFIGURATION
    assert reason in refused.value.reason
    assert "; rename it" in refused.value.reason
