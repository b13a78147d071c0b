"""`jobs down` as a user calls it: with the real CDK CLI, on stacks of moto's CloudFormation."""

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
from jobs.teardown.work import unsaved_work
from tests.jobs.conftest import ACCOUNT, REGION, Desk
from tests.jobs.teardown.conftest import (
    DATA,
    DATA_BUCKET,
    STORAGE,
    Deployed,
    data,
    deploy,
    storage,
)
from tests.jobs.test_refusals import assert_refused
from tests.support.limits import scaled

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "docs" / "schemas" / "jobs-down.schema.json"


def test_only_the_bucket_that_was_asked_to_stay_is_left_with_its_price(deployed: Deployed) -> None:
    deployed.fill()
    result = deployed.down("--json")
    document = json.loads(result.stdout)

    assert (result.exit_code, document["outcome"]) == (0, "empty"), result.stderr
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document == deployed.document()
    assert (deployed.stacks(), deployed.buckets()) == (set(), {"bucket", DATA_BUCKET})
    (kept,) = document["kept"]
    assert (kept["id"], kept["usd_per_month"]) == (DATA_BUCKET, pytest.approx(3 / 1e9 * 0.023))
    assert "nothing is left but what was asked to stay" in deployed.table()


def test_a_second_run_looks_again_and_still_knows_what_was_asked_to_stay(
    deployed: Deployed,
) -> None:
    assert deployed.down().exit_code == 0
    result = deployed.down()

    assert result.exit_code == 0, result.stderr
    assert "deployment 'default' has no stack any more" in result.stderr
    assert [item["id"] for item in deployed.document()["kept"]] == [DATA_BUCKET]


def test_a_bucket_that_goes_is_emptied_of_every_version(desk: Desk, tmp_path: Path) -> None:
    deployed = deploy(desk, tmp_path, kept=False)
    deployed.fill()
    result = deployed.down()

    assert result.exit_code == 0, result.stderr
    assert deployed.buckets() == {"bucket"}
    assert deployed.document()["emptied"] == [{"bucket": DATA_BUCKET, "versions": 3}]


def test_a_stack_that_the_app_no_longer_has_goes_too(deployed: Deployed) -> None:
    deployed.create(
        "trainium-default-eks",
        {"Resources": {"T": {"Type": "AWS::SNS::Topic", "Properties": {}}}},
    )
    deployed.create("trainium-default-b-data", storage(kept=True, bucket="of-another"))
    result = deployed.down()

    assert result.exit_code == 0, result.stderr
    assert "deleting stack trainium-default-eks, which the app does not have" in result.stderr
    assert deployed.stacks() == {"trainium-default-b-data"}


def test_a_dry_run_shows_the_plan_and_changes_nothing(deployed: Deployed) -> None:
    deployed.desk.submitted("nightly")
    deployed.desk.put("runs/nightly/results/status.json", {"step": 120, "last_checkpoint_step": 99})
    deployed.fill()
    result = deployed.down("--dry-run")

    assert result.exit_code == 0, result.stderr
    assert "2 stacks go: " in result.stderr
    assert f"bucket {DATA_BUCKET} stays, at about $0.00 a month" in result.stderr
    (job,) = deployed.document()["jobs"]
    assert (job["run"], job["unsaved"]) == ("nightly", "21 steps since checkpoint 99")
    assert deployed.document()["outcome"] == "planned"
    assert deployed.stacks() == {STORAGE, DATA}
    assert [item["status"] for item in deployed.desk.jobs("nightly")] == ["RUNNING"]


def test_running_jobs_are_stopped_before_anything_goes(deployed: Deployed) -> None:
    job_id = deployed.desk.submitted("nightly")
    job = deployed.desk.backend_job(job_id)
    ends = job.terminate

    def terminate(reason: str) -> None:
        assert deployed.stacks() == {STORAGE, DATA}
        ends(reason)
        job.status = "FAILED"

    job.terminate = terminate
    result = deployed.down()

    assert result.exit_code == 0, result.stderr
    assert "run nightly (RUNNING) is stopped, and may save first" in result.stderr
    assert job.status == "FAILED"


