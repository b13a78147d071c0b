"""Multi-process jobs against an emulated bucket: killed in every way, and on other ranks.

One chain of attempts, since each costs seconds of imports; it must equal one undisturbed run.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from jobs.bucket.objects import Bucket
from jobs.orchestrators import Services
from jobs.report.account import report_document
from jobs.report.gather import gather
from tests.jobs.probes.world import TARGET
from tests.support.limits import scaled
from tests.training.checkpoint.faulty import Fault, FaultyProxy, Plan, Request, faulty_proxy
from tests.training.conftest import Cluster
from tests.training.llama.conftest import TINY, Laptop, write_dataset
from tests.training.s3_server import REGION, s3_client, s3_server
from tests.training.worker_ranks import run_on_ranks
from training.storage import Objects, open_objects
from trainium_catalogue.contract import WITHDRAWN_BYTES, checkpoint_name
from trainium_catalogue.instances import INSTANCE_TYPES

STEPS = 24
BUCKET = "training-bucket"
HALF = STEPS // 2
LENGTH = ("--dataset=split", f"--max-steps={STEPS}", f"--eval-every={HALF}")
WORDS = (*TINY, *LENGTH, "--save-every=2")
VALIDATION_TOKENS = 13 * 16 + 1
"""13 sequences: no multiple of what any number of ranks computes at once."""
SEED = random.SystemRandom().randrange(1000)


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyProxy]:
    """Return an emulated S3 with a bucket, behind a proxy that at first injects no faults."""
    with s3_server(BUCKET) as url, faulty_proxy(url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def bucket(proxy: FaultyProxy) -> Objects:
    """Return the bucket, with a dataset."""
    objects = open_objects(f"s3://{BUCKET}", region=REGION, endpoint_url=proxy.url)
    write_dataset(objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)
    return objects


@pytest.fixture(scope="module", autouse=True)
def split(laptop: Laptop) -> None:
    """Return the same dataset on the laptop."""
    write_dataset(laptop.objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)


@dataclass
class Run:
    """Attempts of one job under one run's name."""

    name: str
    bucket: Objects
    proxy: FaultyProxy
    cluster: Cluster
    attempts: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    logs: list[str] = field(default_factory=list)
    """Of the main node, by attempt."""

    def start(self, *words: str, processes: int = 1) -> None:
        self.cluster.start(
            *WORDS,
            "--peer-timeout-s=3",
            *words,
            workload="llama-tiny",
            extra={
                "TRAINIUM_RUN": self.name,
                "TRAINIUM_PROCESSES_PER_NODE": str(processes),
                "TRAINIUM_BUCKET": BUCKET,
                "AWS_ENDPOINT_URL": self.proxy.url,
                "AWS_REGION": REGION,
                "AWS_ACCESS_KEY_ID": "none",
                "AWS_SECRET_ACCESS_KEY": "none",
                "AWS_BATCH_JOB_ATTEMPT": str(next(self.attempts)),
            },
        )

    def end(self) -> dict[int, int]:
        codes = self.cluster.end(within_s=90)
        self.logs.append(self.cluster.log(0))
        return codes

    def reach(self, step: int) -> None:
        self.cluster.wait_for(f"training: step {step} of", node=0)

    def wait_for_checkpoint(self, step: int) -> None:
        """Saving is asynchronous: a step that was reached need not be saved."""
        marker = f"runs/{self.name}/checkpoints/{checkpoint_name(step)}/complete.json"
        deadline = time.monotonic() + scaled(60)
        while all(info.size == WITHDRAWN_BYTES for info in self.bucket.list(marker)):
            assert time.monotonic() < deadline, self.cluster.all_logs()
            time.sleep(0.02)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Of train.jsonl."""
        text = self.bucket.get(f"runs/{self.name}/metrics/train.jsonl").decode()
        return [line for line in map(json.loads, text.splitlines()) if line["event"] == event]

    def losses(self) -> list[float]:
        """Of the steps, each once and in order."""
        steps = self.lines("step")
        assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
        return [line["loss"] for line in steps]


@pytest.fixture(scope="module")
def make_run(
    proxy: FaultyProxy, bucket: Objects, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Run]]:
    clusters: list[Cluster] = []

    def make(name: str, *, num_nodes: int = 2) -> Run:
        cluster = Cluster(tmp_path_factory.mktemp(name), num_nodes=num_nodes)
        clusters.append(cluster)
        return Run(name=name, bucket=bucket, proxy=proxy, cluster=cluster)

    yield make
    for cluster in clusters:
        cluster.kill()


def check_report(run: Run) -> None:
    """Recompute `jobs report` of a two-node run from the log's lines."""
    client = s3_client(run.proxy.url)
    bucket = Bucket(client=client, name=BUCKET)
    document = report_document(gather(bucket, Services((), print), TARGET, run.name), now_s=0)
    logged = [
        [int(step) for step in re.findall(r"training: step (\d+) of", log)] for log in run.logs
    ]
    resumed = [line["step"] for line in run.lines("resume")]
    twice = [made[-1] - step for made, step in zip(logged, resumed, strict=False)]
    codes = [item.code for item in document.attempts]
    assert codes == [75, 75, None, 143, 0]
    for attempt, expected in zip(document.attempts, twice, strict=False):
        # A killed main node leaves its uploads so far.
        assert attempt.repeated_steps is not None
        assert attempt.repeated_steps == expected or attempt.code is None
        assert attempt.repeated_steps <= expected
    assert document.is_repeated_lower_bound and document.is_time_lower_bound

    of_attempts: dict[int, list[float]] = {}
    for line in run.lines("step"):
        of_attempts.setdefault(line["attempt"], []).append(line["step_s"])
    # The first step of an attempt includes its start-up, and counts as much as the others.
    busy_s = 2 * sum(
        sum(rest) * (1 + 1 / len(rest)) if (rest := steps[1:]) else steps[0]
        for steps in of_attempts.values()
    )
    assert document.goodput == pytest.approx(busy_s / document.node_seconds)
    ended = [item for item in document.attempts if item.code is not None]
    paid_s = sum(2 * (read(item.ended_at) - read(item.started_at)) for item in ended)
    (cut,) = (item for item in document.attempts if item.code is None)
    assert document.node_seconds == pytest.approx(paid_s + cut.node_seconds)
    price = INSTANCE_TYPES["trn1.32xlarge"].usd_per_hour_estimate
    assert document.usd == pytest.approx(document.node_seconds / 3600 * price)
    lost = [[loss.node for loss in item.lost] for item in document.attempts]
    assert lost == [[], [1], [], [], []]


