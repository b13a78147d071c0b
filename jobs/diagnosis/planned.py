"""Read-only checks of a planned job's prerequisites: permissions, images, network, cluster.

All calls are allowed by docs/submitter-policy.json, except the simulation of permissions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jobs.capacity import needed_quota
from jobs.diagnosis.evidence import EvidenceSource, Fact
from jobs.diagnosis.evidence_reader import EvidenceReader
from jobs.eks.cluster import is_missing
from jobs.eks.nodes import NodeGroup, count_nodes
from jobs.eks.service import EksService
from jobs.errors import error_code
from jobs.job import JobRequest
from jobs.prerequisites import (
    find_container,
    interface_endpoints,
    is_in_registry,
    list_hosts,
    list_offering_zones,
    sdk_of_image,
)
from trainium_catalogue import contract
from trainium_catalogue.contract import ENV_NEURON_RELEASE, Orchestrator
from trainium_catalogue.kubernetes import SCALER
from trainium_catalogue.releases import NEURON_RELEASES, NeuronRelease
from trainium_catalogue.workloads import Hardware
from trainium_catalogue.zones import INTERFACE_ENDPOINTS

POLICY = Path(__file__).resolve().parents[2] / "docs" / "submitter-policy.json"
_TO_SUBMIT = {
    Orchestrator.BATCH: ("SubmitAndStop", "FindInTheBucket", "UseTheBucket"),
    Orchestrator.EKS: ("FindInTheBucket", "UseTheBucket"),
}
"""Statements of the policy that submitting requires."""
_SCALER_DEPLOYMENT = f"/apis/apps/v1/namespaces/{SCALER}/deployments/{SCALER}"


class PlannedJobReader(EvidenceReader[JobRequest]):
    """Reads the prerequisites of a planned job."""

    def read_account(self, requests: Sequence[JobRequest]) -> None:
        """Read the prerequisites common to all requests."""
        read = self.evidence.read
        permission = "iam:SimulatePrincipalPolicy and iam:GetRole"
        read("permissions", permission, lambda: self.permissions(requests))
        read("bucket", "s3:ListBucket", self.bucket)
        read("key", "kms:DescribeKey", self.key)
        read("endpoints", "ec2:DescribeVpcEndpoints", self.endpoints)

    def read_capacity(self) -> None:
        """Read the prerequisites common to all jobs on this hardware."""
        if self.target.settings is None:
            why = "the deployment's settings are unknown"
            self.evidence.unread.append(f"quota and reservation: {why}")
            return
        if needed_quota(self.target, self.job.hardware, self.job.num_nodes) is None:
            why = "AWS does not document whether a Capacity Block counts toward it"
            self.evidence.unread.append(f"quota: {why}")
        self.evidence.read("quota", "servicequotas:GetServiceQuota", self.quota)
        self.evidence.read("reservation", "ec2:DescribeCapacityReservations", self.reservation)

    def read_orchestrator(self) -> None:
        """Read the orchestrator's prerequisites."""
        if isinstance(self.service, EksService):
            self._read_cluster(self.service)
        else:
            self._read_batch()

    def _read_batch(self) -> None:
        environments = self.read_environments()
        read = self.evidence.read
        resources = [each.get("computeResources") or {} for each in environments]
        subnets = [subnet for each in resources for subnet in each.get("subnets") or ()]
        self._read_launches(lambda: self._groups(environments))
        read(
            "addresses",
            "ec2:DescribeSubnets and ec2:DescribeInstances",
            lambda: self._subnets(environments, num_running=self._num_running()),
        )
        if self.job.hardware is Hardware.CPU:
            return
        self._read_zones(subnets)
        images = [
            str(each["imageIdOverride"])
            for resource in resources
            for each in resource.get("ec2Configuration") or ()
            if "imageIdOverride" in each
        ]
        read("AMI", "ec2:DescribeImages", lambda: self.host_images(images))
        if self.job.num_nodes > 1:
            read("default security group", "ec2:DescribeSecurityGroups", self.default_group)

    def _read_cluster(self, service: EksService) -> None:
        groups: list[NodeGroup] = []
        read = self.evidence.read
        read("cluster", "eks:DescribeCluster", self.cluster)
        read("node group", "eks:DescribeNodegroup", lambda: self.node_group(groups))
        self._read_launches(lambda: [each.scaling_group for each in groups if each.scaling_group])
        read("nodes", "list nodes in the cluster", lambda: self.nodes(service))
        if self.job.scales:
            permission = f"get deployments in namespace {SCALER} of the cluster"
            read("node scaler", permission, lambda: self.node_scaler(service))
        read("addresses", "ec2:DescribeSubnets", lambda: self._free_addresses(service, groups))
        self._read_zones([subnet for each in groups for subnet in each.subnets])

    def _read_launches(self, groups: Callable[[], Iterable[str]]) -> None:
        def failures() -> Iterator[Fact]:
            found = list(self.activities(groups()))
            none = Fact(source=EvidenceSource.ACTIVITY, text="no recent failures")
            yield from found or [none]

        self.evidence.read("launches", "autoscaling:DescribeScalingActivities", failures)

    def _read_zones(self, subnets: Sequence[str]) -> None:
        self.evidence.read(
            "zones",
            "ec2:DescribeInstanceTypeOfferings and ec2:DescribeSubnets",
            lambda: self.offerings(subnets),
        )

    # --- the account -----------------------------------------------------------------------------
    def permissions(self, requests: Sequence[JobRequest]) -> Iterator[Fact]:
        """Check which actions of the submitter policy the caller is not allowed to perform."""
        iam, caller = self.aws.client("iam"), self.aws.client("sts").get_caller_identity()
        principal = str(caller["Arn"])
        if principal.endswith(":root"):
            yield Fact(source=EvidenceSource.PERMISSION, text="the root user has all permissions")
            return
        if ":assumed-role/" in principal:
            # A session's ARN lacks the role's path.
            principal = iam.get_role(RoleName=principal.split("/")[1])["Role"]["Arn"]
        needed = {name for each in requests for name in _TO_SUBMIT[each.orchestrator]}
        definitions = [each.job_definition for each in requests]
        denied: dict[bool, list[str]] = {True: [], False: []}
        unknown: list[str] = []
        region = {"ContextKeyName": "aws:RequestedRegion", "ContextKeyType": "string"}
        for statement in self._statements(str(caller["Account"])):
            actions = _as_list(statement["Action"])
            pages = iam.get_paginator("simulate_principal_policy").paginate(
                PolicySourceArn=principal,
                ActionNames=actions,
                ResourceArns=self._resources(_as_list(statement["Resource"]), definitions),
                ContextEntries=[{**region, "ContextKeyValues": [self.target.region]}],
            )
            results = [result for page in pages for result in page["EvaluationResults"]]
            # Each action applies to only some of its statement's resources.
            allowed = {
                result["EvalActionName"]
                for result in results
                if result["EvalDecision"] == "allowed"
            }
            unclear = {each["EvalActionName"] for each in results if _is_unclear(each)} - allowed
            is_needed = statement["Sid"] in needed
            denied[is_needed] += [each for each in actions if each not in allowed | unclear]
            unknown += [action for action in actions if action in unclear]
        self.evidence.names |= {
            "principal": principal,
            "denied": " ".join(denied[True] or denied[False]) or "ACTION",
        }
        for is_needed, actions in denied.items():
            if actions:
                text = (
                    f"not permitted {'to submit' if is_needed else 'to read'}: {', '.join(actions)}"
                )
                yield Fact(source=EvidenceSource.PERMISSION, text=text, is_problem=is_needed)
        if unknown:
            names = ", ".join(dict.fromkeys(unknown))
            why = "IAM's simulation is inconclusive because of organization policies or conditions"
            self.evidence.unread.append(f"permissions: {names}: {why}")
        elif not (denied[True] or denied[False]):
            text = f"{principal} has all permissions in docs/{POLICY.name}"
            yield Fact(source=EvidenceSource.PERMISSION, text=text)

    def _statements(self, account: str) -> Iterator[Mapping[str, Any]]:
        """Yield the statements of the policy with the deployment's names."""
        text = POLICY.read_text(encoding="utf-8")
        names = {
            "REGION": self.target.region,
            "ACCOUNT": account,
            "DEPLOYMENT": self.target.name,
            "BUCKET": self.target.bucket,
        }
        for placeholder, name in names.items():
            text = text.replace(placeholder, name)
        unused = {
            "ReachTheCluster": self.target.eks is None,
            "LookAtTheKey": self._key is None,
        }
        for statement in json.loads(text)["Statement"]:
            if not unused.get(statement["Sid"]):
                yield statement

    def _resources(self, patterns: Sequence[str], definitions: Sequence[str | None]) -> list[str]:
        """Replace patterns with known ARNs, since a caller's policy may name exactly these."""
        target = self.target
        named = (*target.queues, *dict.fromkeys(definitions), self._key)
        known = [each for each in named if each]
        found = []
        for pattern in patterns:
            if target.eks is not None and ":cluster/" in pattern:
                pattern = f"{pattern.partition(':cluster/')[0]}:cluster/{target.eks.cluster}"
            found += [arn for arn in known if fnmatchcase(arn, pattern)] or [pattern]
        return found

    def bucket(self) -> Iterator[Fact]:
        """Check whether the bucket exists."""
        name, is_problem = self.target.bucket, False
        try:
            self.aws.s3().list_objects_v2(Bucket=name, MaxKeys=1)
        except Exception as error:
            if error_code(error) != "NoSuchBucket":
                raise
            is_problem = True
        text = f"bucket {name} does not exist" if is_problem else f"{name} exists"
        yield Fact(source=EvidenceSource.BUCKET, text=text, is_problem=is_problem)

    @property
    def _key(self) -> str | None:
        return (self.target.settings or {}).get("bucket_kms_key_arn")

    def key(self) -> Iterator[Fact]:
        """Yield the state of the bucket's KMS key."""
        if (key := self._key) is None:
            return
        try:
            state = self.aws.kms().describe_key(KeyId=key)["KeyMetadata"]["KeyState"]
        except Exception as error:
            if error_code(error) != "NotFoundException":
                raise
            state = "missing"
        if state == "PendingDeletion":
            self.evidence.names["key_action"] = "cancel-key-deletion"
        text = f"{key} is {state}"
        yield Fact(source=EvidenceSource.KEY, text=text, is_problem=state != "Enabled")

    def endpoints(self) -> Iterator[Fact]:
        """Yield unavailable and missing interface endpoints of the VPC."""
        vpc, settings = self.target.vpc, self.target.settings or {}
        if vpc is None:
            return
        found = {
            str(each["ServiceName"]).partition(f"{self.target.region}.")[2]: str(each["State"])
            for each in interface_endpoints(self.aws.ec2(), vpc)
        }
        found = {name: state for name, state in found.items() if name in INTERFACE_ENDPOINTS}
        unusable = [f"{n} is {s}" for n, s in found.items() if s.lower() != "available"]
        is_own = self.target.settings is not None and "vpc_id" not in settings
        wanted = settings.get("interface_endpoints", contract.HAS_INTERFACE_ENDPOINTS)
        expected = is_own and str(wanted).lower() == "true"
        if missing := [name for name in INTERFACE_ENDPOINTS if expected and name not in found]:
            self.evidence.names["endpoint"] = f"com.amazonaws.{self.target.region}.{missing[0]}"
            text = f"{', '.join(missing)} missing in {vpc}"
            if str(settings.get("nat_gateways", contract.NAT_GATEWAYS)) == "0":
                unusable.append(text)
            else:
                text = f"{text}: reached through the NAT gateway"
                yield Fact(source=EvidenceSource.ENDPOINT, text=text)
        text = (
            f"{'; '.join(unusable)}, in {vpc}" if unusable else f"{len(found)} available in {vpc}"
        )
        yield Fact(source=EvidenceSource.ENDPOINT, text=text, is_problem=bool(unusable))

    def offerings(self, subnets: Sequence[str]) -> Iterator[Fact]:
        """Check whether the subnets' zones offer the instance type."""
        if not subnets:
            return
        ec2, kind = self.aws.ec2(), self.target.instance_type
        zones = list_offering_zones(ec2, kind)
        for subnet in ec2.describe_subnets(SubnetIds=list(subnets))["Subnets"]:
            zone = subnet["AvailabilityZoneId"]
            where = ", ".join(zones) or "no zone of this region"
            text = f"{subnet['SubnetId']} is in {zone}; {kind.name} is offered in {where}"
            yield Fact(source=EvidenceSource.OFFERING, text=text, is_problem=zone not in zones)

    def _num_running(self) -> int:
        """Count the nodes that already have addresses."""
        if self.job.hardware is Hardware.CPU:
            return 0
        states = [host["State"]["Name"] for host in list_hosts(self.aws.ec2(), self.target)]
        return states.count("pending") + states.count("running")

    # --- images ----------------------------------------------------------------------------------
    def image(self) -> Iterator[Fact]:
        """Check whether the jobs' image exists, and matches the deployment's Neuron release."""
        release, source = self.target.neuron_release, EvidenceSource.IMAGE
        if isinstance(self.service, EksService):
            uri, image_release = self.service.eks.image, None
        else:
            definition = str(self.job.job_definition)
            container = find_container(self.aws.batch(), definition)
            if container is None:
                text = f"Batch has no job definition {definition} with a container"
                self.evidence.names["fix"] = self.target.redeploy().split("`")[1]
                yield Fact(source=EvidenceSource.REQUEST, text=text, is_problem=True)
                return
            variables = {each["name"]: each["value"] for each in container.get("environment", ())}
            uri, image_release = str(container["image"]), variables.get(ENV_NEURON_RELEASE)
        if (image_release := sdk_of_image(uri) or image_release) not in (None, release):
            text = f"{uri} is for Neuron {image_release}, but the deployment uses {release}"
            yield Fact(source=source, text=text)
        try:
            found = is_in_registry(self.aws.ecr, uri)
        except Exception as error:
            if error_code(error) != "RepositoryNotFoundException":
                raise
            found = False
        if found is None:
            self.evidence.unread.append(f"image: {uri} is not in a private ECR repository")
        else:
            text = f"{uri} {'exists' if found else 'does not exist'}"
            yield Fact(source=source, text=text, is_problem=not found)

    def host_images(self, names: Sequence[str]) -> Iterator[Fact]:
        """Check whether the hosts' AMI exists, and matches the Neuron release."""
        if not names:
            return
        try:
            found = self.aws.ec2().describe_images(ImageIds=list(names))["Images"]
        except Exception as error:
            if not str(error_code(error)).startswith("InvalidAMIID"):
                raise
            found = []
        for name in names:
            image = next((each for each in found if each["ImageId"] == name), None)
            text = f"{name} does not exist" if image is None else f"{name} is {image['State']}"
            is_problem = image is None or image["State"] != "available"
            yield Fact(source=EvidenceSource.HOST_IMAGE, text=text, is_problem=is_problem)
            is_ours = "ami_id" not in (self.target.settings or {})
            if image is not None and is_ours and (release := self._release()) is not None:
                yield from self._check_release(str(image.get("Name")), release.ecs_ami_name)

    def _release(self) -> NeuronRelease | None:
        """Return the deployment's Neuron release; None if this checkout does not support it."""
        name = self.target.neuron_release
        if name not in NEURON_RELEASES:
            self.evidence.unread.append(
                f"release of the AMI: this checkout does not support Neuron {name}"
            )
        return NEURON_RELEASES.get(name)

    def _check_release(self, name: str, expected: str) -> Iterator[Fact]:
        if not name.endswith(expected):
            text = f"the AMI is {name}, but the release has {expected}"
            yield Fact(source=EvidenceSource.HOST_IMAGE, text=text)

    # --- the cluster -----------------------------------------------------------------------------
    def cluster(self) -> Iterator[Fact]:
        """Yield the state of the cluster."""
        assert self.target.eks is not None
        name = self.target.eks.cluster
        try:
            status = self.aws.eks().describe_cluster(name=name)["cluster"]["status"]
        except Exception as error:
            if error_code(error) != "ResourceNotFoundException":
                raise
            status = "missing"
        is_problem = status not in ("ACTIVE", "UPDATING")
        yield Fact(source=EvidenceSource.CLUSTER, text=f"{name} is {status}", is_problem=is_problem)

    def node_group(self, groups: list[NodeGroup]) -> Iterator[Fact]:
        """Yield the state of the node group, its health issues and its AMI."""
        try:
            yield from self._node_group(groups)
        except Exception as error:
            if error_code(error) != "ResourceNotFoundException":
                raise
            text = "the node group does not exist"
            yield Fact(source=EvidenceSource.NODE_GROUP, text=text, is_problem=True)
        if "eks_node_image" in (self.target.settings or {}):
            return
        release = self._release()
        for group in groups:
            if release is not None and release.eks_ami_date and group.host_image:
                yield from self._check_release(group.host_image, release.eks_ami_date)

    def node_scaler(self, service: EksService) -> Iterator[Fact]:
        """Check whether the node scaler is running, if nodes must be added."""
        if count_nodes(service.cluster(), self.target).in_one_zone >= self.job.num_nodes:
            return
        text = "the node scaler is not in the cluster"
        try:
            status = service.cluster().get(_SCALER_DEPLOYMENT).get("status", {})
        except Exception as error:
            if not is_missing(error):
                raise
        else:
            ready = status.get("readyReplicas", 0)
            text = "it is running" if ready else "the node scaler has no ready pod"
        yield Fact(source=EvidenceSource.SCALER, text=text)


def _is_unclear(result: Mapping[str, Any]) -> bool:
    """Return whether a denial may be an artifact of the simulation.

    The simulation lacks organizations' policies and the context of conditions:
    github.com/aws/aws-sdk/issues/102, github.com/aws/aws-toolkit-vscode/pull/3106.
    """
    organization = result.get("OrganizationsDecisionDetail") or {}
    return bool(
        organization.get("AllowedByOrganizations") is False or result.get("MissingContextValues")
    )


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
