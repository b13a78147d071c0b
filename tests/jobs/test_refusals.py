"""Everything that is refused: one message with value, reason and remedy, exit code 2."""

from __future__ import annotations

import json
import socket

import pytest
from typer.testing import Result

from jobs.batch.request import MAX_PAYLOAD_BYTES, check_length
from jobs.errors import Refusal
from jobs.job import JobRequest
from tests.jobs.conftest import Desk
from trainium_catalogue import contract

NIGHTLY = ("submit", "all-reduce", "--name", "nightly", "--yes")


def assert_refused(result: Result, *fragments: str) -> None:
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stderr.startswith("refused: ")
    assert result.stderr.count("\n") == 1
    assert [part for part in fragments if part not in result.stderr] == [], result.stderr


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("submit", "all-reduc"), ["unknown workload 'all-reduc'", "did you mean 'all-reduce'?"]),
        (
            ("submit", "qwen3-tiny"),
            ["unknown workload 'qwen3-tiny'", "did you mean 'pretrain --model qwen3-tiny'?"],
        ),
        # Models are no workloads.
        (("submit", "zzzz"), ["unknown workload 'zzzz'", "mnist, prepare, pretrain, tokenize"]),
        (
            (*NIGHTLY, "--set", "max-byte=1024"),
            ["all-reduce has no parameter 'max-byte'", "did you mean 'max-bytes'?"],
        ),
        ((*NIGHTLY, "--set", "max-bytes=big"), ["max-bytes=big is not a whole number"]),
        ((*NIGHTLY, "--set", "max-bytes=1.5"), ["max-bytes=1.5 is not a whole number"]),
        ((*NIGHTLY, "--set", "max-bytes=1"), ["max-bytes=1 is too small; the least is 4"]),
        ((*NIGHTLY, "--set", "require-bar=1"), ["require-bar=1 is not a boolean", "true or false"]),
        ((*NIGHTLY, "--set", "peer-timeout-s=nan"), ["peer-timeout-s=nan is not finite"]),
        ((*NIGHTLY, "--set", "max-bytes"), ["max-bytes is not key=value", "min-bytes=1024"]),
        (
            (*NIGHTLY, "--set", "iterations=1", "--set", "iterations=2"),
            ["--set iterations is given twice"],
        ),
        (
            ("submit", "all-reduce", "--name", "my run!"),
            ["'my run!' cannot be a run name", "letters, digits", "'my-run' would do"],
        ),
        (("submit", "all-reduce", "--name", "x" * 101), ["1 to 100 letters"]),
        (("submit", "all-reduce", "--name", "-x"), ["begins with a letter or digit", "'x'"]),
        ((*NIGHTLY, "--nodes", "0"), ["--nodes 0 is too few", "needs at least 1", "--nodes 1"]),
        (
            (*NIGHTLY, "--nodes", "8"),
            [
                "--nodes 8 is more than deployment 'default' can hold (4)",
                "cdk deploy --all -c trainium:instance_type=trn1.32xlarge "
                "-c trainium:region=us-west-2 -c trainium:max_nodes=8",
            ],
        ),
        (
            (*NIGHTLY, "--time-limit", "48"),
            [
                "--time-limit 48 hours is over the cap of deployment 'default' (24)",
                "-c trainium:job_time_limit_hours=48",
            ],
        ),
        ((*NIGHTLY, "--time-limit", "0"), ["--time-limit 0 is too short", "60 seconds"]),
        ((*NIGHTLY, "--time-limit", "nan"), ["--time-limit nan is too short"]),
        (
            (*NIGHTLY, "--stop-grace-s", "91"),
            ["--stop-grace-s 91 is too long on AWS Batch", "give 90 or less", "--on eks"],
        ),
        (("status", "nightly"), ["no run 'nightly' in deployment 'default' in us-west-2"]),
        (("logs", "nightly"), ["no run 'nightly'", "log group log-group"]),
        (("stop", "nightly"), ["no run 'nightly'", "7 days"]),
        (
            ("top", "nightly"),
            ["top needs a cluster", "of a run on Batch see `python -m jobs status nightly`"],
        ),
        (("status",), ["no runs in deployment 'default'", "python -m jobs submit"]),
        (("logs",), ["no runs in deployment 'default'"]),
    ],
)
def test_a_wrong_argument_is_refused(
    desk: Desk, arguments: tuple[str, ...], fragments: list[str]
) -> None:
    assert_refused(desk.run(*arguments), *fragments)


def test_nothing_is_submitted_when_a_submission_is_refused(desk: Desk) -> None:
    desk.run(*NIGHTLY, "--nodes", "8")

    assert desk.jobs("nightly") == []


def test_parameters_that_ecs_would_find_too_long_are_refused(desk: Desk) -> None:
    long = ["--set", f"max-bytes={'9' * 4200}", "--set", f"iterations={'9' * 4200}"]

    assert_refused(desk.run(*NIGHTLY, *long), "ECS takes at most 8192", "shorten their values")


def test_a_submission_that_batch_would_find_too_long_is_refused() -> None:
    request = JobRequest(
        run="run",
        workload="all-reduce",
        num_nodes=1,
        time_limit_hours=1,
        deployment="default",
        job_queue="q" * MAX_PAYLOAD_BYTES,
        job_definition="definition",
        usd_per_node_hour=1,
    )

    with pytest.raises(Refusal, match="Batch takes at most 30720"):
        check_length(request)