def read(text: str | None) -> float:
    return datetime.fromisoformat(text or "").timestamp()


@dataclass(frozen=True)
class Losses:
    """Return a run's losses: of its steps, and of its evaluations by step."""

    steps: list[float]
    evaluations: dict[int, float]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    """Return the folder of an undisturbed two-rank run named ``whole``."""
    folder = tmp_path_factory.mktemp("whole")
    laptop = Laptop(folder / "build")
    write_dataset(laptop.objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)
    words = (*WORDS, "--tensor-parallel=2", "--keep-every=4")
    run_on_ranks(folder, "llama-tiny", words, run="whole", num_ranks=2)
    return laptop


@pytest.fixture(scope="module")
def whole(undisturbed: Laptop) -> Losses:
    """Return that run's losses."""
    evaluations = val_losses(undisturbed.lines("whole", "evaluation"))
    return Losses(undisturbed.losses("whole"), evaluations)


def val_losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    return {line["step"]: line["val_loss"] for line in lines}


def refuse_marker(folder: str, request: Request) -> Fault | None:
    # The first time it only reports that the save started.
    completes = request.path.endswith(f"{folder}/complete.json") and request.number > 0
    return Fault.SLOW_DOWN if completes and request.method == "PUT" else None


def bad_day(lost: str) -> Plan:
    """Fail each checkpoint request once, and always refuse the files of ``lost``."""
    faults = (
        Fault.SLOW_DOWN, Fault.INTERNAL_ERROR, Fault.RESET, Fault.CUT_BODY, Fault.LOST_ANSWER,
        Fault.SLOW,
    )  # fmt: skip

    def plan(request: Request) -> Fault | None:
        if f"{lost}/__" in request.path:
            return Fault.ACCESS_DENIED
        if "checkpoints" in request.path and request.number == 0:
            return faults[zlib.crc32(request.path.encode()) % len(faults)]
        return None

    return plan