@pytest.mark.parametrize(
    ("status", "unsaved"),
    [
        ({"step": 120, "last_checkpoint_step": 100}, "20 steps since checkpoint 100"),
        ({"step": 120}, "120 steps since its start, without a checkpoint"),
        ({"step": 120, "last_checkpoint_step": 120}, None),
        ({"step": "many"}, None),
        ({"kind": "program", "snapshots": []}, "everything: it has no snapshot yet"),
        (
            {"kind": "program", "snapshots": [{"at": "2026-01-01T00:00:00Z"}]},
            "what it has made since its snapshot of 2026-01-01T00:00:00Z",
        ),
        (
            {"kind": "program", "snapshots": [{}], "unkept": "writes to /tmp"},
            "not kept: the program writes to /tmp",
        ),
    ],
)
def test_unsaved_work_is_what_came_after_the_last_save(
    desk: Desk, status: dict[str, object], unsaved: str | None
) -> None:
    from jobs.bucket.objects import Bucket

    desk.put("runs/a/results/status.json", dict(status))

    assert unsaved_work(Bucket(client=desk.client("s3"), name="bucket"), "a") == unsaved


def test_a_stack_goes_before_those_whose_exports_it_imports() -> None:
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
    "stopping jobs and waiting for their end",
    "emptying buckets that go",
    "destroying stacks",
    "looking for what is left",
)


def test_interrupted_in_any_phase_and_run_again_it_finishes(desk: Desk, tmp_path: Path) -> None:
    deployed = deploy(desk, tmp_path, kept=False)
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


def test_without_yes_it_asks_and_changes_nothing_where_it_cannot(deployed: Deployed) -> None:
    result = deployed.desk.run(*deployed.words())

    assert result.exit_code == 2
    assert "refused: destroying deployment 'default' is asked about" in result.stderr
    assert deployed.stacks() == {STORAGE, DATA}


def test_a_deployment_that_never_was_is_refused(deployed: Deployed) -> None:
    result = deployed.down("--deployment", "defualt")

    assert_refused(result, "no deployment 'defualt' in us-west-2", "did you mean 'default'?")


def test_a_word_that_is_no_setting_is_refused(deployed: Deployed) -> None:
    assert_refused(deployed.down("nightly"), "'nightly' is no setting", "python -m jobs stop")


@pytest.mark.parametrize(("kept", "fragments"), [(True, "would delete"), (False, "would keep")])
def test_settings_that_keep_something_else_are_refused(
    desk: Desk, tmp_path: Path, kept: bool, fragments: str
) -> None:
    deployed = deploy(desk, tmp_path, kept=kept)
    template = deployed.assembly / f"{STORAGE}.template.json"
    template.write_text(json.dumps(storage(kept=not kept)))
    result = deployed.down()

    assert result.exit_code == 2
    assert f"refused: the settings {fragments} AWS::S3::Bucket {DATA_BUCKET}" in result.stderr
    assert f"deploy it first: `cdk deploy {STORAGE}`" in result.stderr
    assert deployed.stacks() == {STORAGE, DATA}


def test_a_stack_that_is_being_deployed_is_refused(deployed: Deployed) -> None:
    for stack in cloudformation_backends[ACCOUNT][REGION].stacks.values():
        stack.status = "UPDATE_IN_PROGRESS"

    assert_refused(deployed.down(), "is UPDATE_IN_PROGRESS", "wait until that has ended")


def test_jobs_that_do_not_end_in_time_are_refused_before_anything_goes(deployed: Deployed) -> None:
    job = deployed.desk.backend_job(deployed.desk.submitted("nightly"))
    job.terminate = lambda reason: None
    result = deployed.down("--wait", "0")

    assert result.exit_code == 2
    assert "after 0 s these jobs have not ended: nightly (RUNNING)" in result.stderr
    assert "a longer --wait" in result.stderr
    assert deployed.stacks() == {STORAGE, DATA}
    job.status = "FAILED"


def test_an_app_that_does_not_synthesize_is_refused_with_its_reason(deployed: Deployed) -> None:
    result = deployed.desk.run(
        *("down", "--yes", "--receipt", str(deployed.receipt), "--"),
        *("-c", "trainium:max_nodes=none"),
    )

    assert result.exit_code == 2
    assert "cdk synth ended with" in result.stderr
    assert "max_nodes" in result.stderr
    assert "name an assembly with --assembly" in result.stderr


def test_a_missing_cli_is_refused(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    result = deployed.down()

    assert result.exit_code == 2
    assert f"{tmp_path / 'cdk'} is missing" in result.stderr
    assert "make setup" in result.stderr


def test_an_object_that_cannot_be_deleted_is_refused(desk: Desk) -> None:
    class Locked:
        """S3's answers about a bucket with an object under legal hold."""

        def get_paginator(self, operation: str) -> Locked:
            return self

        def paginate(self, **_: object) -> list[dict[str, object]]:
            return [{"Versions": [{"Key": "a", "VersionId": "1"}]}]

        def delete_objects(self, **_: object) -> dict[str, object]:
            return {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "Access Denied"}]}

    with pytest.raises(Refusal, match=r"bucket x: a cannot be deleted \(Access Denied\); see to"):
        empty_bucket(Locked(), "x")