def test_a_type_without_efa_is_refused_for_more_than_one_node(desk: Desk) -> None:
    desk.parameter(contract.SSM_INSTANCE_TYPE, "trn1.2xlarge")

    result = desk.run(*NIGHTLY, "--nodes", "2")

    assert_refused(
        result,
        "--nodes 2 cannot run on trn1.2xlarge",
        "no EFA",
        "--nodes 1",
        "cdk deploy --all -c trainium:instance_type=trn1.32xlarge",
    )


def test_a_refusal_prints_the_whole_line_of_the_next_deployment(desk: Desk) -> None:
    settings = '{"bucket_name": "ours", "max_nodes": "4", "eks_admin_arns": "a, b"}'
    desk.parameter(contract.SSM_SETTINGS, settings)

    result = desk.run(*NIGHTLY, "--nodes", "8")

    line = (
        "cdk deploy --all -c trainium:instance_type=trn1.32xlarge -c trainium:region=us-west-2 "
        "-c trainium:bucket_name=ours -c trainium:max_nodes=8 -c 'trainium:eks_admin_arns=a, b'"
    )
    assert_refused(result, f"deploy again with `{line}`\n")


@pytest.mark.parametrize("kept", ["null", "not JSON"])
def test_a_refusal_says_so_where_settings_are_not_known(desk: Desk, kept: str) -> None:
    desk.parameter(contract.SSM_SETTINGS, kept)

    result = desk.run(*NIGHTLY, "--nodes", "8")

    assert_refused(result, "max_nodes=8` and the other -c settings it was deployed with\n")


def test_a_type_without_efa_runs_one_node(desk: Desk) -> None:
    desk.parameter(contract.SSM_INSTANCE_TYPE, "trn1.2xlarge")

    assert desk.run(*NIGHTLY, "--nodes", "1").exit_code == 0


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_job_that_takes_nodes_is_refused_when_nobody_can_be_asked(desk: Desk, nodes: str) -> None:
    result = desk.run("submit", "all-reduce", "--nodes", nodes, "--name", "nightly")

    assert result.exit_code == 2
    assert f"a job of {nodes} x trn1.32xlarge is asked about, and standard input" in result.stderr
    assert "is not a terminal; add --yes" in result.stderr
    assert desk.jobs("nightly") == []


def test_a_missing_deployment_is_refused_with_the_way_to_make_it(desk: Desk) -> None:
    result = desk.run("--deployment", "defalt", *NIGHTLY)

    assert_refused(
        result,
        "no deployment 'defalt' in us-west-2",
        "/trainium/defalt/contract-version",
        "cdk deploy --all -c trainium:deployment=defalt",
        "did you mean 'default'?",
    )


def test_another_contract_version_is_refused(desk: Desk) -> None:
    desk.parameter(contract.SSM_CONTRACT_VERSION, "1")

    assert_refused(desk.run(*NIGHTLY), "speaks contract version 1, this checkout 3", "cdk deploy")


@pytest.mark.parametrize(
    "name", [contract.SSM_JOB_QUEUE, contract.ssm_job_definition("all-reduce")]
)
def test_a_deployment_that_lacks_a_parameter_is_refused(desk: Desk, name: str) -> None:
    desk.client("ssm").delete_parameter(Name=contract.ssm_parameter("default", name))

    assert_refused(desk.run(*NIGHTLY), f"does not publish /trainium/default/{name}", "cdk deploy")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (contract.SSM_MAX_NODES, "many"),
        (contract.SSM_INSTANCE_TYPE, "trn9.large"),
        (contract.SSM_JOB_TIME_LIMIT_HOURS, "a day"),
    ],
)
def test_a_parameter_that_cannot_be_read_is_refused(desk: Desk, name: str, value: str) -> None:
    desk.parameter(name, value)

    assert_refused(desk.run(*NIGHTLY), f"/trainium/default/{name} in us-west-2 holds {value!r}")


def test_a_node_that_the_run_does_not_have_is_refused(desk: Desk) -> None:
    desk.submitted("nightly")

    result = desk.run("logs", "nightly", "--node", "2")

    assert_refused(result, "--node 2: the run has nodes 0 to 1")


def test_an_unknown_run_is_refused_with_the_nearest_one(desk: Desk) -> None:
    desk.submitted("nightly")

    assert_refused(desk.run("status", "nightli"), "no run 'nightli'", "did you mean 'nightly'?")


def test_missing_credentials_are_one_message(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    assert_refused(desk.run("list"), "no AWS credentials", "aws sso login", "AWS_PROFILE")


def test_half_credentials_are_one_message(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    assert_refused(desk.run("list"), "no AWS credentials", "partial credentials")


def test_an_unknown_profile_is_one_message(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    assert_refused(desk.run("list"), "profile (nobody) could not be found", "unset AWS_PROFILE")


def test_a_missing_region_is_one_message(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")

    assert_refused(desk.run("list"), "no AWS region is set", "--region us-west-2")


def test_a_region_that_cannot_be_one_is_one_message(desk: Desk) -> None:
    assert_refused(desk.run("--region", "the moon", "list"), "a region looks like us-west-2")


def test_an_address_where_nobody_answers_is_one_message(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")

    assert_refused(desk.run("list"), "AWS does not answer in us-west-2", "AWS_ENDPOINT_URL")


def test_a_refusal_is_a_document_with_json(desk: Desk) -> None:
    result = desk.run(*NIGHTLY, "--nodes", "8", "--json")

    assert json.loads(result.stdout)["refused"] == "too-many-nodes"
    assert result.exit_code == 2
