"""`jobs down` as a user runs it: with the real CDK CLI, on stacks of moto's CloudFormation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from moto.cloudformation.models import cloudformation_backends

from jobs.deploy_check.account import DeployedStack, read_stack
from jobs.errors import Refusal
from jobs.teardown.stacks import destroy_order, empty_bucket
from jobs.teardown.work import UnfinishedJobs, describe_unsaved
from tests.jobs.conftest import ACCOUNT, REGION, Cli
from tests.jobs.teardown.conftest import DATA, DATA_BUCKET, STORAGE, Deployed, data, deploy, storage
from tests.jobs.test_refusals import assert_refused
from tests.support.limits import scaled

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "docs" / "schemas" / "jobs-down.schema.json"


def test_only_retained_bucket_is_left_with_price(deployed: Deployed) -> None:
    deployed.fill()
    result = deployed.down("--json")
    document = json.loads(result.stdout)

    assert (result.exit_code, document["outcome"]) == (0, "empty"), result.stderr
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document == deployed.document()
    assert (deployed.stacks(), deployed.buckets()) == (set(), {"bucket", DATA_BUCKET})
    (kept,) = document["kept"]
    assert (kept["id"], kept["usd_per_month"]) == (DATA_BUCKET, pytest.approx(3 / 1e9 * 0.023))
    assert "nothing is left except what you asked to retain" in deployed.table()
    again = deployed.down()
    assert again.exit_code == 0, again.stderr
    assert [item["id"] for item in deployed.document()["kept"]] == [DATA_BUCKET]


def test_second_run_extends_receipt(cli: Cli, tmp_path: Path) -> None:
    deployed = deploy(cli, tmp_path, kept=False)
    deployed.fill()
    deployed.down()
    first = deployed.document()
    result = deployed.down()
    deployed.down("--dry-run")
    deployed.down("--dry-run")
    document = deployed.document()

    assert result.exit_code == 0, result.stderr
    assert "has no stacks to destroy" in result.stderr
    assert first["earlier"] == []
    before, again = document["earlier"]
    assert before == {name: first[name] for name in before}
    assert before["emptied"] == [{"bucket": DATA_BUCKET, "versions": 3}]
    assert deployed.buckets() == {"bucket"}
    assert (again["stacks"], again["emptied"]) == ([], [])
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert f"2 stacks; deleted object versions: 3 of bucket {DATA_BUCKET}" in deployed.table()


def test_file_that_is_not_a_receipt_is_refused_and_kept(deployed: Deployed) -> None:
    for text, reason in (("notes", "it is not JSON"), ('{"deployment": "b"}', "deployment 'b'")):
        deployed.receipt.write_text(text)
        assert_refused(deployed.down(), "not a receipt of deployment", reason, "--receipt")
        assert deployed.receipt.read_text() == text
    assert deployed.stacks() == {STORAGE, DATA}


def test_stack_no_longer_in_app_is_deleted(deployed: Deployed) -> None:
    deployed.create(
        "trainium-default-eks",
        {"Resources": {"T": {"Type": "AWS::SNS::Topic", "Properties": {}}}},
    )
    deployed.create("trainium-default-b-data", storage(kept=True, bucket="of-another"))
    result = deployed.down()

    assert result.exit_code == 0, result.stderr
    assert "stack trainium-default-eks, which is no longer part of the app" in result.stderr
    assert deployed.stacks() == {"trainium-default-b-data"}


def test_dry_run_shows_plan_and_changes_nothing(deployed: Deployed) -> None:
    deployed.cli.submitted("nightly")
    deployed.cli.put("runs/nightly/results/status.json", {"step": 120, "last_checkpoint_step": 99})
    deployed.fill()
    result = deployed.down("--dry-run")

    assert result.exit_code == 0, result.stderr
    assert "destroy 2 stacks: " in result.stderr
    assert f"bucket {DATA_BUCKET}: retain, at about $0.00 per month" in result.stderr
    (job,) = deployed.document()["jobs"]
    assert (job["run"], job["unsaved"]) == ("nightly", "21 steps since checkpoint 99")
    assert deployed.document()["outcome"] == "planned"
    assert deployed.stacks() == {STORAGE, DATA}
    assert [item["status"] for item in deployed.cli.jobs("nightly")] == ["RUNNING"]


def queue_states(cli: Cli) -> set[str]:
    return {queue["state"] for queue in cli.client("batch").describe_job_queues()["jobQueues"]}


def test_running_jobs_are_stopped_first(deployed: Deployed) -> None:
    job_id = deployed.cli.submitted("nightly")
    job = deployed.cli.backend_job(job_id)
    ends = job.terminate

    def terminate(reason: str) -> None:
        assert deployed.stacks() == {STORAGE, DATA}
        assert queue_states(deployed.cli) == {"DISABLED"}
        ends(reason)
        job.status = "FAILED"

    job.terminate = terminate
    result = deployed.down()

    assert result.exit_code == 0, result.stderr
    assert "run nightly (RUNNING): stop, with time to save" in result.stderr
    assert job.status == "FAILED"


@pytest.mark.parametrize(
    ("status", "unsaved"),
    [
        ({"step": 120, "last_checkpoint_step": 100}, "20 steps since checkpoint 100"),
        ({"step": 120}, "120 steps since its start, without a checkpoint"),
        ({"step": 120, "last_checkpoint_step": 120}, None),
        ({"step": "many"}, None),
        ({"kind": "program", "snapshots": []}, "everything, because it has no snapshot yet"),
        (
            {"kind": "program", "snapshots": [{"at": "2026-01-01T00:00:00Z"}]},
            "progress since its snapshot of 2026-01-01T00:00:00Z",
        ),
        (
            {"kind": "program", "snapshots": [{}], "unpersisted": "writes to /tmp"},
            "files that no snapshot includes: the program writes to /tmp",
        ),
    ],
)
def test_unsaved_work_is_progress_since_last_save(
    cli: Cli, status: dict[str, object], unsaved: str | None
) -> None:
    from jobs.bucket.objects import Bucket

    cli.put("runs/a/results/status.json", dict(status))

    assert describe_unsaved(Bucket(client=cli.client("s3"), name="bucket"), "a") == unsaved


def test_importing_stack_is_deleted_before_exporting_stack() -> None:
    def stack(name: str, *, exports: str = "", imports: str = "") -> DeployedStack:
        value = {"Fn::ImportValue": imports} if imports else "x"
        output = {"O": {"Value": "x", "Export": {"Name": exports}}} if exports else {}
        template = {"Resources": {"R": {"Type": "T", "V": value}}, "Outputs": output}
        return DeployedStack(name=name, status="", template=template, physical_ids={})

    live = {
        "network": stack("network", exports="vpc"),
        "eks": stack("eks", imports="queue"),
        "data": stack("data", exports="queue", imports="vpc"),
    }

    assert destroy_order(live) == ["eks", "data", "network"]


PHASES = (
    "stopping jobs and waiting for them to end",
    "emptying buckets to be deleted",
    "destroying stacks",
    "searching for leftovers",
)


def test_interrupted_teardown_finishes_on_rerun(cli: Cli, tmp_path: Path) -> None:
    deployed = deploy(cli, tmp_path, kept=False)
    deployed.fill()
    for phase in PHASES:
        command = [sys.executable, "-m", "jobs", *deployed.words("--yes")]
        with subprocess.Popen(
            command, cwd=ROOT, env=dict(os.environ), stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith(phase):
                    process.send_signal(signal.SIGINT)
                    break
            rest = process.stderr.read()
            code = process.wait(scaled(60))

        assert (code, deployed.document()["outcome"]) == (130, "interrupted"), rest
        assert "run the same command again to finish" in deployed.table()
    result = deployed.down()

    assert (result.exit_code, deployed.document()["outcome"]) == (0, "empty"), result.stderr
    assert (deployed.stacks(), deployed.buckets()) == (set(), {"bucket"})


def test_teardown_interrupted_after_data_deletion_keeps_queues_disabled(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = deploy(cli, tmp_path, kept=False)
    deployed.fill()

    def interrupted(s3: Any, bucket: str, counts: dict[str, int]) -> None:
        empty_bucket(s3, bucket, counts)
        raise KeyboardInterrupt

    monkeypatch.setattr("jobs.teardown.stacks.empty_bucket", interrupted)
    result = deployed.down()

    assert result.exit_code == 130, result.stderr
    assert f"deleted up to 3 object versions in bucket {DATA_BUCKET}" in result.stderr
    assert "job queues accept jobs again" not in result.stderr
    assert queue_states(cli) == {"DISABLED"}
    assert deployed.document()["emptied"] == [{"bucket": DATA_BUCKET, "versions": 3}]

    def interrupted_before(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(UnfinishedJobs, "remove_nodes", interrupted_before)
    again = deployed.down()

    assert again.exit_code == 130, again.stderr
    assert "job queues stay closed" in again.stderr
    assert queue_states(cli) == {"DISABLED"}


class Queues:
    """Two queues that Batch updates for several polls; the second is never enabled."""

    def __init__(self, updating_for: int) -> None:
        self.states = dict.fromkeys(("a", "b"), "DISABLED")
        self._updating_for = updating_for

    @property
    def is_updating(self) -> bool:
        return self._updating_for > 0

    def describe_job_queues(self, **_: object) -> dict[str, Any]:
        status = "UPDATING" if self.is_updating else "VALID"
        self._updating_for -= 1
        named = [
            {"jobQueueName": name, "jobQueueArn": f"arn:{name}", "state": state, "status": status}
            for name, state in self.states.items()
        ]
        return {"jobQueues": named}

    def update_job_queue(self, *, jobQueue: str, state: str) -> None:
        name = jobQueue.removeprefix("arn:")
        if self.is_updating or name == "b":
            raise Refusal("x", "the queue is being modified")
        self.states[name] = state


@pytest.mark.parametrize("updating_for", [3, 1000])
def test_queues_are_reenabled_once_stable_or_command_is_shown(
    updating_for: int,
) -> None:
    class Account:
        """AWS with queues disabled by an earlier command."""

        region = "us-west-2"

        def batch(self) -> Queues:
            return queues

        def teardown_client(self, _: str) -> Queues:
            return queues

    queues, notes, naps = Queues(updating_for), list[str](), list[float]()
    account: Any = Account()
    work = UnfinishedJobs(aws=account, target=None, queues=["arn:a", "arn:b"], note=notes.append)
    work.reopen_queues(sleep=naps.append)

    opens = updating_for == 3
    said = "\n".join(notes)
    command = "aws batch update-job-queue --job-queue arn:{} --state ENABLED --region us-west-2"
    assert queues.states == {"a": "ENABLED" if opens else "DISABLED", "b": "DISABLED"}
    assert ("job queues accept jobs again: a" in notes) == opens
    assert (command.format("a") in said) != opens
    assert command.format("b") in said
    assert len(naps) <= 30


def test_teardown_without_terminal_needs_yes(deployed: Deployed) -> None:
    result = deployed.cli.run(*deployed.words())

    assert result.exit_code == 2
    assert "refused: destroying deployment 'default' needs confirmation" in result.stderr
    assert deployed.stacks() == {STORAGE, DATA}
    assert not deployed.receipt.exists()


def test_unknown_deployment_is_refused(deployed: Deployed) -> None:
    result = deployed.down("--deployment", "defualt")

    assert_refused(result, "no deployment 'defualt' in us-west-2", "did you mean 'default'?")


def test_unknown_argument_is_refused(deployed: Deployed) -> None:
    assert_refused(deployed.down("nightly"), "'nightly' is not an option", "python -m jobs stop")


@pytest.mark.parametrize(("kept", "fragments"), [(True, "would delete"), (False, "would retain")])
def test_settings_with_different_retention_are_refused(
    cli: Cli, tmp_path: Path, kept: bool, fragments: str
) -> None:
    deployed = deploy(cli, tmp_path, kept=kept)
    template = deployed.assembly / f"{STORAGE}.template.json"
    template.write_text(json.dumps(storage(kept=not kept)))
    assert_refused(
        deployed.down(),
        f"refused: the settings {fragments} AWS::S3::Bucket {DATA_BUCKET}",
        f"deploy it first: `cdk deploy {STORAGE}`",
    )
    assert deployed.stacks() == {STORAGE, DATA}


def test_stack_being_deployed_is_refused(deployed: Deployed) -> None:
    for stack in cloudformation_backends[ACCOUNT][REGION].stacks.values():
        stack.status = "UPDATE_IN_PROGRESS"

    assert_refused(
        deployed.down(), "is UPDATE_IN_PROGRESS", "wait until the deployment has finished"
    )


def test_jobs_that_do_not_end_in_time_are_refused_before_deletion(deployed: Deployed) -> None:
    job = deployed.cli.backend_job(deployed.cli.submitted("nightly"))
    job.terminate = lambda reason: None
    result = deployed.down("--wait", "0")

    assert result.exit_code == 2
    assert "after 0 s these jobs have not ended: nightly (RUNNING)" in result.stderr
    assert "a longer --wait" in result.stderr
    assert deployed.stacks() == {STORAGE, DATA}
    assert "job queues accept jobs again" in result.stderr
    assert queue_states(deployed.cli) == {"ENABLED"}
    job.status = "FAILED"


def test_synthesis_failure_is_refused_with_reason(deployed: Deployed) -> None:
    result = deployed.cli.run(
        *("down", "--yes", "--receipt", str(deployed.receipt), "--"),
        *("-c", "trainium:max_nodes=none"),
    )

    assert result.exit_code == 2
    assert "cdk synth exited with" in result.stderr
    assert "max_nodes" in result.stderr
    assert "specify an assembly with --assembly" in result.stderr


def test_missing_cli_is_refused(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    result = deployed.down()

    assert result.exit_code == 2
    assert f"{tmp_path / 'cdk'} is needed to destroy" in result.stderr
    assert "make setup" in result.stderr


def test_undeletable_object_is_refused(cli: Cli) -> None:
    class Locked:
        """S3's responses for a bucket with an object under legal hold."""

        def get_paginator(self, operation: str) -> Locked:
            return self

        def paginate(self, **_: object) -> list[dict[str, object]]:
            return [{"Versions": [{"Key": "a", "VersionId": "1"}]}]

        def delete_objects(self, **_: object) -> dict[str, object]:
            return {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "Access Denied"}]}

    with pytest.raises(Refusal, match=r"bucket x: a cannot be deleted \(Access Denied\); fix its"):
        empty_bucket(Locked(), "x", {})


