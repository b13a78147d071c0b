"""Refusals: one message with value, reason and remedy, exit code 2."""

from __future__ import annotations

import json
import socket

import pytest
from typer.testing import Result

from jobs.batch.request import MAX_PAYLOAD_BYTES, check_length
from jobs.errors import Refusal
from jobs.job import JobRequest
from tests.jobs.conftest import Cli
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
        # Models are not workloads.
        (("submit", "zzzz"), ["unknown workload 'zzzz'", "mnist, prepare, pretrain, tokenize"]),
        (
            (*NIGHTLY, "--set", "max-byte=1024"),
            ["all-reduce has no parameter 'max-byte'", "did you mean 'max-bytes'?"],
        ),
        ((*NIGHTLY, "--set", "max-bytes=1.5"), ["max-bytes=1.5 is not a whole number"]),
        ((*NIGHTLY, "--set", "max-bytes=1"), ["max-bytes=1 is too small; the minimum is 4"]),
        (
            ("submit", "all-reduce", "--name", "my run!"),
            ["'my run!' is not a valid run name", "letters, digits", "for example 'my-run'"],
        ),
        (("submit", "all-reduce", "--name", "-x"), ["starting with a letter or digit", "'x'"]),
        ((*NIGHTLY, "--nodes", "0"), ["--nodes 0 is too few", "needs at least 1", "--nodes 1"]),
        (
            (*NIGHTLY, "--nodes", "8"),
            [
                "--nodes 8 is more than the maximum of deployment 'default' (4)",
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
            ["--stop-grace-s 91 is too long on AWS Batch", "use 90 or less", "--on eks"],
        ),
        (("status", "nightly"), ["no run 'nightly' in deployment 'default' in us-west-2"]),
        (("logs", "nightly"), ["no run 'nightly'", "log group log-group"]),
        (("stop", "nightly"), ["no run 'nightly'", "7 days"]),
        (
            ("top", "nightly"),
            ["top needs a cluster", "for a run on Batch, see `python -m jobs status nightly`"],
        ),
        (("status",), ["no runs in deployment 'default'", "python -m jobs submit"]),
    ],
)
def test_invalid_argument_is_refused(
    cli: Cli, arguments: tuple[str, ...], fragments: list[str]
) -> None:
    assert_refused(cli.run(*arguments), *fragments)


def test_parameters_too_long_for_ecs_are_refused(cli: Cli) -> None:
    long = ["--set", f"max-bytes={'9' * 4200}", "--set", f"iterations={'9' * 4200}"]

    assert_refused(cli.run(*NIGHTLY, *long), "ECS accepts at most 8,192", "shorten their values")


def test_submission_too_long_for_batch_is_refused() -> None:
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

    with pytest.raises(Refusal, match="Batch accepts at most 30,720"):
        check_length(request)


def test_multi_node_job_on_type_without_efa_is_refused(cli: Cli) -> None:
    cli.parameter(contract.SSM_INSTANCE_TYPE, "trn1.2xlarge")

    result = cli.run(*NIGHTLY, "--nodes", "2")

    assert_refused(
        result,
        "--nodes 2 cannot run on trn1.2xlarge",
        "no EFA",
        "--nodes 1",
        "cdk deploy --all -c trainium:instance_type=trn1.32xlarge",
    )


def test_refusal_prints_complete_deploy_command(cli: Cli) -> None:
    settings = '{"bucket_name": "ours", "max_nodes": "4", "eks_admin_arns": "a, b"}'
    cli.parameter(contract.SSM_SETTINGS, settings)

    result = cli.run(*NIGHTLY, "--nodes", "8")

    line = (
        "cdk deploy --all -c trainium:instance_type=trn1.32xlarge -c trainium:region=us-west-2 "
        "-c trainium:bucket_name=ours -c trainium:max_nodes=8 -c 'trainium:eks_admin_arns=a, b'"
    )
    assert_refused(result, f"deploy again with `{line}`\n")


@pytest.mark.parametrize("kept", ["null", "not JSON"])
def test_refusal_says_if_settings_are_unknown(cli: Cli, kept: str) -> None:
    cli.parameter(contract.SSM_SETTINGS, kept)

    result = cli.run(*NIGHTLY, "--nodes", "8")

    assert_refused(result, "max_nodes=8` and the other -c settings it was deployed with\n")


