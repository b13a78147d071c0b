"""The notification function: its messages about runs, on both orchestrators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.diagnosis.evidence import SILENCE_S
from jobs.job import NO_CAPACITY
from node_scaler.cluster import ClusterClient
from node_scaler.snapshot import SNAPSHOT_PERIOD, ClusterSnapshots
from notifier.function import handler
from tests.jobs.conftest import REGION, Cli
from tests.jobs.diagnosis.plantings import PLANTINGS, OnBatch, OnCluster, Planting
from tests.jobs.diagnosis.test_diagnosis import explained, named
from tests.jobs.diagnosis.world import RUN, plant
from tests.jobs.eks.conftest import INSTANCE_TYPE, NODE_GROUP, ROOT, EksCli
from tests.jobs.permissions import action_of
from tests.support.limits import scaled
from tests.trainium_constructs.test_notifications import statements, synthesized
from trainium_catalogue import contract
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_constructs.scheduled import copy_packages
from trainium_emulators.kubernetes.resources import NODE, VOLCANO_JOB

SCHEDULED = {
    "version": "0",
    "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
    "detail-type": "Scheduled Event",
    "source": "aws.events",
    "account": "123456789012",
    "time": "2015-10-08T16:53:06Z",
    "region": "us-east-1",
    "resources": ["arn:aws:events:us-east-1:123456789012:rule/my-scheduled-rule"],
    "detail": {},
}
"""https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-run-lambda-schedule.html"""


@dataclass(slots=True)
class Context:
    """Lambda's context: the seconds left at each call; the last value repeats."""

    left_s: list[float]

    def get_remaining_time_in_millis(self) -> int:
        return int(1000 * (self.left_s.pop(0) if len(self.left_s) > 1 else self.left_s[0]))


@dataclass(slots=True)
class Inbox:
    """A queue subscribed to the topic, and calls of the function."""

    cli: Cli
    topic: str
    queue: str
    granted: set[str]
    """Actions of the function's role."""

    def call(self, *left_s: float) -> list[dict[str, Any]]:
        """Call the function once and return the messages; its role must allow its AWS calls."""
        used: set[str] = set()
        make = Aws._client

        def note(model: Any, **_: Any) -> None:
            used.add(action_of(model.service_model.signing_name, model.name))

        def watched(aws: Aws, service: str, **settings: Any) -> Any:
            client = make(aws, service, **settings)
            client.meta.events.register("before-call", note, unique_id=note)
            return client

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Aws, "_client", watched)
            handler(SCHEDULED, Context([*left_s] or [300.0]))
        assert used and used <= self.granted
        return self.messages()

    def messages(self) -> list[dict[str, Any]]:
        """Receive and delete the messages of the queue."""
        sqs = self.cli.client("sqs")
        found = []
        while page := sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10).get(
            "Messages"
        ):
            for message in page:
                found.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        return found


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [message["MessageAttributes"]["kind"]["Value"] for message in messages]


def pass_time(monkeypatch: pytest.MonkeyPatch, *, minutes: int) -> None:
    now = time.time() + 60 * minutes
    monkeypatch.setattr(time, "time", lambda: now)


@pytest.fixture(scope="module")
def granted() -> set[str]:
    """Return the actions that the template grants to the function's role."""
    return {action for action, _ in statements(synthesized())}


@pytest.fixture
def inbox(cli: Cli, granted: set[str], monkeypatch: pytest.MonkeyPatch) -> Inbox:
    """A topic with a subscriber; the waiting threshold is zero minutes."""
    sns, sqs = cli.client("sns"), cli.client("sqs")
    topic = sns.create_topic(Name="runs")["TopicArn"]
    queue = sqs.create_queue(QueueName="inbox")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["QueueArn"])
    monkeypatch.setenv(contract.ENV_DEPLOYMENT, "default")
    monkeypatch.setenv(contract.ENV_NOTIFY_TOPIC, topic)
    monkeypatch.setenv(contract.ENV_NOTIFY_WAIT_MINUTES, "0")
    return Inbox(cli, topic, queue, granted)


def write_snapshot(eks: EksCli, folder: Path) -> None:
    """Upload the cluster's objects to the bucket, as the node scaler does."""
    (folder / "token").write_text("scaler")
    said: list[str] = []
    ClusterSnapshots(
        cluster=ClusterClient(eks.cluster.endpoint, folder),
        namespace=NAMESPACE,
        s3=eks.cli.client("s3"),
        bucket="bucket",
        period=SNAPSHOT_PERIOD,
        say=said.append,
    ).write(datetime.now(UTC))
    assert said == []


