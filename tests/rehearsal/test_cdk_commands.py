"""The commands of the CDK CLI, and the environment that keeps them off a real account."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from rehearsal.deployment import cdk
from rehearsal.deployment.aws import EmulatedAccount, client_environment
from rehearsal.deployment.state import Settings
from rehearsal.steps.jobs import parameters

CDK = Path("/venv/bin/cdk")
SETTINGS = Settings(
    nodes=4,
    processes_per_node=1,
    instance_type="trn1.32xlarge",
    processes_of={"llama-tiny": 2},
    workloads=("all-reduce",),
    faults=(),
    parameters=("max-bytes=4096",),
    containers=False,
    addresses="127.0.0",
)


def environment(**base: str) -> dict[str, str]:
    aws = EmulatedAccount(endpoint="http://localhost:1", region="us-west-2")
    return client_environment(base, aws=aws, docker=Path("/d"), bin_folder=Path("/venv/bin"))


def write_manifest(folder: Path, **environments: str) -> None:
    artifacts = {
        name: {"type": "aws:cloudformation:stack", "environment": place}
        for name, place in environments.items()
    }
    artifacts["Tree"] = {"type": "cdk:tree", "environment": ""}
    (folder / "manifest.json").write_text(json.dumps({"artifacts": artifacts}))


@pytest.mark.parametrize(
    "name", ["AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "TRAINIUM_DEPLOYMENT"]
)
def test_user_aws_settings_are_not_passed_to_tools(name: str) -> None:
    assert name not in environment(**{name: "theirs"})


def test_users_credentials_are_replaced() -> None:
    assert environment(AWS_SECRET_ACCESS_KEY="theirs")["AWS_SECRET_ACCESS_KEY"] == "rehearsal"


def test_local_server_bypasses_proxy() -> None:
    assert "localhost" in environment(HTTP_PROXY="http://proxy")["NO_PROXY"]


def test_rehearsal_context_differs_only_in_notifications_and_bucket() -> None:
    assert cdk.context(SETTINGS) == {
        "trainium:orchestrators": "batch",
        "trainium:deployment": "default",
        "trainium:instance_type": "trn1.32xlarge",
        "trainium:neuron_release": "2.28.0",
        "trainium:max_nodes": "4",
        "trainium:retain_data": "false",
        "trainium:notify_email": "rehearsal@example.com",
    }


def test_cluster_gets_administrator_and_unused_addresses() -> None:
    context = cdk.context(replace(SETTINGS, orchestrators=("batch", "eks")))

    assert context["trainium:orchestrators"] == "batch,eks"
    assert context["trainium:eks_admin_arns"].startswith("arn:aws:iam::123456789012:")
    assert ip_network(context["trainium:eks_endpoint_cidrs"]).is_private


def test_deploy_does_not_use_change_sets() -> None:
    assert "--method=direct" in cdk.deploy_command(CDK, assembly=Path("out"))


def test_bootstrap_leaves_user_cdk_out_unchanged() -> None:
    words = cdk.bootstrap_command(CDK, assembly=Path("out"), region="us-west-2")

    assert words[words.index("--app") + 1] == "out"


def test_region_comes_from_the_stacks(tmp_path: Path) -> None:
    write_manifest(tmp_path, network="aws://unknown-account/us-east-2")

    assert cdk.read_assembly(tmp_path) == cdk.CloudAssembly("us-east-2", ("network",))


def test_stacks_in_two_regions_are_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, a="aws://unknown-account/us-east-2", b="aws://unknown-account/eu-x-1")

    with pytest.raises(cdk.StepFailed, match="2 regions"):
        cdk.read_assembly(tmp_path)


def test_failing_command_is_reported_with_last_output(tmp_path: Path) -> None:
    with pytest.raises(cdk.StepFailed, match=r"sh -c exited with 3.*\n  the reason"):
        cdk.run(
            ("/bin/sh", "-c", "echo the reason; exit 3"),
            log=tmp_path / "log",
            environment={},
            on_line=lambda line: None,
        )


def test_output_is_kept_in_the_log(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "log"

    cdk.run(("/bin/echo", "hello"), log=log, environment={}, on_line=lines.append)

    assert (lines, log.read_text()) == (["hello"], "hello\n")


def test_user_parameters_override_those_of_rehearsal() -> None:
    assert "max-bytes=4096" in parameters(SETTINGS, None)
    assert "max-bytes=4096" in parameters(SETTINGS, "kill-child")


def test_injected_error_is_a_parameter_of_the_workload() -> None:
    assert "inject-error-rank=1" in parameters(SETTINGS, "error-in-workload")