# `make rehearse` kills a node of a training run too. Here a run is killed in every way, also at the
# worst moment, during a save.
@pytest.mark.full
def test_a_killed_run_has_exactly_the_losses_of_an_uninterrupted_one(
    make_run: Callable[..., Run], whole: Losses
) -> None:
    steps = random.Random(SEED)
    run = make_run("killed")
    tensor = "--tensor-parallel=2"
    print(f"seed {SEED}")

    run.start(tensor)
    run.reach(steps.randrange(2, 5))
    run.wait_for_checkpoint(2)
    os.kill(run.cluster.worker(1), signal.SIGKILL)
    assert run.end() == {0: 75, 1: 75}, run.cluster.all_logs()

    run.start(tensor)
    run.reach(steps.randrange(7, 9))
    os.kill(run.cluster.launcher(1), signal.SIGKILL)
    assert run.end() == {0: 75, 1: 137}, run.cluster.all_logs()

    # During a save: its files exist, its marker is never written.
    torn = checkpoint_name(2 * steps.randrange(6, 8))
    run.proxy.reset(lambda request: refuse_marker(torn, request))
    run.start(tensor)
    deadline = time.monotonic() + scaled(60)
    while not run.proxy.injected:
        assert time.monotonic() < deadline, run.cluster.all_logs()
        time.sleep(0.02)
    os.kill(run.cluster.launcher(0), signal.SIGKILL)
    assert run.end() == {0: 137, 1: 75}, run.cluster.all_logs()
    run.proxy.reset(lambda request: None)

    run.start(tensor)
    run.reach(steps.randrange(17, 20))
    os.kill(run.cluster.launcher(0), signal.SIGTERM)
    assert run.end() == {0: 143, 1: 143}, run.cluster.all_logs()
    stopped = run.cluster.log(0)
    status = json.loads(run.bucket.get(f"runs/{run.name}/results/status.json"))
    assert (status["state"], status["last_checkpoint_step"]) == ("stopped", status["step"])

    run.start(tensor)
    assert run.end() == {0: 0, 1: 0}, run.cluster.all_logs()

    assert torn in stopped  # skipped, by name
    assert run.losses() == whole.steps
    assert val_losses(run.lines("evaluation")) == whole.evaluations
    assert len(run.lines("resume")) == 4
    check_report(run)


# test_checkpoint_ranks.py loads checkpoints on other ranks, test_shared_heads.py trains on four,
# and test_storage_faults.py injects S3's faults.
@pytest.mark.full
def test_a_run_resumes_on_other_ranks_without_loss(
    make_run: Callable[..., Run],
    bucket: Objects,
    undisturbed: Laptop,
    whole: Losses,
    laptop: Laptop,
) -> None:
    """From tensor parallel 2 to tensor parallel 2 x data parallel 2, and to one process.

    In the former case S3 fails temporarily, which training only reports.
    """
    for target in (bucket.at("runs/more"), laptop.objects.at("runs/fewer")):
        source = undisturbed.objects.at("runs/whole")
        for info in source.list():
            if "step-00000012" in info.key or info.key in ("run.json", "metrics/train.jsonl"):
                target.put(info.key, source.get(info.key))
    more = make_run("more", num_nodes=1)
    more.proxy.reset(bad_day(lost=checkpoint_name(16)))
    more.start("--tensor-parallel=2", processes=4)
    laptop.train("--tensor-parallel=1", run="fewer", tiny=False)
    assert more.end() == {0: 0}, more.cluster.all_logs()

    met = {fault for fault, _ in more.proxy.injected}
    more.proxy.reset(lambda request: None)
    assert len(met) > 4, met

    assert more.losses() == pytest.approx(whole.steps, abs=1e-5)
    assert laptop.losses("fewer") == pytest.approx(whole.steps, abs=1e-5)
    assert list(whole.evaluations) == [HALF, STEPS]
    for lines in (more.lines("evaluation"), laptop.lines("fewer", "evaluation")):
        assert val_losses(lines) == pytest.approx(whole.evaluations, abs=1e-5)
    (resume,) = more.lines("resume")
    assert resume["step"] == 12
    (failed,) = more.lines("save-failed")
    assert failed["step"] == 16 and "AccessDenied" in failed["reason"]
    assert [line["step"] for line in more.lines("saved")][-2:] == [22, 24]
    # One rank of the four reports to CloudWatch, once a minute.
    assert 1 <= more.cluster.log(0).count('"_aws"') <= 2
    assert "step-00000016 could not be saved; training continues" in more.cluster.log(0)
    assert "tensor parallel 2 x data parallel 2" in more.cluster.log(0)


def test_one_process_has_the_losses_of_several(laptop: Laptop, whole: Losses) -> None:
    laptop.train(*LENGTH, run="alone")

    assert laptop.losses("alone") == pytest.approx(whole.steps, abs=1e-5)
    found = val_losses(laptop.lines("alone", "evaluation"))
    assert found == pytest.approx(whole.evaluations, abs=1e-5)
