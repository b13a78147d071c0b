"""Only one job at a time trains under a run's name."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.limits import scaled
from tests.training.checkpoint.conftest import BUCKET
from tests.training.checkpoint.documents import assert_valid
from tests.training.checkpoint.faulty import Fault, FaultyProxy
from tests.training.s3_server import REGION
from training.storage import Objects, RetryPolicy, open_objects
from training.storage.run_lock import RunLock, RunLocked, RunLost
from trainium_catalogue.contract import RUN_LOCK

HEARTBEAT_S = 0.3
DEAD = {
    "job_id": "first",
    "attempt": 1,
    "node": "",
    "since": "2026-01-01",
    "heartbeat": "2026-01-01",
}


def lock(
    objects: Objects, job: str, *, attempt: int = 1, lines: list[str] | None = None
) -> RunLock:
    said = [] if lines is None else lines
    return RunLock(
        objects,
        job,
        attempt,
        run="my-run",
        node="10.0.0.1",
        heartbeat_s=HEARTBEAT_S,
        say=said.append,
    )


def wait_until_lost(held: RunLock) -> RunLost:
    deadline = time.monotonic() + scaled(10)
    while time.monotonic() < deadline:
        try:
            held.check()
        except RunLost as lost:
            return lost
        time.sleep(0.02)
    raise AssertionError("the lock was not lost")


@pytest.fixture
def held(folder: Objects) -> Iterator[RunLock]:
    """Return the run's lock, held by a live job."""
    with lock(folder, "first") as holder:
        yield holder


def test_a_second_job_is_refused_while_the_first_is_alive(folder: Objects, held: RunLock) -> None:
    with pytest.raises(
        RunLocked,
        match=r"run my-run has been in use by job first \(attempt 1\) on 10\.0\.0\.1 since .*; "
        r"wait for it to end, stop it \(python -m jobs stop my-run\), or submit under another",
    ):
        lock(folder, "second").acquire()
    held.check()


def test_the_lock_names_its_holder_and_has_a_heartbeat(folder: Objects, held: RunLock) -> None:
    first = json.loads(folder.get(RUN_LOCK))
    time.sleep(3 * HEARTBEAT_S)
    later = json.loads(folder.get(RUN_LOCK))

    assert_valid(first, "run-lock.schema.json")
    assert (first["job_id"], first["attempt"], first["node"]) == ("first", 1, "10.0.0.1")
    assert later["since"] == first["since"]
    assert later["heartbeat"] > first["heartbeat"]


def test_a_released_lock_is_acquired_at_once(folder: Objects) -> None:
    with lock(folder, "first"):
        pass
    began = time.monotonic()

    with lock(folder, "second") as second:
        second.check()

    assert time.monotonic() - began < 2 * HEARTBEAT_S


def test_the_next_attempt_of_a_killed_job_gets_its_lock_at_once(folder: Objects) -> None:
    # It is neither renewed nor released any more.
    folder.put(RUN_LOCK, json.dumps({**DEAD, "heartbeat_s": 60}).encode())

    with lock(folder, "first", attempt=2) as second:
        second.check()


def test_a_superseded_attempt_stops(folder: Objects, held: RunLock) -> None:
    with lock(folder, "first", attempt=2):
        lost = wait_until_lost(held)

    assert "this job no longer holds run my-run: job first (attempt 2) took it" in str(lost)


def test_a_dead_job_is_superseded_after_three_heartbeats(objects: Objects) -> None:
    dead = lock(objects, "first")
    dead.acquire()
    dead._ending.set()  # as SIGKILL would: no release
    lines: list[str] = []
    began = time.monotonic()

    with lock(objects, "second", lines=lines) as second:
        second.check()
        took_s = time.monotonic() - began

    assert 3 * HEARTBEAT_S <= took_s < 10 * HEARTBEAT_S
    assert lines[0].startswith("took over run my-run from job first, whose last heartbeat was at")


def test_of_jobs_that_start_together_one_trains(folder: Objects) -> None:
    outcomes: list[str] = []
    holders: list[RunLock] = []

    def begin(number: int) -> None:
        mine = lock(folder, f"job-{number}")
        try:
            mine.acquire()
        except RunLocked:
            outcomes.append("refused")
            return
        outcomes.append("trains")
        holders.append(mine)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for holder in holders:
        holder.release()

    assert sorted(outcomes) == ["refused"] * 4 + ["trains"]


def test_a_removed_lock_stops_the_job(folder: Objects, held: RunLock) -> None:
    folder.delete([RUN_LOCK])

    assert "its lock was deleted or overwritten" in str(wait_until_lost(held))


@pytest.mark.parametrize(
    "data",
    [b"{", *(json.dumps({**DEAD, "heartbeat_s": each}).encode() for each in (1e9, -1, math.nan))],
)
def test_a_malformed_lock_is_replaced(folder: Objects, data: bytes) -> None:
    folder.put(RUN_LOCK, data)

    with lock(folder, "other") as other:
        other.check()


@pytest.mark.parametrize("first_fault", [Fault.SLOW_DOWN, Fault.LOST_ANSWER])
def test_a_temporary_storage_failure_does_not_lose_the_lock(
    proxy: FaultyProxy, first_fault: Fault
) -> None:
    """Nor does a renewal that was written but whose response, and all later requests, were lost."""
    objects = open_objects(
        f"s3://{BUCKET}/locks",
        region=REGION,
        endpoint_url=proxy.url,
        retry_policy=RetryPolicy(total_s=0.1, first_delay_s=0.01, longest_delay_s=0.02),
    )
    lines: list[str] = []
    with lock(objects, "first", lines=lines) as first:
        faults = iter([first_fault])
        proxy.reset(lambda request: next(faults, Fault.SLOW_DOWN))
        while not lines:
            time.sleep(0.02)
        proxy.reset(lambda request: None)
        before = json.loads(objects.get(RUN_LOCK))["heartbeat"]
        time.sleep(4 * HEARTBEAT_S)
        after = json.loads(objects.get(RUN_LOCK))["heartbeat"]
        first.check()

    assert lines[0].startswith("the lock of run my-run could not be renewed: cannot write s3://")
    assert after > before


def test_release_without_acquire_does_nothing(folder: Objects, tmp_path: Path) -> None:
    lock(folder, "first").release()

    assert list(folder.list()) == []
