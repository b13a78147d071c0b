"""The submitter policy: exactly the commands' calls, on the deployed resources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from cfnlint.data import AdditionalSpecs
from cfnlint.helpers import load_resource

from jobs import aws
from jobs.capacity import TRAINIUM
from tests.jobs.conftest import Cli
from tests.jobs.permissions import POLICY, action_of, allowed
from tests.stacks.cluster_objects import EKS
from tests.stacks.synthesis import Deployment, deployment
from tests.support.linting import findings_of
from trainium_catalogue import contract
from trainium_emulators.aws.permissions import allows, needed

# Not operations of a client, or not by this name.
BESIDE_CLIENTS = {
    "batch:TagResource": "SubmitJob carries tags (AWS Batch User Guide, tag resources)",
    "ssm:StartSession": "`jobs shell` runs the AWS CLI",
    "s3:AbortMultipartUpload": "boto3's transfers, when an upload is interrupted",
    "s3:PutObject": "boto3's transfers",
}
OF_WHO_DEPLOYS = {"CloudFormationClient"}
OF_FUNCTIONS = {"batch:CancelJob"}
"""Actions of the deployment's own functions (``notifier``), granted to their role."""
SERVICES = {
    "AutoScalingClient": "autoscaling",
    "SsmClient": "ssm",
    "ManagedInstancesClient": "ssm",
    "BatchClient": "batch",
    "S3Client": "s3",
    "LogsClient": "logs",
    "LogStreamsClient": "logs",
    "EksClient": "eks",
    "EcsClient": "ecs",
    "Ec2Client": "ec2",
    "EcrClient": "ecr",
    "KmsClient": "kms",
    "QuotasClient": "servicequotas",
}


def operations() -> set[str]:
    """Return the actions of all operations in the protocols of jobs/aws.py."""
    found: set[str] = set()
    for name, service in SERVICES.items():
        for method in vars(getattr(aws, name)):
            if not method.startswith("_"):
                words = method.replace("v2", "V2").split("_")
                found.add(action_of(service, "".join(word[0].upper() + word[1:] for word in words)))
    return found


def test_every_client_is_covered() -> None:
    assert {name for name in vars(aws) if name.endswith("Client")} == {
        *SERVICES,
        *OF_WHO_DEPLOYS,
    }


def test_policy_matches_calls_of_commands_exactly() -> None:
    assert allowed() == (operations() - OF_FUNCTIONS) | set(BESIDE_CLIENTS)


REGION, ACCOUNT = "us-west-2", "111122223333"
STACK_ID = "1a2b3c4d-5e6f-11ef-8000-0123456789ab"
RANDOM = "A1B2C3D4E5F6"
BUCKET = f"trainium-default-storage-bucket-{RANDOM.lower()}"