def test_settings_are_read_from_deleted_stack(deployed: Deployed) -> None:
    from jobs.teardown.stacks import read_history

    deployed.cli.client("cloudformation").delete_stack(StackName=DATA)
    history = read_history(deployed.cli.client("cloudformation"), "default")

    assert history.settings == {"instance_type": "trn1.32xlarge", "max_nodes": "4"}
    assert [stack.name for stack in history.deleted] == [DATA]
    stated = "/trainium/default/settings"
    deployed.create(DATA, data({stated: "null"}))
    assert read_history(deployed.cli.client("cloudformation"), "default").settings is None


def test_rerun_after_bucket_deletion_finishes(cli: Cli, tmp_path: Path) -> None:
    deployed = deploy(cli, tmp_path, kept=False)
    deployed.cli.client("s3").delete_bucket(Bucket=DATA_BUCKET)
    result = deployed.down("--dry-run")

    assert result.exit_code == 0, result.stderr
    assert f"bucket {DATA_BUCKET}: empty and delete (0 bytes)" in result.stderr
    counts: dict[str, int] = {}
    empty_bucket(cli.client("s3"), DATA_BUCKET, counts)
    assert counts == {DATA_BUCKET: 0}


def test_deleted_resource_is_not_listed() -> None:
    class Answers:
        """CloudFormation's responses for a stack whose deletion was interrupted."""

        def get_paginator(self, operation: str) -> Answers:
            return self

        def paginate(self, **_: object) -> list[dict[str, object]]:
            statuses = {"Gone": "DELETE_COMPLETE", "There": "DELETE_FAILED"}
            summaries = [
                {"LogicalResourceId": id, "PhysicalResourceId": id, "ResourceStatus": status}
                for id, status in statuses.items()
            ]
            return [{"StackResourceSummaries": summaries}]

        def get_template(self, **_: object) -> dict[str, object]:
            kind = {"Type": "AWS::S3::Bucket"}
            return {"TemplateBody": {"Resources": {"Gone": kind, "There": kind}}}

    stack = read_stack(Answers(), STORAGE, "id", "DELETE_FAILED")

    assert stack.physical_ids_of("AWS::S3::Bucket") == ["There"]


