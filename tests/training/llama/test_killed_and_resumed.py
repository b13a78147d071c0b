"""Jobs of several processes against an emulated bucket: killed in every way, and on other ranks.

One chain of attempts, since each costs seconds of imports; what it must equal is one run that
nobody disturbs.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.limits import scaled
from tests.training.checkpoint.faulty import Fault, FaultyProxy, Plan, Request, faulty_proxy
from tests.training.conftest import Cluster
from tests.training.llama.conftest import TINY, Laptop, write_dataset
from tests.training.s3_server import REGION, s3_server
from tests.training.worker_ranks import run_on_ranks
from training.storage import Objects, open_objects
from trainium_catalogue.contract import WITHDRAWN_BYTES, checkpoint_name

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
    """An emulated S3 with a bucket, behind a proxy that injects faults: none at first."""
    with s3_server(BUCKET) as url, faulty_proxy(url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def bucket(proxy: FaultyProxy) -> Objects:
    """The bucket, with a dataset."""
    objects = open_objects(f"s3://{BUCKET}", region=REGION, endpoint_url=proxy.url)
    write_dataset(objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)
    return objects


@pytest.fixture(scope="module", autouse=True)
def split(laptop: Laptop) -> None:
    """The same dataset on the laptop."""
    write_dataset(laptop.objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)


@dataclass
class Run:
    """Attempts of one job under one run's name."""

    name: str
    bucket: Objects
    proxy: FaultyProxy
    cluster: Cluster
    attempts: Iterator[int] = field(default_factory=lambda: itertools.count(1))

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
        return self.cluster.end(within_s=90)

    def reach(self, step: int) -> None:
        self.cluster.wait_for(f"training: step {step} of", node=0)

    def wait_for_checkpoint(self, step: int) -> None:
        """Saving goes on beside training: a step that was reached need not be saved."""
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


@dataclass(frozen=True)
class Losses:
    """Of a run: of its steps, and of its evaluations by step."""

    steps: list[float]
    evaluations: dict[int, float]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    """The folder of a run of two ranks that nobody disturbs, named ``whole``."""
    folder = tmp_path_factory.mktemp("whole")
    laptop = Laptop(folder / "build")
    write_dataset(laptop.objects.at("datasets/split"), validation_tokens=VALIDATION_TOKENS)
    words = (*WORDS, "--tensor-parallel=2", "--keep-every=4")
    run_on_ranks(folder, "llama-tiny", words, run="whole", num_ranks=2)
    return laptop


@pytest.fixture(scope="module")
def whole(undisturbed: Laptop) -> Losses:
    """Losses of that run."""
    evaluations = val_losses(undisturbed.lines("whole", "evaluation"))
    return Losses(undisturbed.losses("whole"), evaluations)


def val_losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    return {line["step"]: line["val_loss"] for line in lines}


def refuse_marker(folder: str, request: Request) -> Fault | None:
    # The first time it only says that the save has begun.
    completes = request.path.endswith(f"{folder}/complete.json") and request.number > 0
    return Fault.SLOW_DOWN if completes and request.method == "PUT" else None


def bad_day(lost: str) -> Plan:
    """Each request about a checkpoint goes wrong once, and the files of ``lost`` stay refused."""
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


# A run is killed in the worst moment, during a save; the other ways cost an attempt each.
@pytest.mark.parametrize("every_way", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_killed_run_has_exactly_the_losses_of_a_whole_one(
    make_run: Callable[..., Run], whole: Losses, every_way: bool
) -> None:
    steps = random.Random(SEED)
    name = f"killed-{every_way}"
    run = make_run(name)
    tensor = "--tensor-parallel=2"
    print(f"seed {SEED}")

    if every_way:
        run.start(tensor)
        run.reach(steps.randrange(2, 5))
        run.wait_for_checkpoint(2)
        os.kill(run.cluster.worker(1), signal.SIGKILL)
        assert run.end() == {0: 75, 1: 75}, run.cluster.all_logs()

        run.start(tensor)
        run.reach(steps.randrange(7, 9))
        os.kill(run.cluster.launcher(1), signal.SIGKILL)
        assert run.end() == {0: 75, 1: 137}, run.cluster.all_logs()

    # During a save: its files are there, its marker never comes.
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
    status = json.loads(run.bucket.get(f"runs/{name}/results/status.json"))
    assert (status["state"], status["last_checkpoint_step"]) == ("stopped", status["step"])

    run.start(tensor)
    assert run.end() == {0: 0, 1: 0}, run.cluster.all_logs()

    assert torn in stopped  # passed over, by name
    assert run.losses() == whole.steps
    assert val_losses(run.lines("evaluation")) == whole.evaluations
    assert len(run.lines("resume")) == (4 if every_way else 2)


# Other ranks load a checkpoint in test_checkpoint_ranks.py, four train as one does in
# test_four_ranks.py, and S3 has its bad days in test_storage_faults.py.
@pytest.mark.full
def test_a_run_continues_on_other_ranks_and_loses_nothing(
    make_run: Callable[..., Run],
    bucket: Objects,
    undisturbed: Laptop,
    whole: Losses,
    laptop: Laptop,
) -> None:
    """From tensor parallel 2 to tensor parallel 2 x data parallel 2, and to one process.

    In the former case S3 has a bad day, of which training only tells.
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
    # CloudWatch is told by one rank of the four, once a minute.
    assert 1 <= more.cluster.log(0).count('"_aws"') <= 2
    assert "step-00000016 was not saved, training goes on" in more.cluster.log(0)
    assert "tensor parallel 2 x data parallel 2" in more.cluster.log(0)


def test_one_process_has_the_losses_of_several(laptop: Laptop, whole: Losses) -> None:
    laptop.train(*LENGTH, run="alone")

    assert laptop.losses("alone") == pytest.approx(whole.steps, abs=1e-5)
    found = val_losses(laptop.lines("alone", "evaluation"))
    assert found == pytest.approx(whole.evaluations, abs=1e-5)
