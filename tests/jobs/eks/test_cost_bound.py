"""No schedule of faults, retries, interruptions and waits costs more than `submit` printed.

The schedules follow the rules of Batch, Volcano and the node scaler stated by payloads and
templates, independently of the arithmetic in jobs/cost.py.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from tests.jobs.eks.conftest import EksCli
from tests.stacks.cluster_objects import object_of, with_cluster
from tests.stacks.synthesis import Deployment
from trainium_catalogue import contract
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.kubernetes import SCALER, TASK
from trainium_catalogue.node_use import CORDON_S, JOIN_S, MAX_FAILED_NODES, UNUSABLE_S
from trainium_constructs.host_setup import stop_timeout_s
from trainium_emulators.aws.batch.gang import HOST_LOST, TIMED_OUT, AttemptEnd, retries
from trainium_emulators.kubernetes.volcano_rules import Counts, action_for, next_phase

SETTINGS = {
    "zone_ids": "usw2-az4,usw2-az1",
    "runnable_time_limit_minutes": "20",
    "scale_down_delay_minutes": "45",
    "eks_idle_minutes": "25",
}
SCHEDULES = 10_000
TRAIN = ("llama2-7b", "--dataset", "wiki", "--nodes", "4", "--time-limit", "7")
SUBMISSIONS = (
    ("all-reduce", "--on", "batch", "--nodes", "4", "--time-limit", "0.2"),
    ("all-reduce", "--on", "batch", "--nodes", "2", "--time-limit", "9"),
    ("prepare", "--dataset", "wikicorpus", "--time-limit", "0.5"),
    ("all-reduce", "--on", "eks", "--nodes", "2", "--stop-grace-s", "400", "--scale"),
    ("all-reduce", "--on", "eks", "--nodes", "4", "--time-limit", "11"),
    (*TRAIN, "--on", "batch", "--compile"),
    (*TRAIN, "--on", "eks", "--compile"),
)
CODES = (*map(int, ExitCode), 2, 139)
Json = Mapping[str, Any]
T = TypeVar("T")


@dataclass(slots=True)
class Bill:
    """Instances of one job, billed by EC2 from start to end."""

    seconds: float = 0.0
    started: dict[int, float] = field(default_factory=dict)

    def start(self, instance: int, at: float) -> None:
        self.started[instance] = at

    def end(self, instance: int, at: float) -> None:
        self.seconds += at - self.started.pop(instance)

    def end_all(self, at: float) -> float:
        for instance in list(self.started):
            self.end(instance, at)
        return self.seconds


class Draw(random.Random):
    """Random choices, which are always the worst in some schedules."""

    worst = 0.0
    """Probability that a time is the longest possible, or an ending leads to a retry."""

    def upto(self, most: float) -> float:
        """Return a time: zero, random or the longest possible."""
        if self.random() < self.worst:
            return most
        return self.choice((0.0, self.uniform(0, most), most))

    def one_of(self, worst: T, *others: T) -> T:
        """Choose an option; the worst comes first."""
        return worst if self.random() < self.worst else self.choice((worst, *others))


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Batch's handling of a job, in seconds."""

    num_nodes: int
    limit: float
    strategy: Json
    runnable: float
    scale_down: float
    stop: float
    further_zones: int

    def schedule(self, draw: Draw) -> float:
        """Return the billed seconds of one random schedule of the job."""
        now, bill, attempt = 0.0, Bill(), 0
        for _ in range(self.further_zones):
            if not draw.one_of(True, False):
                break
            wait = draw.upto(self.runnable)  # it moves to the next zone
            for instance in range(self.num_nodes):
                bill.start(instance, now + wait - draw.upto(wait))
            now += wait
            bill.end_all(now + self.scale_down)
        while True:
            attempt += 1
            ended, wait = now, draw.upto(self.runnable)
            for instance in range(self.num_nodes):
                if instance not in bill.started:
                    bill.start(instance, ended + wait - draw.upto(wait))
                elif draw.random() < 0.1:  # fails while waiting, and is replaced
                    at = ended + draw.upto(wait)
                    bill.end(instance, at)
                    bill.start(instance, at)
            now += wait
            if draw.one_of(False, False, wait == self.runnable):  # the queue cancels the job
                return bill.end_all(max(now, ended + self.scale_down))
            final, end = self._end(draw)
            now += self.limit if final and end.exit_code is None else draw.upto(self.limit)
            now += draw.upto(self.stop)
            if end.status_reason == HOST_LOST:
                bill.end(0, now)
            if final or not retries(self.strategy, end, attempt=attempt):
                return bill.end_all(now + self.scale_down)

    def _end(self, draw: Draw) -> tuple[bool, AttemptEnd]:
        """Return whether Batch ends the job with an attempt, and how the attempt ends."""
        kind = draw.one_of("exited", "exited", "timed out", "host lost", "stopped")
        if kind == "timed out":  # not retried (Batch user guide, job timeouts)
            return True, AttemptEnd(exit_code=None, status_reason=TIMED_OUT)
        if kind == "host lost":
            return False, AttemptEnd(exit_code=None, status_reason=HOST_LOST)
        return kind == "stopped", AttemptEnd(exit_code=draw.one_of(int(ExitCode.HOST), *CODES))


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """How Volcano, the kubelets and the node scaler handle a job, in seconds."""

    job: dict[str, Any]
    hold: float
    idle: float
    zones: int = 1

    def left(self, draw: Draw) -> float:
        """Return the billed seconds of an instance in a zone that the gang leaves for capacity."""
        before = draw.upto(UNUSABLE_S + CORDON_S)
        failed = sum(
            draw.upto(JOIN_S) + draw.upto(UNUSABLE_S + CORDON_S)
            for _ in range(draw.one_of(MAX_FAILED_NODES, 0, 1))
        )
        # A late joiner is removed as an idle node: the zone's others went immediately.
        joins = draw.upto(JOIN_S) + CORDON_S
        return before + failed + draw.upto(self.hold) + joins + draw.upto(self.idle) + CORDON_S

    def schedule(self, draw: Draw) -> float:
        """Return the billed seconds of one random schedule of the job."""
        spec = self.job["spec"]
        pod = spec["tasks"][0]["template"]["spec"]
        now, bill, retried, moves = 0.0, Bill(), 0, self.zones - 1
        while True:
            begun = now
            while moves and draw.one_of(True, False):
                moves -= 1
                bill.seconds += spec["minAvailable"] * self.left(draw)
            if self.zones > 1 and draw.one_of(True, False):
                # Nodes for the whole gang are free elsewhere; those starting here are too late.
                bill.seconds += spec["minAvailable"] * (draw.upto(JOIN_S) + CORDON_S)
            # An unresponsive node of the previous attempt or job is removed first.
            now += draw.one_of(draw.upto(UNUSABLE_S + CORDON_S), 0.0)
            failures = draw.one_of(MAX_FAILED_NODES, 0, 0, 1)
            for _ in range(failures):
                now += draw.upto(JOIN_S) + draw.upto(UNUSABLE_S + CORDON_S)
            for instance in range(spec["minAvailable"]):
                if instance not in bill.started:
                    bill.start(instance, now - draw.upto(now - begun))
            if failures == MAX_FAILED_NODES and draw.one_of(False, True):
                break  # the node scaler drops the job
            held = draw.upto(self.hold)
            now += held
            if draw.one_of(False, False, held == self.hold):
                break
            now += draw.upto(pod["activeDeadlineSeconds"])
            now += draw.upto(pod["terminationGracePeriodSeconds"])
            code = draw.one_of(int(ExitCode.UNFIT_HOST), *CODES)
            event = draw.one_of("PodFailed", "PodEvicted")
            if event == "PodFailed" and code == 0:
                break
            action = action_for(self.job, task=TASK, event=event, exit_code=code)
            if action is None or action[0] != "RestartJob":
                break
            now += action[1]
            retried += 1
            status = {"state": {"phase": "Restarting"}, "retryCount": retried}
            if next_phase({**self.job, "status": status}, Counts()) == "Failed":
                break
        return bill.end_all(now + draw.upto(self.idle) + CORDON_S)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules stated by the templates of a deployment."""

    made: Deployment
    hold: float
    idle: float

    def of(self, document: Json, payload: Json) -> BatchRules | ClusterRules:
        """Return the rules for one payload of a submission."""
        if document["orchestrator"] == "eks":
            zones = len(SETTINGS["zone_ids"].split(","))
            return ClusterRules(dict(payload), hold=self.hold, idle=self.idle, zones=zones)
        part = "data" if document["hardware"] == "cpu" else "batch"
        workload = re.sub("[^a-z0-9]", "", document["workload"])
        definition = self.made.only(part, "AWS::Batch::JobDefinition", workload)
        queue, *further = self.made.resources(part, "AWS::Batch::JobQueue")
        environment, *_ = self.made.resources(part, "AWS::Batch::ComputeEnvironment")
        scaling = environment["ComputeResources"].get("ScalingPolicy", {})
        return BatchRules(
            num_nodes=document["nodes"],
            limit=payload["timeout"]["attemptDurationSeconds"],
            strategy=_as_api(definition["RetryStrategy"]),
            runnable=max(each["MaxTimeSeconds"] for each in queue["JobStateTimeLimitActions"]),
            scale_down=60.0 * scaling.get("MinScaleDownDelayMinutes", 0),
            stop=stop_timeout_s(),
            further_zones=len(further),
        )


ZONES = "usw2-az4,usw2-az1,usw2-az2"


def test_zones_left_by_gang_cost_no_more_than_printed(eks: EksCli, rules: Rules) -> None:
    eks.cli.parameter(contract.SSM_SETTINGS, json.dumps({**SETTINGS, "zone_ids": ZONES}))
    words = ("all-reduce", "--on", "eks", "--nodes", "4", "--time-limit", "1")
    document = eks.document("submit", *words, "--dry-run")
    job = ClusterRules(document["payload"], hold=rules.hold, idle=rules.idle, zones=3)
    draw, most = Draw(0), 0.0
    for _ in range(SCHEDULES // 10):
        draw.worst = draw.choice((0.0, 0.5, 0.9, 1.0))
        most = max(most, job.schedule(draw))
    usd = most / 3600 * document["estimate"]["usd_per_node_hour"]

    # The bound of each zone includes the delay after an unfit host, which an attempt has once.
    assert 0.999 < usd / document["estimate"]["usd_at_most"] <= 1


def _as_api(strategy: Json) -> Json:
    """Convert a retry strategy from CloudFormation's to the API's spelling."""
    rules = [
        {name[0].lower() + name[1:]: text for name, text in rule.items()}
        for rule in strategy["EvaluateOnExit"]
    ]
    return {"attempts": strategy["Attempts"], "evaluateOnExit": rules}


@pytest.fixture(scope="module")
def rules() -> Rules:
    """Rules of a deployment with non-default settings."""
    made = with_cluster(orchestrators="both", **SETTINGS)
    scaler = object_of(made, "Deployment", SCALER)["spec"]["template"]["spec"]["containers"][0]
    words = dict(itertools.pairwise(scaler["command"]))
    hold, idle = (60.0 * int(words[f"--{name}-minutes"]) for name in ("hold", "idle"))
    return Rules(made, hold=hold, idle=idle)


@pytest.fixture
def documents(eks: EksCli) -> list[Json]:
    """Documents of dry runs: payloads and maximum costs."""
    eks.cli.parameter(contract.SSM_SETTINGS, json.dumps(SETTINGS))
    eks.cli.put("datasets/wiki/manifest.json", {"vocab_size": 32000, "num_tokens": 10**9})
    return [eks.document("submit", *words, "--dry-run") for words in SUBMISSIONS]


def test_worst_schedule_costs_printed_upper_bound(documents: list[Json], rules: Rules) -> None:
    for number, (words, document) in enumerate(zip(SUBMISSIONS, documents, strict=True)):
        draw, first = Draw(number), document["compile"]
        estimate = document["estimate"]
        jobs = [
            rules.of(document, each["payload"]) for each in (first, document) if each is not None
        ]
        most = 0.0
        for _ in range(SCHEDULES // len(documents)):
            draw.worst = draw.choice((0.0, 0.5, 0.9, 1.0))
            seconds = sum(job.schedule(draw) for job in jobs)
            most = max(most, seconds / 3600 * estimate["usd_per_node_hour"])

        # On EKS, the bound of each zone has the delay after an unfit host, which a job has once.
        least = (0.999 if document["orchestrator"] == "eks" else 1) * estimate["usd_at_most"]
        assert least - 0.005 <= most <= estimate["usd_at_most"] + 0.005, words
