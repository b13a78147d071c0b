"""Concurrent submissions of one name: one job is paid for, and no snapshot is lost.

The real `python -m jobs submit` runs in threads, against an emulated AWS that delays or loses
responses, with submitters that die. A race is reproducible by its number, except for the
interleaving of its threads.
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
from moto.batch.models import Job
from moto.batch.utils import JobStatus
from moto.batch_simple.models import BatchSimpleBackend
from moto.s3.models import s3_backends

from jobs.bucket.name_hold import NameHold
from jobs.cli import app
from jobs.submit import send
from tests.jobs.conftest import ACCOUNT, Cli
from tests.jobs.programs import record, snapshot
from tests.training.checkpoint.faulty import Fault, FaultyProxy, Plan, Request, faulty_proxy
from trainium_catalogue import contract

_MARK = "race"
FAULTS = ("none", "late", "lost answers", "dies before", "dies after")


class Dead(BaseException):
    """Ends a submission like SIGKILL."""


@dataclass
class Submitters:
    """Submissions that die, by thread name, and the outcome of each."""

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
def submitters(monkeypatch: pytest.MonkeyPatch) -> Submitters:
    found = Submitters()
    submit, end = send._send, NameHold.end

    def submit_or_die(*words: Any, **named: Any) -> str:
        death = found.deaths.get(threading.current_thread().name)
        if death == "dies before":
            raise Dead
        job_id = submit(*words, **named)
        if death == "dies after":
            raise Dead
        return job_id

    def end_or_die(hold: NameHold, error: BaseException | None) -> None:
        if not isinstance(error, Dead):
            end(hold, error)

    def start(backend: BatchSimpleBackend, include_start_attempt: bool, job: Job) -> None:
        job.status = JobStatus.RUNNING
        backend.backend._jobs[job.job_id] = job

    # moto ends a job immediately.
    monkeypatch.setattr(BatchSimpleBackend, "_mark_job_as_finished", start)
    monkeypatch.setattr(send, "_send", submit_or_die)
    monkeypatch.setattr(NameHold, "end", end_or_die)
    return found


@pytest.fixture
def proxy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """AWS for all races; unlike moto's, this S3 checks a condition and writes atomically."""
    with faulty_proxy(cli.endpoint) as found:
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


def _race(number: int, cli: Cli, proxy: FaultyProxy, submitters: Submitters) -> list[str]:
    """Run one race, and return what is wrong after it."""
    rng, run = random.Random(number), f"{_MARK}-{number}"
    fault = rng.choice(FAULTS)
    prefix = contract.run_prefix(run, "snapshots")
    for made in (1, 2):
        cli.put(f"{prefix}{made:08d}.json", snapshot(made, 2))
    before = set(cli.keys(prefix))
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
    violations = []
    jobs, codes = len(cli.jobs(run)), list(submitters.codes.values())
    died = "dead" in codes
    if jobs > 1 or (jobs == 0 and fault != "dies before"):
        violations.append(f"{jobs} jobs")
    if not died and (codes.count(0) < 1 or set(codes) - {0, 2}):
        violations.append("no submission reports that the job exists")
    if not died and len(record(cli, run)) != 1:
        violations.append(f"{len(record(cli, run))} submissions are recorded")
    if jobs == 0:
        # The name is free again once the dead submission's hold expires.
        key = contract.run_key(run, contract.RUN_SUBMISSION)
        found = s3_backends[ACCOUNT]["aws"].get_object("bucket", key)
        assert found is not None
        found.last_modified -= timedelta(minutes=6)
        submitters.run("later", *words)
        if submitters.codes["later"] != 0 or len(cli.jobs(run)) != 1:
            violations.append(f"a later submission ended with {submitters.codes['later']}")
    if lost := before - set(cli.keys(prefix)):
        violations.append(f"lost {sorted(lost)}")
    return [f"race {number}, {fault}, {submitters.codes}: {each}" for each in violations]


def _races(numbers: range, cli: Cli, proxy: FaultyProxy, submitters: Submitters) -> None:
    violations, endings = [], Counter[str]()
    for number in numbers:
        violations += _race(number, cli, proxy, submitters)
        endings.update(str(code) for code in submitters.codes.values())
    print(f"races {numbers}: {dict(endings)}")
    assert not violations


@pytest.mark.timeout(300)
def test_concurrent_submissions_create_one_paid_job(
    cli: Cli, program: Path, proxy: FaultyProxy, submitters: Submitters
) -> None:
    _races(range(5), cli, proxy, submitters)


# The five above cover the same kinds.
@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_concurrent_submissions_create_one_paid_job_each(
    cli: Cli, program: Path, proxy: FaultyProxy, submitters: Submitters
) -> None:
    _races(range(5, 50), cli, proxy, submitters)