def test_type_without_efa_runs_one_node(cli: Cli) -> None:
    cli.parameter(contract.SSM_INSTANCE_TYPE, "trn1.2xlarge")

    assert cli.run(*NIGHTLY, "--nodes", "1").exit_code == 0


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_node_job_without_terminal_needs_yes(cli: Cli, nodes: str) -> None:
    result = cli.run("submit", "all-reduce", "--nodes", nodes, "--name", "nightly")

    assert result.exit_code == 2
    assert (
        f"a job of {nodes} x trn1.32xlarge needs confirmation, but standard input" in result.stderr
    )
    assert "is not a terminal; add --yes" in result.stderr
    assert cli.jobs("nightly") == []


def test_missing_deployment_is_refused_with_deploy_command(cli: Cli) -> None:
    result = cli.run("--deployment", "defalt", *NIGHTLY)

    assert_refused(
        result,
        "no deployment 'defalt' in us-west-2",
        "/trainium/defalt/contract-version",
        "cdk deploy --all -c trainium:deployment=defalt",
        "did you mean 'default'?",
    )


def test_other_contract_version_is_refused(cli: Cli) -> None:
    cli.parameter(contract.SSM_CONTRACT_VERSION, "1")

    assert_refused(
        cli.run(*NIGHTLY), "has contract version 1, but this checkout has 3", "cdk deploy"
    )


@pytest.mark.parametrize(
    "name", [contract.SSM_JOB_QUEUE, contract.ssm_job_definition("all-reduce")]
)
def test_deployment_without_required_parameter_is_refused(cli: Cli, name: str) -> None:
    cli.client("ssm").delete_parameter(Name=contract.ssm_parameter("default", name))

    assert_refused(cli.run(*NIGHTLY), f"does not publish /trainium/default/{name}", "cdk deploy")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (contract.SSM_MAX_NODES, "many"),
        (contract.SSM_INSTANCE_TYPE, "trn9.large"),
        (contract.SSM_JOB_TIME_LIMIT_HOURS, "a day"),
    ],
)
def test_unreadable_parameter_is_refused(cli: Cli, name: str, value: str) -> None:
    cli.parameter(name, value)

    assert_refused(cli.run(*NIGHTLY), f"/trainium/default/{name} in us-west-2 is {value!r}")


def test_node_outside_run_is_refused(cli: Cli) -> None:
    cli.submitted("nightly")

    result = cli.run("logs", "nightly", "--node", "2")

    assert_refused(result, "--node 2: the run has nodes 0 to 1")


def test_unknown_run_is_refused_with_suggestion(cli: Cli) -> None:
    cli.submitted("nightly")

    assert_refused(cli.run("status", "nightli"), "no run 'nightli'", "did you mean 'nightly'?")


@pytest.mark.parametrize(
    ("removed", "fragments"),
    [
        (
            ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
            ("no AWS credentials", "aws sso login", "AWS_PROFILE"),
        ),
        (("AWS_SECRET_ACCESS_KEY",), ("no AWS credentials", "partial credentials")),
        (("AWS_REGION",), ("no AWS region is set", "--region us-west-2")),
    ],
)
def test_missing_setting_is_one_message(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    removed: tuple[str, ...],
    fragments: tuple[str, ...],
) -> None:
    for name in removed:
        monkeypatch.delenv(name)

    assert_refused(cli.run("list"), *fragments)


def test_unknown_profile_is_one_message(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    assert_refused(cli.run("list"), "profile (nobody) could not be found", "unset AWS_PROFILE")


def test_invalid_region_is_one_message(cli: Cli) -> None:
    assert_refused(cli.run("--region", "the moon", "list"), "specify a region such as us-west-2")


def test_unreachable_endpoint_is_one_message(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")

    assert_refused(cli.run("list"), "AWS did not respond in us-west-2", "AWS_ENDPOINT_URL")


def test_refusal_with_json_is_a_document(cli: Cli) -> None:
    result = cli.run(*NIGHTLY, "--nodes", "8", "--json")

    assert json.loads(result.stdout)["refused"] == "too-many-nodes"
    assert result.exit_code == 2