def test_settings_are_read_from_a_deleted_stack_too(deployed: Deployed) -> None:
    from jobs.teardown.stacks import read_history

    deployed.desk.client("cloudformation").delete_stack(StackName=DATA)
    history = read_history(deployed.desk.client("cloudformation"), "default")

    assert history.settings == {"instance_type": "trn1.32xlarge", "max_nodes": "4"}
    assert [stack.name for stack in history.deleted] == [DATA]
    stated = "/trainium/default/settings"
    deployed.create(DATA, data({stated: "null"}))
    assert read_history(deployed.desk.client("cloudformation"), "default").settings is None


def test_a_run_after_the_bucket_is_gone_finishes(desk: Desk, tmp_path: Path) -> None:
    deployed = deploy(desk, tmp_path, kept=False)
    deployed.desk.client("s3").delete_bucket(Bucket=DATA_BUCKET)
    result = deployed.down("--dry-run")

    assert result.exit_code == 0, result.stderr
    assert f"bucket {DATA_BUCKET} is emptied and goes (0 bytes)" in result.stderr
    assert empty_bucket(desk.client("s3"), DATA_BUCKET) == 0


def test_a_resource_that_was_deleted_is_not_there() -> None:
    class Answers:
        """CloudFormation's, about a stack whose deletion was interrupted."""

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


def test_a_receipt_that_could_not_be_written_is_refused_first(
    deployed: Deployed, tmp_path: Path
) -> None:
    (tmp_path / "x.txt").mkdir()
    for name, fragments in {
        ".": ["is a directory", "name another"],
        "x.json": ["x.txt: is a directory", "name another"],
        "r.txt": ["its table goes to the file", "name the receipt itself", "r.json"],
    }.items():
        assert_refused(deployed.down("--receipt", str(tmp_path / name)), *fragments)
    assert deployed.stacks() == {STORAGE, DATA}
    assert not (tmp_path / "x.json").exists()


def test_a_refusal_leaves_no_receipt(deployed: Deployed) -> None:
    assert deployed.desk.run(*deployed.words()).exit_code == 2
    assert not deployed.receipt.exists()


def test_a_dry_run_leaves_the_receipt_of_a_real_one(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.deploy_check.assembly.REPOSITORY", tmp_path)
    receipt = tmp_path / "build" / "down" / "default.json"
    receipt.parent.mkdir(parents=True)
    receipt.write_text("of a real one")
    result = deployed.desk.run("down", "--dry-run", "--assembly", str(deployed.assembly))

    assert result.exit_code == 0, result.stderr
    assert [file.name for file in receipt.parent.iterdir()] == ["default.json"]
    assert receipt.read_text() == "of a real one"


def test_stacks_stay_if_the_cli_fails(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    cdk = deployed.folder / "cdk"
    cdk.write_text("#!/bin/sh\nexit 1\n")
    cdk.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(deployed.folder / "python"))
    result = deployed.down()

    assert (result.exit_code, deployed.stacks()) == (1, {STORAGE, DATA}), result.stderr
    assert "cdk destroy ended with 1" in result.stderr
    assert "which the app does not have" not in result.stderr
    left = {item["id"] for item in deployed.document()["left"] if item["kind"] == "stack"}
    assert left == {STORAGE, DATA}


def test_a_job_submitted_while_buckets_are_emptied_is_ended_too(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = deploy(desk, tmp_path, kept=False)
    deployed.fill()
    jobs: list[Any] = []

    def emptied(s3: Any, bucket: str) -> int:
        count = empty_bucket(s3, bucket)
        if not jobs:
            job = desk.backend_job(desk.submitted("late"))
            jobs.append(job)

            def terminate(reason: str) -> None:
                deployed.fill()
                job.status = "FAILED"

            job.terminate = terminate
        return count

    monkeypatch.setattr("jobs.teardown.stacks.empty_bucket", emptied)
    result = deployed.down()

    assert result.exit_code == 0, result.stderr
    assert [job.status for job in jobs] == ["FAILED"]
    assert deployed.document()["emptied"] == [{"bucket": DATA_BUCKET, "versions": 6}]
