"""`jobs doctor` reports each planted obstacle first, and none in a healthy deployment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError
from moto.batch.models import JobDefinition, batch_backends
from moto.core.exceptions import AccessDeniedError
from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response
from moto.eks.models import EKSBackend
from moto.iam.responses import IamResponse

from jobs.capacity import TRAINIUM
from tests.jobs.conftest import ACCOUNT, REGION, Cli
from tests.jobs.diagnosis.plantings import NO_CAPACITY
from tests.jobs.diagnosis.test_diagnosis import TOOLS
from tests.jobs.diagnosis.world import BLOCK, _amend, answer
from tests.jobs.eks.conftest import EKS_PARAMETERS, EksCli
from tests.jobs.permissions import POLICY
from tests.jobs.test_default_group import strip
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_catalogue.contract import ENV_NEURON_RELEASE
from trainium_catalogue.kubernetes import SCALER
from trainium_catalogue.releases import NEURON_RELEASES
from trainium_catalogue.zones import INTERFACE_ENDPOINTS
from trainium_emulators.aws import quotas
from trainium_emulators.aws.cloudformation.batch import describe_with_nodes
from trainium_emulators.aws.host_images import IMAGE_IDS
from trainium_emulators.kubernetes.resources import DEPLOYMENT

IMAGE = EKS_PARAMETERS[contract.SSM_EKS_IMAGE]
HOST_IMAGE = IMAGE_IDS[NEURON_RELEASES["2.28.0"].ecs_ami_name]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OFFERED, NOT_OFFERED = "usw2-az4", "usw2-az2"
Json = dict[str, Any]
Patch = pytest.MonkeyPatch


@dataclass(slots=True)
class Place:
    """A healthy deployment, until an obstacle is planted."""

    cli: Cli
    patch: Patch
    eks: EksCli | None = None

    @property
    def ec2(self) -> Any:
        return ec2_backends[ACCOUNT][REGION]

    def settings(self, **settings: str) -> None:
        self.cli.parameter(contract.SSM_SETTINGS, json.dumps(settings))

    def subnets(self, *, zone: str = OFFERED, free: int = 4000) -> None:
        subnet = {"SubnetId": "subnet-1", "AvailabilityZoneId": zone}
        found = {"Subnets": [{**subnet, "AvailableIpAddressCount": free}]}
        answer(self.patch, EC2Response, "describe_subnets", found)

    def environment(self, **changes: Any) -> None:
        _amend(self.patch, "describe_compute_environments", changes)

    def containers(self, **changes: Any) -> None:
        """Change the container of every multi-node job definition."""
        for definition in batch_backends[ACCOUNT][REGION]._job_definitions.values():
            if definition.node_properties is not None:
                definition.node_properties["nodeRangeProperties"][0]["container"] |= changes

    def reservation(self, name: str, **found: Any) -> None:
        self.settings(**{name: BLOCK})
        found = {"CapacityReservationId": BLOCK, "State": "active", **found}
        reservations = {"CapacityReservations": [found]}
        answer(self.patch, EC2Response, "describe_capacity_reservations", reservations)

    def doctor(self, *words: str) -> tuple[int, Json]:
        result = self.cli.run("doctor", *words, "--json")
        assert result.exit_code in (0, 1), result.output
        document: Json = json.loads(result.stdout)
        conforms("jobs-doctor", document)
        return result.exit_code, document


@pytest.fixture
def place(cli: Cli, monkeypatch: Patch) -> Place:
    """Complete the usual deployment with resources that only these tests need."""
    place = Place(cli, monkeypatch)
    place.settings()
    place.subnets()
    resources = {
        "maxvCpus": 512,
        "subnets": ["subnet-1"],
        "ec2Configuration": [{"imageType": "ECS_AL2023", "imageIdOverride": HOST_IMAGE}],
    }
    place.environment(computeResources=resources)
    vpc = place.ec2.get_default_vpc().id
    for name in INTERFACE_ENDPOINTS:
        service = f"com.amazonaws.{REGION}.{name}"
        place.ec2.create_vpc_endpoint(vpc, service, "Interface", None, [])
    ecr = cli.client("ecr")
    ecr.create_repository(repositoryName="training")
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST})
    ecr.put_image(repositoryName="training", imageTag="1", imageManifest=manifest)
    monkeypatch.setattr(JobDefinition, "describe", describe_with_nodes)
    place.containers(image=IMAGE)
    return place


@pytest.fixture
def cluster_place(place: Place, eks: EksCli) -> Place:
    """The same deployment with a cluster of two of at most four nodes, and its node scaler."""
    group = eks.node_group()
    group.subnets = ["subnet-1"]
    group.release_version = f"1.35.0-{NEURON_RELEASES['2.28.0'].eks_ami_date}"
    eks.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SCALER}})
    place.eks = eks
    _node_scaler(place, ready=1)
    return place


def _node_scaler(place: Place, *, ready: int | None) -> None:
    assert place.eks is not None
    store = place.eks.cluster.store
    if store.find(DEPLOYMENT, SCALER, SCALER) is not None:
        store.remove(DEPLOYMENT, SCALER, SCALER)
    if ready is not None:
        metadata = {"name": SCALER, "namespace": SCALER}
        made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
        store.create(DEPLOYMENT, SCALER, {**made, "spec": {}, "status": {"readyReplicas": ready}})


# --- healthy -------------------------------------------------------------------------------------
@pytest.mark.parametrize("words", [(), ("all-reduce", "--nodes", "2")])
def test_healthy_deployment_has_no_obstacle(place: Place, words: tuple[str, ...]) -> None:
    code, document = place.doctor(*words)

    assert document["obstacles"] == []
    assert document["unread"] == []
    assert len(document["passed"]) > 10
    assert code == 0


@pytest.mark.parametrize("words", [(), ("all-reduce", "--nodes", "2", "--on", "eks")])
def test_healthy_cluster_has_no_obstacle(cluster_place: Place, words: tuple[str, ...]) -> None:
    code, document = cluster_place.doctor(*words)

    assert document["obstacles"] == []
    assert document["unread"] == []
    assert "eks" in document["orchestrators"]
    assert code == 0


# --- each obstacle -------------------------------------------------------------------------------
def _small_quota(place: Place) -> None:
    place.patch.setitem(quotas.VALUES, TRAINIUM.code, 128.0)


def _no_image(place: Place) -> None:
    ids = [{"imageTag": "1"}]
    place.cli.client("ecr").batch_delete_image(repositoryName="training", imageIds=ids)


def _no_host_image(place: Place) -> None:
    del place.ec2.amis[HOST_IMAGE]


def _other_host_image(place: Place) -> None:
    place.ec2.amis[HOST_IMAGE].name = "al2023-ami-ecs-neuron-of-another-day"


def _disabled_key(place: Place) -> None:
    kms = place.cli.client("kms")
    key = kms.create_key()["KeyMetadata"]
    kms.disable_key(KeyId=key["KeyId"])
    place.settings(bucket_kms_key_arn=key["Arn"])


def _no_endpoint(place: Place) -> None:
    endpoints = place.ec2.vpc_end_points
    (name,) = (n for n, each in endpoints.items() if each.service_name.endswith("ecr.dkr"))
    del endpoints[name]


def _no_endpoint_and_no_gateway(place: Place) -> None:
    _no_endpoint(place)
    place.settings(nat_gateways="0")


def _rejected_endpoint(place: Place) -> None:
    next(iter(place.ec2.vpc_end_points.values())).state = "rejected"


def _as_user(place: Place, *, without: str) -> None:
    """Act as a user whose policy lacks an action."""
    statements = json.loads(POLICY.read_text())["Statement"]
    actions = [action for each in statements for action in _listed(each["Action"])]
    allowed = [action for action in actions if action != without]
    statement = {"Effect": "Allow", "Action": allowed, "Resource": "*"}
    iam = place.cli.client("iam")
    iam.create_user(UserName="me")
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_user_policy(UserName="me", PolicyName="jobs", PolicyDocument=document)
    key = iam.create_access_key(UserName="me")["AccessKey"]
    place.patch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    place.patch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


INVALID = "CLIENT_ERROR - You are not authorized to use the requested resource"
BATCH: tuple[tuple[str, str, str, Callable[[Place], object]], ...] = (
    ("quota-too-small", "stops", "is 128 vCPUs; the job needs 512", _small_quota),
    (
        "not-offered-here",
        "stops",
        "is in usw2-az2; trn1.32xlarge is offered in",
        lambda place: place.subnets(zone=NOT_OFFERED),
    ),
    (
        "no-addresses",
        "stops",
        "3 free; the job's missing nodes need 36",
        lambda place: place.subnets(free=3),
    ),
    (
        "default-group-closed",
        "stops",
        "does not allow inbound and outbound traffic among its members",
        lambda place: strip(place.cli),
    ),
    (
        "not-the-default-group",
        "stops",
        "=sg-0 is not the default security group",
        lambda place: place.cli.parameter(contract.SSM_DEFAULT_SECURITY_GROUP, "sg-0"),
    ),
    (
        "environment-disabled",
        "stops",
        INVALID,
        lambda place: place.environment(status="INVALID", statusReason=INVALID),
    ),
    (
        "queue-disabled",
        "stops",
        "DISABLED and VALID",
        lambda place: _amend(place.patch, "describe_job_queues", {"state": "DISABLED"}),
    ),
    (
        "reservation-too-small",
        "stops",
        "has only 2 instances; the job needs 4",
        lambda place: place.reservation("capacity_reservation_id", TotalInstanceCount=2),
    ),
    (
        "reservation-full",
        "will wait",
        "1 of 4 instances free",
        lambda place: place.reservation(
            "capacity_reservation_id", TotalInstanceCount=4, AvailableInstanceCount=1
        ),
    ),
    ("image-missing", "stops", f"{IMAGE} does not exist", _no_image),
    (
        "image-of-another-release",
        "stops",
        "is for Neuron 2.29.0, but the deployment uses 2.28.0",
        lambda place: place.containers(
            environment=[{"name": ENV_NEURON_RELEASE, "value": "2.29.0"}]
        ),
    ),
    ("image-of-hosts-missing", "stops", f"{HOST_IMAGE} does not exist", _no_host_image),
    ("host-image-of-another-release", "warning", "neuron-of-another-day", _other_host_image),
    (
        "bucket-missing",
        "stops",
        "bucket bucket does not exist",
        lambda place: place.cli.client("s3").delete_bucket(Bucket="bucket"),
    ),
    ("bucket-key", "stops", "is Disabled", _disabled_key),
    ("endpoint-missing", "warning", "ecr.dkr missing in vpc-", _no_endpoint),
    ("endpoint-unusable", "stops", "ecr.dkr missing in vpc-", _no_endpoint_and_no_gateway),
    ("endpoint-unusable", "stops", "is rejected", _rejected_endpoint),
    (
        "permission-denied",
        "stops",
        "not permitted to submit: batch:SubmitJob",
        lambda place: _as_user(place, without="batch:SubmitJob"),
    ),
    (
        "read-permission-denied",
        "warning",
        "not permitted to read: ssm:StartSession",
        lambda place: _as_user(place, without="ssm:StartSession"),
    ),
)


@pytest.mark.parametrize(
    ("cause", "severity", "evidence", "plant"),
    BATCH,
    ids=[f"{number}-{each[0]}" for number, each in enumerate(BATCH)],
)
def test_planted_obstacle_comes_first_with_evidence_and_remedy(
    place: Place, cause: str, severity: str, evidence: str, plant: Callable[[Place], object]
) -> None:
    plant(place)
    code, document = place.doctor()

    _is_first(document, cause, severity, evidence)
    assert document["unread"] == [] or "Capacity Block" in document["unread"][0]
    assert code == (1 if severity == "stops" else 0)


def _is_first(document: Json, cause: str, severity: str, evidence: str) -> None:
    first = document["obstacles"][0]
    assert (first["cause"], first["severity"]) == (cause, severity), json.dumps(document, indent=2)
    assert evidence in first["evidence"][0]["text"]
    for each in document["obstacles"]:
        assert each["remedy"].startswith(TOOLS)
        assert "{" not in each["remedy"] and shlex.split(each["remedy"])
        assert "None" not in each["remedy"]


def _group(place: Place, status: str, *issues: Json) -> None:
    """Make EKS describe the node group like this."""
    known = EKSBackend.describe_nodegroup

    def described(*arguments: Any, **options: Any) -> Any:
        group = known(*arguments, **options)
        group.status, group.health = status, {"issues": list(issues)}
        return group

    place.patch.setattr(EKSBackend, "describe_nodegroup", described)


def _degraded_group(place: Place) -> None:
    issue = {"code": "Ec2SubnetNotFound", "message": "subnet-1 is gone", "resourceIds": []}
    _group(place, "DEGRADED", issue)


def _failed_cluster(place: Place) -> None:
    assert place.eks is not None
    place.patch.setattr(place.eks.moto_cluster(), "status", "FAILED")


CLUSTER: tuple[tuple[str, str, str, Callable[[Place], object]], ...] = (
    (
        "node-group-failed",
        "stops",
        "the node group is CREATE_FAILED",
        lambda place: _group(place, "CREATE_FAILED"),
    ),
    ("deployment-changed", "stops", "Ec2SubnetNotFound: subnet-1 is gone", _degraded_group),
    ("cluster-not-active", "stops", "cluster is FAILED", _failed_cluster),
    (
        "node-scaler-down",
        "stops",
        "is not in the cluster",
        lambda place: _node_scaler(place, ready=None),
    ),
    ("node-scaler-down", "stops", "has no ready pod", lambda place: _node_scaler(place, ready=0)),
    ("image-missing", "stops", f"{IMAGE} does not exist", _no_image),
)


@pytest.mark.parametrize(
    ("cause", "severity", "evidence", "plant"),
    CLUSTER,
    ids=[f"{number}-{each[0]}" for number, each in enumerate(CLUSTER)],
)
def test_planted_cluster_obstacle_comes_first(
    cluster_place: Place, cause: str, severity: str, evidence: str, plant: Callable[[Place], object]
) -> None:
    cluster_place.cli.parameter(contract.SSM_ORCHESTRATORS, "eks")
    plant(cluster_place)
    code, document = cluster_place.doctor()

    _is_first(document, cause, severity, evidence)
    assert document["orchestrators"] == ["eks", "batch"]
    assert code == 1


def test_permission_of_data_jobs_stops_cluster_deployment(
    cluster_place: Place,
) -> None:
    cluster_place.cli.parameter(contract.SSM_ORCHESTRATORS, "eks")
    _as_user(cluster_place, without="batch:SubmitJob")
    code, document = cluster_place.doctor()

    (denied,) = (o for o in document["obstacles"] if o["cause"] == "permission-denied")
    assert denied["evidence"][0]["text"] == "not permitted to submit: batch:SubmitJob"
    assert code == 1


def test_image_is_looked_up_in_its_own_region(place: Place) -> None:
    ecr = boto3.client("ecr", region_name="us-east-1")
    ecr.create_repository(repositoryName="elsewhere")
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST})
    ecr.put_image(repositoryName="elsewhere", imageTag="1", imageManifest=manifest)
    uri = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/elsewhere:1"
    place.containers(image=uri)
    _, document = place.doctor()

    assert document["obstacles"] == []
    assert f"{uri} exists" in [fact["text"] for fact in document["passed"]]


def test_unused_endpoint_is_ignored(place: Place) -> None:
    vpc, service = place.ec2.get_default_vpc().id, f"com.amazonaws.{REGION}.sagemaker.api"
    place.ec2.create_vpc_endpoint(vpc, service, "Interface", None, []).state = "pendingAcceptance"
    _, document = place.doctor()

    assert document["obstacles"] == []


# --- a run ---------------------------------------------------------------------------------------
def test_block_ending_before_time_limit_is_a_warning(place: Place) -> None:
    ends = datetime.now(UTC) + timedelta(hours=2)
    place.reservation(
        "capacity_block_id", TotalInstanceCount=4, AvailableInstanceCount=4, EndDate=ends
    )
    words = ("all-reduce", "--nodes", "2", "--time-limit")
    _, document = place.doctor(*words, "3")
    code, shorter = place.doctor(*words, "1")

    _is_first(document, "reservation-ends-early", "warning", "before the time limit of 3 h")
    assert shorter["obstacles"] == []
    assert code == 0
    unread = "quota: AWS does not document whether a Capacity Block counts toward it"
    assert shorter["unread"] == [unread]


def test_refusal_of_submit_is_an_obstacle_with_its_remedy(place: Place) -> None:
    code, document = place.doctor("bert", "--nodes", "2", "--dataset", "nothing")
    submitted = place.cli.run("submit", "bert", "--nodes", "2", "--dataset", "nothing", "--json")

    message = json.loads(submitted.stdout)["message"]
    _is_first(document, "submission-refused", "stops", message)
    assert document["obstacles"][0]["remedy"] in message
    assert code == 1


def test_resumed_run_is_checked_by_name(place: Place) -> None:
    place.cli.put(
        contract.run_key("my-run", contract.RUN_CONFIG),
        {"schema": 1, "workload": "llama-small", "values": {}},
    )
    _, document = place.doctor("bert", "--nodes", "2", "--name", "my-run")

    message = "run my-run is a run of llama-small, not of bert"
    _is_first(document, "submission-refused", "stops", message)


def test_user_cost_cap_is_checked(place: Place) -> None:
    code, document = place.doctor("all-reduce", "--nodes", "2", "--max-usd", "1")

    _is_first(document, "submission-refused", "stops", "and --max-usd is $1.00")
    assert code == 1
    assert place.cli.run("doctor", "all-reduce", "--max-usd", "0").exit_code == 2


def test_missing_queue_of_several_zones_is_named(place: Place) -> None:
    queues = {
        each["jobQueueName"]: each["jobQueueArn"]
        for each in place.cli.client("batch").describe_job_queues()["jobQueues"]
    }
    gone = queues["queue"].replace("queue/queue", "queue/gone")
    zones = [
        {"zone": zone, "job_queue": queue, "compute_environment": "environment"}
        for zone, queue in (("usw2-az4", gone), ("usw2-az1", queues["queue"]))
    ]
    place.cli.parameter(contract.SSM_JOB_QUEUE, gone)
    place.cli.parameter(contract.SSM_BATCH_ZONES, json.dumps({"zones": zones}))
    exit_code, document = place.doctor("all-reduce", "--nodes", "4")

    said = json.dumps(document)
    assert exit_code == 1
    assert f"queue {gone} does not exist" in said
    assert f"queue {queues['queue']} does not exist" not in said


def _ending_block(place: Place) -> None:
    now = datetime.now(UTC)
    place.reservation(
        "capacity_block_id",
        TotalInstanceCount=4,
        AvailableInstanceCount=4,
        StartDate=now - timedelta(days=1),
        EndDate=now + timedelta(minutes=30),
    )


def _late_block(place: Place) -> None:
    now = datetime.now(UTC)
    limit = {"reason": "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY", "state": "RUNNABLE"}
    limits = [{**limit, "maxTimeSeconds": 3600, "action": "CANCEL"}]
    _amend(place.patch, "describe_job_queues", {"jobStateTimeLimitActions": limits})
    place.reservation(
        "capacity_block_id",
        TotalInstanceCount=4,
        State="scheduled",
        StartDate=now + timedelta(days=3),
        EndDate=now + timedelta(days=4),
    )


def _cap(place: Place) -> None:
    place.cli.parameter(contract.SSM_MAX_COST_PER_JOB_USD, "1")


def _unknown_price(place: Place) -> None:
    _cap(place)
    place.cli.parameter(contract.SSM_SETTINGS, "null")


@pytest.mark.parametrize(
    ("plant", "refused"),
    [
        (_cap, "over-cap"),
        (_unknown_price, "cost-not-known"),
        (_ending_block, "block-ending"),
        (_late_block, "block-not-started"),
    ],
)
def test_late_refusal_of_submit_is_an_obstacle(
    place: Place, plant: Callable[[Place], object], refused: str
) -> None:
    plant(place)
    code, document = place.doctor("all-reduce", "--nodes", "2")
    submitted = place.cli.run("submit", "all-reduce", "--nodes", "2", "--yes", "--json")

    refusal = json.loads(submitted.stdout)
    assert refusal["refused"] == refused
    (obstacle,) = (o for o in document["obstacles"] if o["cause"] == "submission-refused")
    assert [fact["text"] for fact in obstacle["evidence"]] == [refusal["message"]]
    assert code == 1


def test_ending_block_stops_every_run(place: Place) -> None:
    _ending_block(place)
    code, document = place.doctor()

    (obstacle,) = (o for o in document["obstacles"] if o["cause"] == "submission-refused")
    assert "jobs stop 40 minutes before" in obstacle["evidence"][0]["text"]
    assert code == 1


def test_ended_block_is_one_obstacle(place: Place) -> None:
    place.reservation("capacity_block_id", State="expired", TotalInstanceCount=4)
    _, document = place.doctor("all-reduce", "--nodes", "2")

    assert [obstacle["cause"] for obstacle in document["obstacles"]] == ["reservation-ended"]


def test_nodes_beyond_deployment_size_are_one_obstacle(place: Place) -> None:
    _, document = place.doctor("all-reduce", "--nodes", "9")

    causes = [each["cause"] for each in document["obstacles"]]
    assert causes == ["deployment-too-small"]
    assert len(document["obstacles"][0]["evidence"]) == 2


def test_missing_nodes_stop_run_unless_it_scales(cluster_place: Place) -> None:
    words = ("all-reduce", "--nodes", "3", "--on", "eks")
    _, document = cluster_place.doctor(*words)
    code, scaling = cluster_place.doctor(*words, "--scale")

    _is_first(document, "nodes-missing", "stops", "needs 3 nodes; the cluster has 2")
    assert document["obstacles"][0]["remedy"].endswith(" scale --nodes 3")
    assert scaling["obstacles"] == []
    assert code == 0


def test_run_waits_behind_runs_that_use_the_nodes(place: Place) -> None:
    other = place.cli.backend_job(place.cli.submitted("first", num_nodes=3))
    listed = {**other.describe_short(), "nodeProperties": {"numNodes": 3}}
    place.patch.setattr(other, "describe_short", lambda: listed)
    code, document = place.doctor("all-reduce", "--nodes", "2")

    _is_first(document, "behind-other-runs", "will wait", "first (RUNNING, 3)")
    assert code == 0


def test_program_is_checked_like_submit(place: Place, program: Any) -> None:
    _, document = place.doctor("./train.py", "--nodes", "2")

    assert document["workload"] == "./train.py"


def test_unknown_newer_release_is_listed_as_unread(cluster_place: Place) -> None:
    cluster_place.cli.parameter(contract.SSM_NEURON_RELEASE, "2.99.0")
    _, document = cluster_place.doctor()

    unknown = "release of the AMI: this checkout does not support Neuron 2.99.0"
    assert document["unread"] == [unknown]


# --- output --------------------------------------------------------------------------------------
def test_obstacles_are_sorted_by_severity(place: Place) -> None:
    _no_endpoint(place)
    _small_quota(place)
    place.reservation("capacity_reservation_id", TotalInstanceCount=4, AvailableInstanceCount=1)
    _, document = place.doctor()

    severities = [each["severity"] for each in document["obstacles"]]
    assert severities == ["stops", "will wait", "warning"]


def test_unreadable_source_is_not_passed(place: Place) -> None:
    def denied(_: Any) -> None:
        raise AccessDeniedError(user_arn="me", action="any")

    place.patch.setattr(EC2Response, "describe_vpc_endpoints", denied)
    code, document = place.doctor()

    assert document["unread"] == ["endpoints: missing permission: ec2:DescribeVpcEndpoints"]
    assert "endpoint" not in {each["source"] for each in document["passed"]}
    assert code == 0
    assert "not checked: endpoints: missing permission: ec2:Desc" in place.cli.run("doctor").stdout


@pytest.mark.parametrize(
    "detail",
    [
        {"OrganizationsDecisionDetail": {"AllowedByOrganizations": False}},
        {"MissingContextValues": ["aws:PrincipalTag/team"]},
    ],
)
def test_simulation_only_denial_is_neither_passed_nor_obstacle(
    place: Place, detail: dict[str, Any]
) -> None:
    asked: list[str] = []

    def simulate(response: Any) -> ActionResult:
        asked.extend(
            value
            for entry in response._get_param("ContextEntries")
            if entry["ContextKeyName"] == "aws:RequestedRegion"
            for value in entry["ContextKeyValues"]
        )
        results = [
            {
                "EvalActionName": action,
                **(
                    {"EvalDecision": "explicitDeny", **detail}
                    if action == "batch:SubmitJob"
                    else {"EvalDecision": "allowed"}
                ),
            }
            for action in response._get_param("ActionNames")
        ]
        return ActionResult({"EvaluationResults": results, "IsTruncated": False})

    place.patch.setattr(IamResponse, "simulate_principal_policy", simulate)
    _as_user(place, without="")
    code, document = place.doctor()

    (unread,) = document["unread"]
    assert unread.startswith("permissions: batch:SubmitJob: IAM's simulation is inconclusive ")
    assert (code, document["obstacles"]) == (0, [])
    assert "permission" not in {each["source"] for each in document["passed"]}
    assert set(asked) == {REGION}


def test_timed_out_call_is_not_passed(place: Place) -> None:
    def late(*_: Any) -> Any:
        raise ReadTimeoutError(endpoint_url="https://ec2")

    place.patch.setattr("jobs.diagnosis.planned.interface_endpoints", late)
    code, document = place.doctor()

    (unread,) = document["unread"]
    assert unread.startswith("endpoints: AWS did not respond")
    assert code == 0


def test_text_has_severity_cause_evidence_and_remedy(place: Place) -> None:
    _small_quota(place)
    result = place.cli.run("doctor", "--verbose")

    assert result.exit_code == 1
    assert "1. stops: quota-too-small: the account's vCPU quota" in result.stdout
    assert "   account quota: L-2C3B7624 (Running On-Demand Trn inst" in result.stdout
    assert "   $ aws service-quotas request-service-quota-increase " in result.stdout
    assert "passed: bucket: bucket exists" in result.stdout
    assert "passed" not in place.cli.run("doctor").stdout.replace("checks passed", "")


@pytest.mark.parametrize(
    "words", [("--nodes", "2"), ("--scale",), ("--set", "lr=1"), ("--name", "run")]
)
def test_run_options_need_a_workload(cli: Cli, words: tuple[str, ...]) -> None:
    assert_refused(cli.run("doctor", *words), "specify one, as in `doctor llama2-7b --nodes 4`")


def test_unrecognized_failed_launch_is_shown(cluster_place: Place) -> None:
    from moto.autoscaling.responses import AutoScalingResponse

    activity = {
        "ActivityId": "1", "AutoScalingGroupName": "group", "Cause": "more nodes",
        "Description": "Launching a new EC2 instance", "StartTime": datetime.now(UTC),
        "StatusCode": "Failed", "StatusMessage": "something that is new",
    }  # fmt: skip
    found = {"Activities": [activity]}
    answer(cluster_place.patch, AutoScalingResponse, "describe_scaling_activities", found)
    _, unknown = cluster_place.doctor()
    activity["StatusMessage"] = NO_CAPACITY
    _, known = cluster_place.doctor()

    _is_first(unknown, "launch-failed", "will wait", "something that is new")
    assert [each["cause"] for each in known["obstacles"]] == ["no-capacity"]
