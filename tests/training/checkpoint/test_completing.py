"""A checkpoint is completed once, in full, and only by the job that holds the run."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.training.checkpoint.test_checkpoints import (
    FILE,
    META,
    assert_latest_holds,
    save,
    state,
)
from training.checkpoint import Checkpoints
from training.checkpoint.dcp import METADATA, Writer
from training.checkpoint.marker import MarkedFile
from training.core.ranks import Ranks
from training.storage import LocalObjects, Objects
from trainium_catalogue.contract import CHECKPOINT_MARKER

MARKER = f"step-00000010/{CHECKPOINT_MARKER}"

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def failure(
    objects: Objects, guard: Callable[[], None] = lambda: None, *, value: float = 10
) -> str:
    """Return why a save of step 10 fails."""
    reasons: list[str] = []
    checkpoints = Checkpoints(
        objects,
        Ranks.open(),
        keep_last=2,
        keep_every=0,
        guard=guard,
        on_failed=lambda step, reason: reasons.append(reason),
    )
    checkpoints.save(state(value), 10, META, asynchronous=False)
    (reason,) = reasons
    return reason


def on_call(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """Guard that acts at its ``number``th call, from 1: at a save's start and completion."""
    calls = iter(range(1, 100))

    def guard() -> None:
        if next(calls) == number:
            action()

    return guard


def lose() -> None:
    raise ValueError("this job no longer holds run x")


def opened(objects: Objects) -> Checkpoints:
    return Checkpoints(objects, Ranks.open(), keep_last=2, keep_every=0)


def test_of_two_jobs_that_save_the_same_step_one_completes_it(objects: Objects) -> None:
    """Let both believe they hold the run, as after a takeover the first has not noticed."""
    second = opened(objects)

    def overtake() -> None:
        save(second, 10)

    error = failure(objects, on_call(2, overtake), value=-7)

    assert (
        "another job completed step-00000010 while this one was saving it; stop one of the two"
        in error
    )
    assert_latest_holds(second, 10)


def test_a_job_frozen_while_completing_a_save_does_not_complete_its_successors_files(
    folder: Objects,
) -> None:
    def overtake() -> None:
        failure(folder, on_call(2, lose))

    error = failure(folder, on_call(2, overtake), value=-7)

    assert "another job completed step-00000010 while this one was saving it" in error
    assert opened(folder).latest() is None


def test_a_job_frozen_while_completing_a_save_does_not_resurrect_a_deleted_checkpoint(
    folder: Objects,
) -> None:
    def overtake() -> None:
        save(opened(folder), 10)
        folder.delete([MARKER])  # a deletion starts with it

    assert failure(folder, on_call(2, overtake), value=-7)
    assert opened(folder).latest() is None


def test_a_job_without_the_run_lock_deletes_nothing(folder: Objects) -> None:
    """A save first removes another attempt's leftovers of the same step."""
    before = save(opened(folder), 10)

    failure(folder, on_call(1, lose))

    assert opened(folder).latest() == before


def nothing(key: str) -> None:
    """Do nothing."""


class HookedObjects(LocalObjects):
    """Storage with a hook before a file is written, before it is closed, or after."""

    def __init__(self, root: Path, **hooks: Callable[[str], object]) -> None:
        super().__init__(root)
        self._hooks = hooks

    @contextmanager
    def create(
        self, key: str, *, size: int = 0, if_absent: bool = False, if_match: str | None = None
    ) -> Iterator[io.IOBase]:
        self._hooks.get("before", nothing)(key)
        with super().create(key, if_absent=if_absent, if_match=if_match) as stream:
            yield stream
            self._hooks.get("written", nothing)(key)
        self._hooks.get("after", nothing)(key)

    def at(self, prefix: str) -> HookedObjects:
        return HookedObjects(Path(self.uri) / prefix, **self._hooks)


def test_a_failed_save_without_the_run_lock_deletes_nothing(tmp_path: Path) -> None:
    """Its leftovers of the step are in the folder of the job that took over."""
    second = opened(LocalObjects(tmp_path))

    def fail(key: str) -> None:
        save(second, 10)
        raise OSError("no space left")

    error = failure(HookedObjects(tmp_path, before=fail), on_call(2, lose), value=-7)

    assert "no space left" in error
    assert_latest_holds(second, 10)


@pytest.mark.parametrize("left", [CHECKPOINT_MARKER, FILE, METADATA])
def test_a_job_frozen_at_the_start_of_a_save_does_not_touch_its_successors_save(
    folder: Objects, left: str
) -> None:
    """Each finds an earlier attempt's leftovers of the same step."""
    save(opened(folder), 10)
    folder.put(f"step-00000010/{left}", b"damaged")
    second = opened(folder)

    def overtake() -> None:
        save(second, 10)

    failure(folder, on_call(1, overtake), value=-7)

    assert_latest_holds(second, 10)


@pytest.mark.parametrize("name", [FILE, METADATA])
def test_a_frozen_save_does_not_damage_its_successors_save_of_that_step(
    tmp_path: Path, name: str
) -> None:
    second = opened(LocalObjects(tmp_path))

    def freeze(key: str) -> None:
        if key == name:
            save(second, 10)

    error = failure(HookedObjects(tmp_path, written=freeze), on_call(2, lose), value=-7)

    assert "already exists" in error
    assert_latest_holds(second, 10)


@pytest.mark.parametrize(
    ("kept_bytes", "reason"),
    [(None, f"{FILE} is missing"), (500, f"{FILE} has 500 bytes, ")],
)
def test_an_incomplete_save_does_not_become_complete(
    tmp_path: Path, kept_bytes: int | None, reason: str
) -> None:
    path = tmp_path / "step-00000010" / FILE

    def forget(key: str) -> None:
        if key == FILE and kept_bytes is None:
            path.unlink()
        elif key == FILE:
            path.write_bytes(path.read_bytes()[:kept_bytes])

    assert reason in failure(HookedObjects(tmp_path, after=forget))
    assert opened(LocalObjects(tmp_path)).latest() is None


def test_a_file_no_rank_reports_does_not_become_complete(
    folder: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names come from torch's metadata, not from the ranks."""
    told = Writer.sums

    def sums(self: Writer) -> dict[str, MarkedFile]:
        known: dict[str, MarkedFile] = told.__get__(self)
        return {name: found for name, found in known.items() if name != FILE}

    monkeypatch.setattr(Writer, "sums", property(sums))

    assert f"no rank reported writing {FILE}" in failure(folder)
    assert opened(folder).latest() is None
