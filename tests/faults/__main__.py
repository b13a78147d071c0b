"""Inject random faults of processes, networks and storage into complete training runs.

    python -m tests.faults --seed 1 --schedules 20 [--orchestrator batch|eks|local] [--only 7]

Each schedule disturbs up to three attempts of a run, on two nodes (``local``: one) and in a local
folder or an emulated S3, then lets one attempt or submission finish. It must end with the losses of
a fault-free run, every step's line in the history once, and the status of the last job that held
the run. Launchers, workers and storage are real; torchrun is omitted and delays of seconds are
shortened (``processes.py``). Prints a JSON document; exit code 1 if a schedule ended otherwise.
Seed and number (``--only``) reproduce a schedule, with its nodes' logs if ``--keep`` names a
folder; how processes interleave depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.job import Forwarder, Job, Place, storage_fault, write_plan
from tests.faults.processes import prepare, with_room
from tests.faults.s3 import BUCKET
from tests.faults.schedule import Attempt, Fault, draw
from tests.faults.store import Losses, complete, damage, history, holder, judge, losses
from tests.support.limits import scaled
from tests.training.llama.conftest import write_dataset
from training.storage import Objects, open_objects

ORCHESTRATORS = ("batch", "eks", "local")
_ATTEMPT_S = 60.0
_TO_FINISH = 4
"""Fault-free attempts in which a run has to finish; the first may still be refused."""


class Stuck(Exception):
    """An attempt did not end."""


Undo = Callable[[], None]
"""Ends a fault."""


@dataclass
class Schedule:
    """One schedule in its own folder."""

    place: Place
    bucket: Objects
    rng: random.Random
    attempts: list[Attempt]
    jobs: list[Job] = field(default_factory=list)
    frozen: list[tuple[Job, str]] = field(default_factory=list)
    """Jobs that were replaced, and the line of a later one at which they resume."""
    damaged: set[str] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> Objects:
        return self.bucket.at(f"runs/{self.place.run}")

    def play(self, whole: Losses) -> list[str]:
        """Run the schedule to its end; return the violations."""
        try:
            for number, attempt in enumerate(self.attempts):
                self._with_faults(number, attempt)
            self._finish()
            return judge(self.run, whole, self.damaged)
        except Stuck as error:
            return [str(error)]
        finally:
            for job in self.jobs:
                job.kill()

    def start(self, name: str, attempt: int, skews_s: tuple[float, ...] = (0.0, 0.0)) -> Job:
        job = Job(self.place, name, attempt, len(self.jobs), skews_s)
        self.jobs.append(job)
        job.start()
        return job

    def _with_faults(self, number: int, attempt: Attempt) -> None:
        if attempt.damage and (folder := damage(self.run, attempt.damage, self.rng)):
            self.damaged.add(folder)
        if attempt.damage:
            self.faults[f"damage {attempt.damage}"] += 1
        last = self.jobs[-1] if self.jobs else None
        if last is None or attempt.new_job:
            name, count = f"job-{number}", 1
        else:
            name, count = last.name, last.attempt + 1
        write_plan(self.place.plan, [])
        plan: list[Any] = []
        forwarder, switch = Forwarder(), self.place.folder / f"cut-{len(self.jobs)}"
        job = self.start(name, count, attempt.skews_s)
        if self.place.num_nodes > 1:
            forwarder.start(job.forwarder, job.address(0), switch)
        waiting: list[tuple[str, Fault | str]] = [(f.after, f) for f in attempt.faults]
        if attempt.replaced_after:
            waiting.append((attempt.replaced_after, "replace"))
        later: list[tuple[float, Fault | Undo | str]] = []
        second: Job | None = None
        deadline = time.monotonic() + scaled(_ATTEMPT_S)
        try:
            while not job.poll():
                now = time.monotonic()
                if now > deadline:
                    raise Stuck(f"attempt {job.serial} has not ended: {job.codes}")
                for entry in [entry for entry in waiting if job.has(entry[0])]:
                    waiting.remove(entry)
                    delay_s = entry[1].delay_s if isinstance(entry[1], Fault) else 0.02
                    later.append((now + delay_s, entry[1]))
                for due in [due for due in later if due[0] <= now]:
                    later.remove(due)
                    match due[1]:
                        case "replace":
                            self.faults["replace"] += 1
                            node = -1 if attempt.replaced_all else 0
                            job.signal(signal.SIGSTOP, "node", node)
                            self.frozen.append((job, attempt.thawed_after))
                            return
                        case Fault() as fault:
                            self.faults[fault.kind] += 1
                            later += self._inject(job, fault, now, plan, switch)
                            if fault.kind == "second" and second is None:
                                second = self.start(f"second-{number}", 1)
                        case undo:
                            assert not isinstance(undo, str)
                            undo()
                self._thaw(job)
                time.sleep(0.01)
        finally:
            for _, left in later:
                if callable(left):
                    left()
            forwarder.end()
            write_plan(self.place.plan, [])
        self._await_others()

    def _inject(
        self, job: Job, fault: Fault, now: float, plan: list[Any], switch: Path
    ) -> list[tuple[float, Fault | Undo | str]]:
        """Inject the fault; return how and when it ends."""
        match fault.kind:
            case "kill":
                job.signal(signal.SIGKILL, fault.what, fault.node)
            case "stop":
                job.signal(signal.SIGTERM, "launcher", fault.node)
            case "freeze":
                job.signal(signal.SIGSTOP, fault.what, fault.node)
                return [
                    (
                        now + fault.seconds,
                        lambda: job.signal(signal.SIGCONT, fault.what, fault.node),
                    )
                ]
            case "storage":
                plan.append(storage_fault(job, fault))
                write_plan(self.place.plan, plan)
            case "partition":
                switch.touch()
                return [(now + fault.seconds, lambda: switch.unlink(missing_ok=True))]
        return []

    def _thaw(self, current: Job | None) -> None:
        """Resume replaced jobs: those that are due, or all after the last attempt."""
        for entry in list(self.frozen):
            job, line = entry
            if job is not current and (current is None or (line and current.has(line))):
                self.frozen.remove(entry)
                job.signal(signal.SIGCONT, "node", -1)

    def _await_others(self) -> None:
        """Wait until every job that is not frozen has ended."""
        asleep = {id(job) for job, _ in self.frozen}
        deadline = time.monotonic() + scaled(_ATTEMPT_S)
        for job in self.jobs:
            while id(job) not in asleep and not job.poll():
                if time.monotonic() > deadline:
                    raise Stuck(f"attempt {job.serial} has not ended: {job.codes}")
                time.sleep(0.01)

    def _finish(self) -> None:
        """Finish the run without faults; frozen jobs resume during or after it."""
        for number in range(_TO_FINISH):
            is_local = self.place.orchestrator == "local"
            job = self.start(*("local", 1) if is_local else ("last", number + 1))
            forwarder = Forwarder()
            if self.place.num_nodes > 1:
                forwarder.start(job.forwarder, job.address(0), self.place.folder / "never")
            deadline = time.monotonic() + scaled(_ATTEMPT_S)
            try:
                while not job.poll():
                    if time.monotonic() > deadline:
                        raise Stuck(f"the last attempt has not ended: {job.codes}")
                    self._thaw(job)
                    time.sleep(0.01)
            finally:
                forwarder.end()
            if set(job.codes.values()) == {0}:
                self._thaw(None)
                self._await_others()
                # A job that resumes after the end may take the unlocked run.
                if holder(self.run) == (job.name, job.attempt):
                    return
            # A frozen job may hold the lock of a local folder.
            self._thaw(None)
            self._await_others()
        raise Stuck(f"the run does not finish: {job.codes}")


def play(
    number: int, seed: int, orchestrator: str, base: Path, s3_port: int, whole: dict[int, Losses]
) -> tuple[Schedule, list[str]]:
    """Run one schedule."""
    rng = random.Random(f"{seed}/{orchestrator}/{number}")
    on_s3 = orchestrator != "local" and rng.random() < 0.5
    folder = base / f"{orchestrator}-{seed}-{number}"
    folder.mkdir()
    place = Place(
        folder=folder,
        orchestrator=orchestrator,
        network=f"127.{rng.randrange(64, 192)}.{rng.randrange(250)}",
        s3_port=s3_port if on_s3 else None,
        bucket=BUCKET,
        run=f"run-{orchestrator}-{number}",
        plan=base / "plan.json",
    )
    write_plan(place.plan, [])
    bucket = _bucket(place)
    if not on_s3:
        write_dataset(bucket.at("datasets/words"), validation_tokens=_VALIDATION_TOKENS)
    attempts = draw(rng, on_s3=on_s3, num_nodes=place.num_nodes)
    schedule = Schedule(place, bucket, rng, list(attempts))
    wrong = schedule.play(whole[place.num_nodes])
    if on_s3:
        bucket.delete([info.key for info in bucket.list("runs/")])
    return schedule, wrong


_VALIDATION_TOKENS = 5 * 16 + 1


def _bucket(place: Place) -> Objects:
    if place.s3_port is None:
        return open_objects(str(place.folder / "build"), region=None, endpoint_url=None)
    return _s3(place.s3_port)


def _s3(port: int) -> Objects:
    return open_objects(
        f"s3://{BUCKET}", region="us-east-1", endpoint_url=f"http://127.0.0.1:{port}"
    )


def fault_free(base: Path, num_nodes: int) -> Losses:
    """Return the losses of a fault-free run."""
    orchestrator = "local" if num_nodes == 1 else "batch"
    folder = base / f"whole-{num_nodes}"
    folder.mkdir()
    place = Place(
        folder=folder, orchestrator=orchestrator, network="127.63.1", s3_port=None, bucket="",
        run="whole", plan=base / "plan.json",
    )  # fmt: skip
    bucket = _bucket(place)
    write_dataset(bucket.at("datasets/words"), validation_tokens=_VALIDATION_TOKENS)
    schedule = Schedule(place, bucket, random.Random(0), [])
    schedule._finish()
    assert complete(schedule.run)
    lines = history(schedule.run)
    return {event: losses(lines, event) for event in ("step", "evaluation")}


def main(argv: list[str] | None = None) -> int:
    """Run the requested schedules."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--orchestrator", choices=ORCHESTRATORS, help="default: each in turn")
    parser.add_argument("--only", type=int, help="the number of one schedule")
    parser.add_argument("--keep", type=Path, help="folder for the logs of schedules that go wrong")
    wanted = parser.parse_args(argv)
    os.environ |= {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, lambda caught, frame: sys.exit(128 + caught))
    prepare()
    began = time.monotonic()
    outcomes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    wrong: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        base = Path(name)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.s3", str(base / "plan.json")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            write_plan(base / "plan.json", [])
            write_dataset(_s3(port).at("datasets/words"), validation_tokens=_VALIDATION_TOKENS)
            whole = {count: fault_free(base, count) for count in (1, 2)}
            numbers = range(wanted.schedules) if wanted.only is None else [wanted.only]
            for number in numbers:
                orchestrator = wanted.orchestrator or ORCHESTRATORS[number % len(ORCHESTRATORS)]
                schedule, found = play(number, wanted.seed, orchestrator, base, port, whole)
                faults += schedule.faults
                place = "s3" if schedule.place.s3_port else "folder"
                outcomes[f"{orchestrator}, {place}: {'wrong' if found else 'right'}"] += 1
                folder = schedule.place.folder
                if found:
                    wrong.append(
                        {
                            "schedule": f"--seed {wanted.seed} --orchestrator {orchestrator} "
                            f"--only {number}",
                            "wrong": found,
                            "attempts": [asdict(attempt) for attempt in schedule.attempts],
                            "codes": [job.codes for job in schedule.jobs],
                        }
                    )
                    print(f"schedule {number}: {found}", file=sys.stderr, flush=True)
                if wanted.keep and (found or wanted.only is not None):
                    shutil.copytree(folder, wanted.keep / folder.name, dirs_exist_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            server.kill()
            server.wait()
    print(
        json.dumps(
            {
                "schedules": sum(outcomes.values()),
                "seconds": round(time.monotonic() - began, 1),
                "outcomes": dict(sorted(outcomes.items())),
                "faults": dict(sorted(faults.items())),
                "wrong": wrong[:20],
            },
            indent=1,
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    with_room(["-m", "tests.faults", *sys.argv[1:]])
    sys.exit(main())
