"""The storage stack: data that outlives the nodes."""

from __future__ import annotations

import pytest

from tests.stacks.cluster_objects import EKS
from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue import contract


def policies(made: Deployment) -> set[str]:
    (bucket,) = (
        resource
        for resource in made.templates["storage"]["Resources"].values()
        if resource["Type"] == "AWS::S3::Bucket"
    )
    return {bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]}


def test_destroy_keeps_the_bucket() -> None:
    assert policies(deployment()) == {"Retain"}


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({}, "BucketKeptByDestroy"),
        ({"bucket_name": "my-data"}, "BucketKeptByDestroy"),
        ({"retain_data": False}, "BucketEmptiedByDestroy"),
    ],
)
def test_deployment_output_states_effect_of_destroy(keys: dict[str, object], name: str) -> None:
    assert name in deployment(**keys).templates["storage"]["Outputs"]


def test_destroy_empties_and_deletes_bucket_if_configured() -> None:
    made = deployment(retain_data=False)

    assert policies(made) == {"Delete"}
    assert made.only("storage", "Custom::S3AutoDeleteObjects")["BucketName"] == {
        "Ref": "DataBucketE6B0FAA8"
    }


@pytest.mark.parametrize(("keys", "days"), [({"notify_email": "team@example.com"}, [1]), ({}, [])])
def test_noncurrent_cluster_snapshots_are_kept_for_a_day(
    keys: dict[str, object], days: list[int]
) -> None:
    bucket = deployment(**keys).only("storage", "AWS::S3::Bucket")

    assert [
        rule["NoncurrentVersionExpiration"]["NoncurrentDays"]
        for rule in bucket["LifecycleConfiguration"]["Rules"]
        if rule.get("Prefix") == contract.NOTIFICATIONS_PREFIX
    ] == days


def test_existing_bucket_is_used_unchanged() -> None:
    made = deployment(bucket_name="my-data")

    assert made.resources("storage", "AWS::S3::Bucket") == []
    assert made.only("storage", "AWS::SSM::Parameter")["Value"] == "my-data"


KEY = "arn:aws:kms:us-west-2:111122223333:key/1234abcd"
OWN_KEY = {"bucket_name": "my-data", "bucket_kms_key_arn": KEY}


def key_grants(made: Deployment, part: str) -> dict[str, set[str]]:
    """Collect each role's permissions on the key, by the policy's logical id."""
    found: dict[str, set[str]] = {}
    for logical_id, resource in made.templates[part]["Resources"].items():
        if resource["Type"] != "AWS::IAM::Policy":
            continue
        for statement in resource["Properties"]["PolicyDocument"]["Statement"]:
            if statement["Resource"] == KEY:
                assert "kms:ViaService" in str(statement["Condition"])
                actions = statement["Action"]
                found[logical_id] = {actions} if isinstance(actions, str) else set(actions)
    return found


@pytest.mark.parametrize("part", ["data", "batch", "eks"])
def test_every_job_may_use_the_key_of_an_existing_bucket_through_s3(part: str) -> None:
    made = deployment(**OWN_KEY, **{**EKS, "orchestrators": "both"})
    job_roles = [
        logical_id
        for logical_id in made.logical_ids(part, "AWS::IAM::Policy")
        if "JobRole" in logical_id or (part == "eks" and "s3:PutObject" in policy(made, logical_id))
    ]

    grants = key_grants(made, part)

    assert job_roles
    for name in job_roles:
        assert grants[name] == {"kms:Decrypt", "kms:GenerateDataKey"}


def policy(made: Deployment, logical_id: str) -> str:
    return str(made.templates["eks"]["Resources"][logical_id]["Properties"]["PolicyDocument"])


def test_no_key_permission_without_bucket_key() -> None:
    made = deployment(bucket_name="my-data")

    assert "kms:Decrypt" not in made.text("data") + made.text("batch")


def test_bucket_is_published() -> None:
    made = deployment(deployment="team-a")

    parameter = made.only("storage", "AWS::SSM::Parameter")

    assert (parameter["Name"], parameter["Value"]) == (
        "/trainium/team-a/bucket",
        {"Ref": "DataBucketE6B0FAA8"},
    )
