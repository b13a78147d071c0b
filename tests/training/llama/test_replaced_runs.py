"""A run whose job is killed during an outage, or frozen and replaced, keeps correct files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.training.llama.conftest import CONTEXT
from training.core.ranks import Ranks
from training.storage import LocalObjects
from training.storage.run_lock import RunLost
from training.trainer.records import SavedLine
from training.trainer.run_files import RunFiles
from trainium_catalogue.contract import TRAIN_METRICS

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

STEPS = 8
WORDS = (f"--max-steps={STEPS}", "--save-every=2")


class Killed(BaseException):
    """Simulated immediate death of the job."""


@contextmanager
def outage_of(key: str) -> Iterator[None]:
    """Refuse every write of one object while all others succeed."""
    put: Any = LocalObjects.put

    def refuse(self: LocalObjects, name: str, data: bytes, **conditions: Any) -> str:
        if name == key:
            raise OSError("no space left on device")
        written: str = put(self, name, data, **conditions)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalObjects, "put", refuse)
        yield


def at(wanted: str, action: Callable[[], None]) -> Callable[[str], None]:
    """Run an action when the job first reports this."""
    done: list[str] = []

    def on_report(text: str) -> None:
        if text == wanted and not done:
            done.append(text)
            action()

    return on_report


def kill() -> None:
    raise Killed


def test_an_outage_of_the_metrics_and_a_kill_lose_no_line(laptop: Laptop) -> None:
    laptop.train(*WORDS, run="whole")

    with outage_of(TRAIN_METRICS), pytest.raises(Killed):
        laptop.train(*WORDS, run="holed", on_report=at(f"step 6 of {STEPS}", kill))
    laptop.train(*WORDS, run="holed")

    (resume,) = laptop.lines("holed", "resume")
    assert resume["step"] == 4
    assert laptop.losses("holed") == laptop.losses("whole")


def test_jobs_that_share_a_folder_keep_separate_lines(tmp_path: Path) -> None:
    """On one machine without a bucket, a replaced job shares its successor's files."""
    objects = LocalObjects(tmp_path / "run")

    def opened(*, holds: bool) -> RunFiles:
        files = RunFiles(
            objects, tmp_path, context=CONTEXT, workload="llama-tiny", holds=lambda: holds
        )
        files.begin(0, num_ranks=1, backend="native")
        return files

    replaced, successor = opened(holds=False), opened(holds=True)
    replaced.event(SavedLine, {"step": 1, "bytes": 1})
    successor.event(SavedLine, {"step": 1, "bytes": 1})
    successor.close()

    lines = [json.loads(line) for line in objects.get(TRAIN_METRICS).splitlines()]
    assert [line["step"] for line in lines if "bytes" in line] == [1]


def test_a_job_that_loses_its_peers_while_locking_releases_the_run(laptop: Laptop) -> None:
    def lose_peers(self: Ranks, decide: Callable[[], object]) -> object:
        decide()
        raise ConnectionError("connection closed by peer")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(Ranks, "agree", lose_peers)
        laptop.train(*WORDS, run="left")

    assert json.loads(laptop.file("lock.json", "left").read_text())["released"]


def fail() -> None:
    raise ConnectionError("the peers of a frozen job are gone")


@pytest.mark.parametrize(
    ("moment", "after"),
    [
        ("looking for checkpoints", lambda: None),
        ("saving step 4", fail),
        (f"step 7 of {STEPS}", lambda: None),
    ],
)
def test_a_frozen_and_replaced_job_writes_nothing(
    laptop: Laptop, moment: str, after: Callable[[], None], request: pytest.FixtureRequest
) -> None:
    """Simulate that its 10 s heartbeat has not noticed yet."""
    run = f"frozen-{request.node.callspec.id}".replace(" ", "-").replace("<", "").replace(">", "")

    def files() -> dict[str, str]:
        """Return all files but the job's own, which are named after it."""
        found = laptop.objects.list(f"runs/{run}/")
        return {info.key: info.etag for info in found if not info.key.endswith(".job.1")}

    def replaced() -> None:
        laptop.train(*WORDS, run=run, attempt=2)
        left.update(files())
        after()

    left: dict[str, str] = {}
    with pytest.raises((RunLost, OSError)):
        laptop.train(*WORDS, run=run, on_report=at(moment, replaced))

    status = laptop.status(run)
    assert (status["state"], status["attempt"], status["step"]) == ("finished", 2, STEPS)
    assert len(laptop.losses(run)) == STEPS
    assert files() == left
