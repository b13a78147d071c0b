"""Failed saves: one is reported, several in a row end the job."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from training.storage import StorageUnavailable

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

STEPS = 6


@pytest.fixture(scope="module")
def whole(laptop: Laptop) -> list[float]:
    """Return the losses of a run whose saves succeed."""
    laptop.train(f"--max-steps={STEPS}", run="whole")
    return laptop.losses("whole")


def test_only_the_first_save_of_two_is_lost_when_storage_fails_once(
    laptop: Laptop, tmp_path: Path, whole: list[float]
) -> None:
    place = tmp_path / "checkpoints"
    (place / "fails").mkdir(parents=True)

    def spoil(text: str) -> None:
        if text == "saving step 2":
            shutil.rmtree(place / "fails")
            (place / "fails").write_text("a file where a folder is wanted")
        elif text == "saving step 4":
            (place / "fails").unlink()

    laptop.train(
        f"--max-steps={STEPS}", "--save-every=2", f"--checkpoint-uri={place}", "--async-save=false",
        run="fails", on_report=spoil,
    )  # fmt: skip

    assert laptop.losses("fails") == whole
    (failed,) = laptop.lines("fails", "save-failed")
    assert failed["step"] == 2
    assert laptop.status("fails")["failed_saves"] == 1
    assert [line["step"] for line in laptop.lines("fails", "saved")] == [4, 6]


def test_a_failed_final_save_fails_the_job(laptop: Laptop, tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()

    def spoil(text: str) -> None:
        if text == "saving step 2":
            (tmp_path / "lost").rmdir()
            (tmp_path / "lost").write_text("a file where a folder is wanted")

    with pytest.raises(
        StorageUnavailable, match=r"the last checkpoint, of step 2, could not be saved"
    ):
        laptop.train("--max-steps=2", f"--checkpoint-uri={tmp_path}", run="lost", on_report=spoil)

    assert laptop.status("lost")["state"] == "failed"


@pytest.mark.parametrize("words", [(), ("--async-save=false",)])
def test_three_consecutive_failed_saves_end_the_job(
    laptop: Laptop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = f"fails-thrice-{len(words)}"
    place = tmp_path / "checkpoints"
    place.write_text("a file where a folder is wanted")

    # A failure in the background may be noticed a step later.
    last = "3" if words else "[34]"
    with pytest.raises(StorageUnavailable, match=r"3 saves in a row have failed, the last one of "
                       rf"step {last}: .*Not a directory.*; once storage works again"):  # fmt: skip
        laptop.train(
            "--max-steps=9", "--save-every=1", f"--checkpoint-uri={place}", *words, run=run
        )

    assert 3 <= len(laptop.losses(run)) <= (3 if words else 4)
    assert laptop.status(run)["state"] == "failed"


def test_a_successful_save_resets_the_failure_count(laptop: Laptop, tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    place.write_text("a file where a folder is wanted")
    fine = {3, 6}

    def change(text: str) -> None:
        if text.startswith("saving step") and int(text.split()[-1]) in fine:
            place.unlink()
        elif text.startswith("saving step") and int(text.split()[-1]) - 1 in fine:
            shutil.rmtree(place)
            place.write_text("a file again")

    with pytest.raises(StorageUnavailable, match="the last checkpoint, of step 8"):
        laptop.train(
            "--max-steps=8", "--save-every=1", f"--checkpoint-uri={place}", "--async-save=false",
            run="forgiven", on_report=change,
        )  # fmt: skip

    assert [line["step"] for line in laptop.lines("forgiven", "save-failed")] == [1, 2, 4, 5, 7, 8]