def test_unwritable_receipt_is_refused_first(deployed: Deployed, tmp_path: Path) -> None:
    (tmp_path / "x.txt").mkdir()
    for name, fragments in {
        ".": ["is a directory", "specify another"],
        "x.json": ["x.txt: is a directory", "specify another"],
        "r.txt": ["suffix .txt is reserved for its table", "specify another name", "r.json"],
    }.items():
        assert_refused(deployed.down("--receipt", str(tmp_path / name)), *fragments)
    assert deployed.stacks() == {STORAGE, DATA}
    assert not (tmp_path / "x.json").exists()


def test_dry_run_keeps_existing_receipt(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.deploy_check.assembly.REPOSITORY", tmp_path)
    receipt = tmp_path / "build" / "down" / "default.json"
    receipt.parent.mkdir(parents=True)
    receipt.write_text("of a real one")
    result = deployed.cli.run("down", "--dry-run", "--assembly", str(deployed.assembly))

    assert result.exit_code == 0, result.stderr
    assert [file.name for file in receipt.parent.iterdir()] == ["default.json"]
    assert receipt.read_text() == "of a real one"


def test_stacks_stay_if_cli_fails(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    cdk = deployed.folder / "cdk"
    cdk.write_text("#!/bin/sh\nexit 1\n")
    cdk.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(deployed.folder / "python"))
    result = deployed.down()

    assert (result.exit_code, deployed.stacks()) == (1, {STORAGE, DATA}), result.stderr
    assert "cdk destroy exited with 1" in result.stderr
    assert "no longer part of the app" not in result.stderr
    left = {item["id"] for item in deployed.document()["left"] if item["kind"] == "stack"}
    assert left == {STORAGE, DATA}


def test_job_submitted_while_buckets_are_emptied_is_ended(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = deploy(cli, tmp_path, kept=False)
    deployed.fill()
    jobs: list[Any] = []

    def emptied(s3: Any, bucket: str, counts: dict[str, int]) -> None:
        empty_bucket(s3, bucket, counts)
        if not jobs:
            job = cli.backend_job(cli.submitted("late"))
            jobs.append(job)

            def terminate(reason: str) -> None:
                deployed.fill()
                job.status = "FAILED"

            job.terminate = terminate

    monkeypatch.setattr("jobs.teardown.stacks.empty_bucket", emptied)
    result = deployed.down()

    assert result.exit_code == 0, result.stderr
    assert [job.status for job in jobs] == ["FAILED"]
    assert deployed.document()["emptied"] == [{"bucket": DATA_BUCKET, "versions": 6}]
