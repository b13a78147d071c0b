"""The commands of the CDK CLI, and the environment that keeps them off a real account."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rehearsal.deployment import cdk
from rehearsal.deployment.aws import EmulatedAccount, client_environment
from rehearsal.steps.jobs import parameters
from tests.rehearsal.rehearsals import settings


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


def test_user_aws_settings_are_not_passed_to_tools() -> None:
    theirs = ("AWS_PROFILE", "AWS_SECRET_ACCESS_KEY", "TRAINIUM_DEPLOYMENT", "HTTP_PROXY")
    passed = environment(**dict.fromkeys(theirs, "theirs"))

    assert [name for name, value in passed.items() if value == "theirs"] == ["HTTP_PROXY"]
    assert "localhost" in passed["NO_PROXY"]


def test_region_comes_from_the_stacks(tmp_path: Path) -> None:
    write_manifest(tmp_path, network="aws://unknown-account/us-east-2")

    assert cdk.read_assembly(tmp_path) == cdk.CloudAssembly("us-east-2", ("network",))


def test_stacks_in_two_regions_are_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, a="aws://unknown-account/us-east-2", b="aws://unknown-account/eu-x-1")

    with pytest.raises(cdk.StepFailed, match="2 regions"):
        cdk.read_assembly(tmp_path)


def test_failing_command_is_reported_with_last_output(tmp_path: Path) -> None:
    lines: list[str] = []

    with pytest.raises(cdk.StepFailed, match=r"sh -c exited with 3.*\n  the reason"):
        cdk.run(
            ("/bin/sh", "-c", "echo the reason; exit 3"),
            log=tmp_path / "log",
            environment={},
            on_line=lines.append,
        )

    assert (lines, (tmp_path / "log").read_text()) == (["the reason"], "the reason\n")


def test_parameters_of_user_and_fault_override_those_of_rehearsal() -> None:
    found = parameters(settings(parameters=("max-bytes=4096",)), "error-in-workload")

    assert {"max-bytes=4096", "inject-error-rank=1"} <= set(found)