TOLD = [
    each for each in PLANTINGS if each.status != "RUNNING" or each.quiet.total_seconds() > SILENCE_S
]
"""Plantings that cause a message."""


# A tenth of them suffices: the cause is the one that test_diagnosis checks for every planting.
@pytest.mark.parametrize("planting", TOLD[::10], ids=named)
def test_message_contains_first_line_of_explain(
    planting: Planting,
    inbox: Inbox,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    eks = request.getfixturevalue("eks") if isinstance(planting, OnCluster) else None
    plant(planting, inbox.cli, eks, monkeypatch)
    if eks is not None:
        write_snapshot(eks, tmp_path)
    line = explained(inbox.cli)["cause"]
    found = [each for each in inbox.call() if f"Run {RUN} (" in each["Message"]]

    *_, newest = found
    assert line in newest["Message"].splitlines()


Made = OnBatch | OnCluster
Put = Callable[..., EksCli | None]


@pytest.fixture
def put(inbox: Inbox, request: pytest.FixtureRequest, tmp_path: Path) -> Put:
    """A function that plants a run in a state; on the cluster, it writes the snapshot too."""

    def plant_run(place: type[Made] = OnBatch, **state: Any) -> EksCli | None:
        eks = request.getfixturevalue("eks") if place is OnCluster else None
        made = place(cause="", what="", **state)
        plant(made, inbox.cli, eks, request.getfixturevalue("monkeypatch"))
        if eks is not None:
            write_snapshot(eks, tmp_path)
        return eks

    return plant_run


def started(eks: EksCli, ago: timedelta, *, limit_s: int = 24 * 3600) -> None:
    """Backdate the start of the cluster's run, and set a time limit."""
    limit = [{"name": contract.ENV_TIME_LIMIT, "value": str(limit_s)}]

    def amend(job: dict[str, Any]) -> None:
        job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["env"] = limit
        for condition in job["status"]["conditions"]:
            condition["lastTransitionTime"] = f"{datetime.now(UTC) - ago:%Y-%m-%dT%H:%M:%SZ}"

    eks.cluster.store.update(VOLCANO_JOB, NAMESPACE, RUN, amend)


@pytest.mark.parametrize("place", [OnBatch, OnCluster])
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"status": "RUNNABLE"}, ["waiting"]),
        ({"status": "RUNNING"}, []),
        ({"status": "RUNNING", "earlier": [75]}, ["attempt-failed"]),
        ({"status": "RUNNING", "quiet": timedelta(minutes=35), "log": ["a"]}, ["no-progress"]),
        ({"status": "SUCCEEDED", "codes": [0, 0]}, ["succeeded"]),
        ({"status": "FAILED", "codes": [1, 70]}, ["failed"]),
    ],
)
def test_each_kind_is_published_once(
    place: type[Made],
    state: dict[str, Any],
    expected: list[str],
    inbox: Inbox,
    put: Put,
    tmp_path: Path,
) -> None:
    eks = put(place, **state)
    if eks is not None and "quiet" in state:
        started(eks, timedelta(minutes=40))
        write_snapshot(eks, tmp_path)

    assert kinds(inbox.call()) == expected
    # EventBridge delivers an event at least once.
    assert inbox.call() == []


@pytest.mark.parametrize("codes", [(0, 0), ()], ids=["with pods", "without pods"])
def test_failed_attempt_of_succeeded_run_is_published(
    codes: tuple[int, ...], inbox: Inbox, put: Put
) -> None:
    put(OnCluster, status="SUCCEEDED", earlier=[75], codes=codes)

    assert kinds(inbox.call()) == ["attempt-failed", "succeeded"]


def test_message_names_deployment_and_command(inbox: Inbox, put: Put) -> None:
    put(status="RUNNABLE")
    (message,) = inbox.call()

    assert message["Subject"] == f"trainium default: {RUN} waiting"
    assert message["Message"].startswith(f"Run {RUN} (2 nodes, Batch) has been waiting for ")
    assert f"python -m jobs --region {REGION} explain {RUN}" in message["Message"]
    assert message["MessageAttributes"]["run"]["Value"] == RUN
    assert message["MessageAttributes"]["cause"]["Value"] == "starting"