def arn(service: str, rest: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{rest}"


def filled_in(deployment_name: str = "default", bucket: str = BUCKET) -> dict[str, Any]:
    """Return the policy filled in with the names of a deployment, as documented."""
    text = POLICY.read_text(encoding="utf-8")
    names = {"REGION": REGION, "ACCOUNT": ACCOUNT, "DEPLOYMENT": deployment_name, "BUCKET": bucket}
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    policy: dict[str, Any] = json.loads(text)
    return policy


class Names:
    """Names that CloudFormation gives to the resources in the templates of a deployment.

    A resource without a name is called <stack>-<logical id>-<random> (CloudFormation template
    reference, name type).
    """

    def __init__(self, made: Deployment) -> None:
        self._made = made
        self._exports = {
            output["Export"]["Name"]: (part, output["Value"])
            for part, template in made.templates.items()
            for output in template.get("Outputs", {}).values()
            if "Export" in output
        }

    def published(self) -> dict[str, str]:
        """Return every parameter of the deployment with its value."""
        return {
            properties["Name"]: self._text(part, properties["Value"])
            for part in self._made.templates
            for properties in self._made.resources(part, "AWS::SSM::Parameter")
            if properties.get("Name", "").startswith("/trainium/")
        }

    def _text(self, part: str, value: Any) -> str:
        match value:
            case str():
                return value
            case {"Fn::Join": [str(separator), list(parts)]}:
                return separator.join(self._text(part, each) for each in parts)
            case {"Fn::Select": [int(index), {"Fn::Split": [str(separator), whole]}]}:
                return self._text(part, whole).split(separator)[index]
            case {"Fn::ImportValue": str(name)}:
                return self._text(*self._exports[name])
            case {"Ref": "AWS::StackId"}:
                return arn(
                    "cloudformation", f"stack/{self._made.config.stack_name(part)}/{STACK_ID}"
                )
            case {"Ref": "AWS::Region"}:
                return REGION
            case {"Ref": str(name)}:
                return self._named(part, name)
            case {"Fn::GetAtt": [str(name), "NodegroupName"]}:
                return self._named(part, name)
            case _:
                # Not part of a name in the policy: an image, a VPC's id.
                return "x"

    def _named(self, part: str, logical_id: str) -> str:
        resource = self._made.templates[part]["Resources"].get(logical_id, {"Type": "parameter"})
        kind, properties = resource["Type"], resource.get("Properties", {})
        own = f"{self._made.config.stack_name(part)}-{logical_id}-{RANDOM}"
        match kind:
            case "AWS::EKS::Cluster":
                return self._text(part, properties["Name"])
            case "AWS::S3::Bucket":
                return BUCKET
            case "AWS::Batch::JobQueue":
                return arn("batch", f"job-queue/{logical_id}-{RANDOM}")
            case "AWS::Batch::JobDefinition":
                return arn("batch", f"job-definition/{logical_id}-{RANDOM}:1")
            case _:
                return own


@pytest.fixture(scope="module")
def published() -> dict[str, str]:
    """Parameters of a deployment with both orchestrators."""
    return Names(deployment(**{**EKS, "orchestrators": "both"})).published()


def of(published: dict[str, str], name: str) -> str:
    return published[contract.ssm_parameter("default", name)]


def requests(published: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the commands' requests to a deployment: action and parameters."""
    cluster = of(published, contract.SSM_EKS_CLUSTER)
    yield "ssm:GetParameters", {"Names": list(published)}
    for path in (contract.ssm_parameter("default", "").rstrip("/"), "/trainium"):
        yield "ssm:GetParametersByPath", {"Path": path}
    queues = [of(published, name) for name in (contract.SSM_JOB_QUEUE, contract.SSM_CPU_JOB_QUEUE)]
    definitions = [value for value in published.values() if ":job-definition/" in value]
    assert definitions
    for queue, definition in zip(queues * len(definitions), definitions, strict=False):
        tags = {"a": "b"}
        asked = {"jobQueue": queue, "jobDefinition": definition, "tags": tags}
        yield "batch:SubmitJob", asked
    yield "batch:TerminateJob", {"jobId": "1a2b#0"}
    log_group = of(published, contract.SSM_LOG_GROUP)
    yield "logs:DescribeLogStreams", {"logGroupName": log_group}
    yield "logs:GetLogEvents", {"logGroupName": log_group, "logStreamName": "run/default/1a2b"}
    yield "eks:DescribeCluster", {"name": cluster}
    group = of(published, contract.SSM_EKS_NODE_GROUP)
    yield "eks:DescribeNodegroup", {"clusterName": cluster, "nodegroupName": group}
    yield "servicequotas:GetServiceQuota", {"ServiceCode": "ec2", "QuotaCode": TRAINIUM.code}
    yield "ecr:BatchGetImage", {"repositoryName": "trainium-default"}
    yield "kms:DescribeKey", {"KeyId": arn("kms", "key/1234abcd-12ab-34cd-56ef-1234567890ab")}
    yield "ec2:GetConsoleOutput", {"InstanceId": "i-0123456789abcdef0"}
    instances = {"cluster": "AWSBatch-1", "containerInstances": ["1a2b"]}
    yield "ecs:DescribeContainerInstances", instances


def needs(published: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield action and resource of each request."""
    for action, params in requests(published):
        for each, resource in needed(action, params, arn):
            yield each, resource
    # S3's resources come from moto, and `jobs shell` runs the AWS CLI.
    bucket = of(published, contract.SSM_BUCKET)
    yield "s3:ListBucket", f"arn:aws:s3:::{bucket}"
    for action in ("GetObject", "PutObject", "AbortMultipartUpload"):
        yield f"s3:{action}", f"arn:aws:s3:::{bucket}/runs/run/manifest.json"
    for resource in (
        arn("ec2", "instance/i-0123456789abcdef0"),
        f"arn:aws:ssm:{REGION}::document/AWS-StartInteractiveCommand",
        arn("ssm", "document/SSM-SessionManagerRunShell"),
    ):
        yield "ssm:StartSession", resource


def test_policy_names_match_deployed_resources(published: dict[str, str]) -> None:
    refused = [each for each in needs(published) if not allows([filled_in()], *each)]

    assert refused == []


def test_every_policy_resource_is_deployed(
    published: dict[str, str],
) -> None:
    policy = filled_in()
    for statement in policy["Statement"]:
        listed = statement["Resource"]
        for resource in [listed] if isinstance(listed, str) else listed:
            if resource == "*":
                continue
            alone = {"Statement": [{**statement, "Resource": resource}]}

            assert any(allows([alone], *each) for each in needs(published)), resource


def test_other_deployment_is_reachable_only_by_generated_names(
    published: dict[str, str],
) -> None:
    others = filled_in("other", "bucket-of-others")
    reached = {each[0].partition(":")[0] for each in needs(published) if allows([others], *each)}

    # Batch's names and the ids of hosts and keys do not contain the stack's name, every deployment
    # can be listed, and quotas belong to the account.
    assert reached == {"batch", "ec2", "ecs", "kms", "servicequotas", "ssm"}


def test_deployment_with_name_prefix_of_another_is_not_reachable() -> None:
    cluster = "trainium-default-eks-more-eks-1a2b3c4d"

    assert not allows([filled_in()], "eks:DescribeCluster", arn("eks", f"cluster/{cluster}"))


def resource_types(action: str) -> list[list[str]]:
    """Return the ARN formats of each resource type of an action.

    From cfn-lint's copy of the Service Authorization Reference.
    """
    service, _, name = action.partition(":")
    known = load_resource(AdditionalSpecs, "Policies.json")[service]
    taken = known["Actions"][name.lower()].get("Resources", [])
    return [known["Resources"][each.lower()]["ARNFormats"] for each in taken]


def test_actions_accept_resource_types_used_by_emulator(published: dict[str, str]) -> None:
    asked = [(action, resource) for action, resource in needs(published)]
    asked += [(action, "*") for action in allowed() - {action for action, _ in asked}]
    for action, resource in asked:
        formats = resource_types(action)
        # Like arn:${Partition}:eks:${Region}:${Account}:cluster/.*
        patterns = [re.sub(r"\$\{\w+\}", "[a-z0-9-]*", one) for each in formats for one in each]

        if resource == "*":
            assert formats == [], action
        else:
            assert any(re.fullmatch(one, resource) for one in patterns), (action, resource)


def test_policy_passes_cfn_lint() -> None:
    policy = {"Type": "AWS::IAM::ManagedPolicy", "Properties": {"PolicyDocument": filled_in()}}
    template = json.dumps({"Resources": {"Submitter": policy}})

    assert [str(each) for each in findings_of(template, REGION)] == []


def test_call_not_in_policy_is_detected(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.jobs import permissions

    with monkeypatch.context() as patch:
        patch.setattr(permissions, "allowed", lambda: allowed() - {"batch:ListJobs"})
        watched = permissions.calls_are_allowed(patch)
        next(watched)
        cli.run("list")

        with pytest.raises(AssertionError, match="does not allow batch:ListJobs: add it there"):
            next(watched)
