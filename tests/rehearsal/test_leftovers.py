"""Leftovers, and the completeness of the inventory."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.deployment.aws import EmulatedAccount, client_environment
from rehearsal.deployment.server import server_command, start_server
from rehearsal.deployment.state import RehearsalFolder
from rehearsal.proofs import leftovers
from rehearsal.proofs.leftovers import AccountResource, ExpectedResource, compare, take_inventory
from trainium_emulators.docker_cli import manifest

REGION = "us-west-2"
TRUST = "{}"
MANIFEST = json.dumps(manifest({}))


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAccount]:
    """The account of this module's own server; tests only add to it."""
    folder = RehearsalFolder(tmp_path_factory.mktemp("server"))
    server = start_server(
        server_command(processes_per_node=1, addresses="127.0.0"),
        folder=folder,
        environment=client_environment(
            {}, aws=None, docker=folder.docker, bin_folder=Path(sys.executable).parent
        ),
        on_event=lambda event: None,
    )
    try:
        yield EmulatedAccount(endpoint=server.wait_ready(folder), region=REGION)
    finally:
        server.stop()


def _vpc(aws: EmulatedAccount) -> str:
    return str(aws.client("ec2").create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"])


def _bucket(aws: EmulatedAccount) -> str:
    aws.client("s3").create_bucket(
        Bucket="data", CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    return "data"


def _image(aws: EmulatedAccount) -> str:
    aws.client("ecr").create_repository(repositoryName="images")
    aws.client("ecr").put_image(repositoryName="images", imageTag="1", imageManifest=MANIFEST)
    return "images:1"


def _role(aws: EmulatedAccount) -> str:
    aws.client("iam").create_role(RoleName="role", AssumeRolePolicyDocument=TRUST)
    return "role"


def _log_group(aws: EmulatedAccount) -> str:
    aws.client("logs").create_log_group(logGroupName="jobs")
    return "jobs"


def _parameter(aws: EmulatedAccount) -> str:
    aws.client("ssm").put_parameter(Name="/trainium/a/region", Value="x", Type="String")
    return "/trainium/a/region"


def _address(aws: EmulatedAccount) -> str:
    return str(aws.client("ec2").allocate_address(Domain="vpc")["AllocationId"])


def _tagged_bucket(aws: EmulatedAccount) -> str:
    aws.client("s3").create_bucket(
        Bucket="tagged", CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    aws.client("s3").put_bucket_tagging(
        Bucket="tagged", Tagging={"TagSet": [{"Key": "trainium:deployment", "Value": "default"}]}
    )
    return "arn:aws:s3:::tagged"


def test_undeleted_resources_are_leftovers_but_preexisting_ones_are_not(
    aws: EmulatedAccount,
) -> None:
    creators = (_vpc, _bucket, _image, _role, _log_group, _parameter, _address, _tagged_bucket)
    before = take_inventory(aws)
    forgotten = {create(aws) for create in creators}

    _, found = compare(before=before, after=take_inventory(aws), toolkit=())

    assert before  # the default VPC, at least
    assert forgotten <= {item.id for item in found}
    assert not before & set(found)


def test_bootstrap_resources_are_expected() -> None:
    role = AccountResource("iam", "role", "cdk-hnb659fds-deploy-role")

    (expected,), left = compare(before=(), after=[role], toolkit=[role.id])

    assert (expected, left) == (
        ExpectedResource(role.service, role.kind, role.id, expected.why),
        [],
    )


def test_image_in_bootstrap_repository_is_leftover() -> None:
    image = AccountResource("ecr", "image", "assets:1")

    assert compare(before=(), after=[image], toolkit=["assets", "assets:1"]) == ([], [image])


def test_service_linked_role_of_batch_is_expected() -> None:
    role = AccountResource("iam", "service-linked role", "AWSServiceRoleForBatch")

    (expected,), left = compare(before=(), after=[role], toolkit=())

    assert "service-linked" in expected.why
    assert left == []


def test_every_listing_uses_existing_operation(aws: EmulatedAccount) -> None:
    for listing in leftovers.LISTINGS:
        assert inspect.ismethod(getattr(aws.client(listing.service), listing.operation))