def test_waiting_threshold_follows_deployment_setting(
    inbox: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.ENV_NOTIFY_WAIT_MINUTES, "30")
    put(status="RUNNABLE")
    assert inbox.call() == []

    pass_time(monkeypatch, minutes=31)
    assert kinds(inbox.call()) == ["waiting"]


def test_run_behind_another_run_is_not_published_as_waiting(inbox: Inbox, put: Put) -> None:
    put(status="RUNNABLE")
    planted = inbox.cli.backend_job(inbox.cli.jobs(RUN)[-1]["jobId"])
    first = inbox.cli.submitted("first", status="RUNNING")
    described = {**planted.describe(), "dependsOn": [{"jobId": first}]}
    planted.describe = lambda: described

    assert [each for each in inbox.call() if each["MessageAttributes"]["run"]["Value"] == RUN] == []


@pytest.mark.parametrize("place", [OnBatch, OnCluster])
def test_attempt_near_time_limit_is_published_with_cost(
    place: type[Made], inbox: Inbox, put: Put, tmp_path: Path
) -> None:
    eks = put(place, status="RUNNING")
    # A planted run on Batch started 5 minutes ago.
    if eks is None:
        planted = inbox.cli.backend_job(inbox.cli.jobs(RUN)[-1]["jobId"])
        described = {**planted.describe(), "timeout": {"attemptDurationSeconds": 360}}
        planted.describe = lambda: described
    else:
        started(eks, timedelta(minutes=5), limit_s=360)
        write_snapshot(eks, tmp_path)
    (message,) = inbox.call()

    assert kinds([message]) == ["cost"]
    # 2 nodes at 21.50 USD for 5 of 6 minutes.
    assert (
        "about 4 of at most 4 USD (estimate, list price; check your account)"
        in (message["Message"])
    )


def test_job_moved_to_another_zone_is_not_failed(inbox: Inbox, put: Put) -> None:
    put(reason=f"{NO_CAPACITY} in a: moves to b")
    assert kinds(inbox.call()) == ["failed"]  # with one zone
    planted = inbox.cli.backend_job(inbox.cli.jobs(RUN)[-1]["jobId"])
    tags = {contract.TAG_ZONE_PATIENCE: "20"}
    described = {**planted.describe(), "attempts": [], "tags": tags}
    planted.describe = lambda: described
    zones = [
        {"zone": zone, "job_queue": queue, "compute_environment": "environment"}
        for zone, queue in (("a", described["jobQueue"]), ("b", "cpu-queue"))
    ]
    inbox.cli.parameter(contract.SSM_BATCH_ZONES, json.dumps({"zones": zones}))
    inbox.cli.client("s3").delete_object(Bucket="bucket", Key=contract.NOTIFICATIONS_SENT)

    assert inbox.call() == []


