"""Two submissions of one name at the same time: one job is paid for, and no snapshot is lost.

`python -m jobs submit` as it is, in threads, in front of an emulated AWS that is late or loses
answers, and submitters that die. A race is found again by its number; how its threads interleave is
the machine's.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.s3.models import s3_backends

from jobs.cli import app
from jobs.submit import send
from jobs.submit.hold import NameHold
from tests.jobs.conftest import ACCOUNT, Desk
from tests.jobs.programs import record, snapshot
from tests.training.checkpoint.faulty import Fault, FaultyProxy, Plan, Request, faulty_proxy
from trainium_catalogue import contract

_MARK = "race"
FAULTS = ("none", "late", "lost answers", "dies before", "dies after")


class Dead(BaseException):
    """Ends a submission as SIGKILL does."""


@dataclass
class Submitters:
    """Which submissions die, by the names of their threads, and how each has ended."""

    deaths: dict[str, str] = field(default_factory=dict)
    codes: dict[str, Any] = field(default_factory=dict)

    def run(self, name: str, *words: str) -> None:
        try:
            self.codes[name] = app(list(words), standalone_mode=False)
        except Dead:
            self.codes[name] = "dead"
        except SystemExit as ending:
            self.codes[name] = ending.code


@pytest.fixture
def submitters(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Submitters:
    found = Submitters()
    submit, end = send._send, NameHold.end

    def submit_or_die(*words: Any, **named: Any) -> str:
        death = found.deaths.get(threading.current_thread().name)
        if death == "dies before":
            raise Dead
        job_id = submit(*words, **named)
        # moto ends a job at once.
        desk.backend_job(job_id).status = "RUNNING"
        if death == "dies after":
            raise Dead
        return job_id

    def end_or_die(hold: NameHold, error: BaseException | None) -> None:
        if not isinstance(error, Dead):
            end(hold, error)

    monkeypatch.setattr(send, "_send", submit_or_die)
    monkeypatch.setattr(NameHold, "end", end_or_die)
    return found


@pytest.fixture
def proxy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """AWS of all races; S3 checks a condition and writes in one step, moto does not."""
    with faulty_proxy(desk.endpoint) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        yield found


def _plan(fault: str, rng: random.Random) -> Plan:
    late = {rng.randrange(12) for _ in range(6)}

    def plan(request: Request) -> Fault | None:
        if fault == "late" and request.number in late:
            return Fault.SLOW
        of_the_name = request.method == "PUT" and request.path.endswith(contract.RUN_SUBMISSION)
        if fault == "lost answers" and request.number == 0:
            return Fault.LOST_ANSWER if of_the_name or "submitjob" in request.path else None
        return None

    return plan


def _race(number: int, desk: Desk, proxy: FaultyProxy, submitters: Submitters) -> list[str]:
    """Run one race; returns what is wrong after it."""
    rng, run = random.Random(number), f"{_MARK}-{number}"
    fault = rng.choice(FAULTS)
    prefix = contract.run_prefix(run, "snapshots")
    for made in (1, 2):
        desk.put(f"{prefix}{made:08d}.json", snapshot(made, 2))
    before = set(desk.keys(prefix))
    proxy.reset(_plan(fault, rng))
    words = ["submit", "./train.py", "--name", run, "--yes"]
    names = [f"{run}-{each}" for each in "ab"]
    submitters.codes.clear()
    submitters.deaths = {rng.choice(names): fault} if fault.startswith("dies") else {}
    threads = []
    for name in names:
        back = rng.choice([[], ["--from-snapshot", "1"]])
        arguments = (name, *words, *back)
        threads.append(threading.Thread(target=submitters.run, args=arguments, name=name))
    threads[0].start()
    time.sleep(rng.choice([0.0, rng.uniform(0, 0.5)]))
    threads[1].start()
    for thread in threads:
        thread.join()
    wrong = []
    jobs, codes = len(desk.jobs(run)), list(submitters.codes.values())
    died = "dead" in codes
    if jobs > 1 or (jobs == 0 and fault != "dies before"):
        wrong.append(f"{jobs} jobs")
    if not died and (codes.count(0) < 1 or set(codes) - {0, 2}):
        wrong.append("no submission tells that the job is there")
    if not died and len(record(desk, run)) != 1:
        wrong.append(f"{len(record(desk, run))} submissions are recorded")
    if jobs == 0:
        # The name is free again, once the dead one has held it for its whole time.
        key = contract.run_key(run, contract.RUN_SUBMISSION)
        found = s3_backends[ACCOUNT]["aws"].get_object("bucket", key)
        assert found is not None
        found.last_modified -= timedelta(minutes=6)
        submitters.run("later", *words)
        if submitters.codes["later"] != 0 or len(desk.jobs(run)) != 1:
            wrong.append(f"a later submission ended with {submitters.codes['later']}")
    if lost := before - set(desk.keys(prefix)):
        wrong.append(f"lost {sorted(lost)}")
    return [f"race {number}, {fault}, {submitters.codes}: {each}" for each in wrong]


def _races(numbers: range, desk: Desk, proxy: FaultyProxy, submitters: Submitters) -> None:
    wrong, endings = [], Counter[str]()
    for number in numbers:
        wrong += _race(number, desk, proxy, submitters)
        endings.update(str(code) for code in submitters.codes.values())
    print(f"races {numbers}: {dict(endings)}")
    assert not wrong


@pytest.mark.timeout(300)
def test_of_two_submissions_at_the_same_time_one_is_paid_for(
    desk: Desk, program: Path, proxy: FaultyProxy, submitters: Submitters
) -> None:
    _races(range(10), desk, proxy, submitters)


# The ten above are of the same kinds.
@pytest.mark.full
@pytest.mark.timeout(3600)
def test_of_more_pairs_of_submissions_one_each_is_paid_for(
    desk: Desk, program: Path, proxy: FaultyProxy, submitters: Submitters
) -> None:
    _races(range(10, 50), desk, proxy, submitters)