def test_runs_ended_before_notifications_were_enabled_are_skipped(
    inbox: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(codes=[1, 70])
    pass_time(monkeypatch, minutes=120)

    assert inbox.call() == []


def test_concurrent_calls_publish_once(
    inbox: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(codes=[1, 70])
    assert kinds(inbox.call()) == ["failed"]

    # A concurrent call, which read the state before this one published.
    monkeypatch.setattr(Bucket, "read_version", lambda bucket, key: None)
    assert inbox.call() == []


def test_failed_publication_is_retried_by_next_call(
    inbox: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(codes=[1, 70])
    with monkeypatch.context() as patch:
        patch.setenv(contract.ENV_NOTIFY_TOPIC, f"{inbox.topic}-gone")
        with pytest.raises(RuntimeError, match=f"failed-1 of run {RUN} was not published"):
            inbox.call()

    assert kinds(inbox.call()) == ["failed"]


def test_round_out_of_time_publishes_part_and_leaves_rest(inbox: Inbox, put: Put) -> None:
    put(codes=[1, 70])
    inbox.cli.submitted("other", status="RUNNABLE")
    with pytest.raises(RuntimeError, match="function ran out of time before checking every run"):
        inbox.call(61.0, 59.0)
    # Ended runs come first: they are published for an hour only.
    assert kinds(inbox.messages()) == ["failed"]

    assert {each["MessageAttributes"]["run"]["Value"] for each in inbox.call()} == {"other"}


def test_run_without_news_needs_no_diagnosis(
    inbox: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(status="RUNNABLE")
    assert kinds(inbox.call()) == ["waiting"]

    monkeypatch.setattr("notifier.rounds.gather", None)
    assert inbox.call() == []


def test_runs_of_other_deployments_are_skipped(inbox: Inbox, put: Put) -> None:
    put(codes=[1, 70])
    batch = inbox.cli.client("batch")
    (environment,) = batch.describe_compute_environments()["computeEnvironments"]
    order = [{"order": 1, "computeEnvironment": environment["computeEnvironmentArn"]}]
    queue = batch.create_job_queue(
        jobQueueName="theirs", priority=1, state="ENABLED", computeEnvironmentOrder=order
    )["jobQueueArn"]
    inbox.cli.parameter(contract.SSM_JOB_QUEUE, queue)

    assert inbox.call() == []


def test_messages_contain_no_arguments_or_log_lines(inbox: Inbox, put: Put) -> None:
    log = ("token=hunter2", "launch: exit 1 (x): node 0: rank 0: ValueError: hunter2")
    put(codes=[1, 70], log=log)
    planted = inbox.cli.backend_job(inbox.cli.jobs(RUN)[-1]["jobId"])
    container = {"command": [*contract.launch_command("program"), "--", "--key", "hunter2"]}
    nodes = {"numNodes": 2, "nodeRangeProperties": [{"container": container}]}
    described = {**planted.describe(), "nodeProperties": nodes}
    planted.describe = lambda: described
    (message,) = inbox.call()

    assert "program-error: " in message["Message"]
    assert "hunter2" not in json.dumps(message)


def test_stale_cluster_snapshot_is_ignored(
    inbox: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(OnCluster, codes=[1, 70])
    monkeypatch.setattr("notifier.snapshot._MAX_AGE", timedelta(seconds=-1))

    assert inbox.call() == []
    assert "the cluster's runs are unknown" in capsys.readouterr().out


@pytest.mark.usefixtures("eks")
def test_batch_runs_are_published_if_cluster_is_unreadable(inbox: Inbox, put: Put) -> None:
    put(codes=[1, 70])
    inbox.cli.put(contract.CLUSTER_SNAPSHOT, b"not one")

    with pytest.raises(RuntimeError, match="BadGzipFile"):
        inbox.call()
    assert kinds(inbox.messages()) == ["failed"]


def test_unchanged_cluster_snapshot_is_renewed_only_after_minutes(
    eks: EksCli, tmp_path: Path
) -> None:
    eks.cluster.scale(NODE_GROUP, INSTANCE_TYPE, 1)
    (tmp_path / "token").write_text("scaler")
    writer = ClusterSnapshots(
        cluster=ClusterClient(eks.cluster.endpoint, tmp_path),
        namespace=NAMESPACE,
        s3=eks.cli.client("s3"),
        bucket="bucket",
        period=SNAPSHOT_PERIOD,
        say=lambda text: None,
    )
    written = []
    now = datetime.now(UTC)
    for minute in range(0, 8):
        heartbeat = f"{now + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}"

        def beat(node: dict[str, Any], at: str = heartbeat) -> None:
            node["status"]["images"] = [{"names": [at]}]
            for condition in node["status"]["conditions"]:
                condition["lastHeartbeatTime"] = at

        eks.cluster.store.update(NODE, "", eks.node_names()[0], beat)
        eks.cli.client("s3").delete_object(Bucket="bucket", Key=contract.CLUSTER_SNAPSHOT)
        writer.write(now + timedelta(minutes=minute))
        written += [minute] if eks.cli.keys(contract.CLUSTER_SNAPSHOT) else []

    assert written == [0, 5]


def test_function_needs_only_packages_of_lambda(inbox: Inbox, put: Put) -> None:
    put(codes=[1, 70])
    call = (
        "import json, sys\n"
        "class NotThere:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in sys.argv[1].split(','):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NotThere())\n"
        "from notifier.function import handler\n"
        "class Context:\n"
        "    def get_remaining_time_in_millis(self):\n"
        "        return 300_000\n"
        "handler(json.loads(sys.argv[2]), Context())\n"
    )
    # Of the CLI's dependencies, Lambda's runtime has only boto3.
    missing = "typer,click,rich,kubernetes,torchx,yaml,plotext"
    ran = subprocess.run(
        [sys.executable, "-c", call, missing, json.dumps(SCHEDULED)],
        cwd=copy_packages(ROOT),
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=scaled(30),
    )

    assert ran.returncode == 0, ran.stderr
    assert kinds(inbox.messages()) == ["failed"]
