"""Claims about the account and deployment, checked with EC2, ECR, IAM and Service Quotas."""

from __future__ import annotations

import re
import urllib.request

from jobs.capacity import TRAINIUM
from jobs.verify.probes.desk import PROBES, Desk
from trainium_catalogue.probing import Missing, Seen

_BERT_TAR = (
    "https://neuron-s3.s3.us-west-2.amazonaws.com/training_datasets/"
    "bert_pretrain_wikicorpus_tokenized_hdf5/"
    "bert_pretrain_wikicorpus_tokenized_hdf5_seqlen128.tar"
)
_ECR = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[^.]+)\.[^/]+/(?P<repository>[^:@]+)")
_ROLES = {"Batch": "AWSServiceRoleForBatch", "ECS": "AWSServiceRoleForECS"}
_EKS_ROLES = {
    "EKS": "AWSServiceRoleForAmazonEKS",
    "EKS node groups": "AWSServiceRoleForAmazonEKSNodegroup",
}


@PROBES.probe("instance-figures")
def instance_figures(desk: Desk) -> Seen:
    """EC2 describes the instance type as the catalogue does, and offers it in the listed zones."""
    wanted, ec2 = desk.target.instance_type, desk.client("ec2")
    found = ec2.describe_instance_types(InstanceTypes=[wanted.name])["InstanceTypes"][0]
    network = found["NetworkInfo"]
    figures = (
        found["VCpuInfo"]["DefaultVCpus"],
        found["MemoryInfo"]["SizeInMiB"],
        network["MaximumNetworkCards"],
        network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
    )
    offered = ec2.describe_instance_type_offerings(
        LocationType="availability-zone-id",
        Filters=[{"Name": "instance-type", "Values": [wanted.name]}],
    )["InstanceTypeOfferings"]
    zones = sorted(offer["Location"] for offer in offered)
    known = sorted(wanted.zone_ids.get(desk.target.region, ()))
    expected = (
        wanted.num_vcpus,
        wanted.memory_mib,
        wanted.num_network_cards,
        wanted.num_efa_interfaces,
    )
    return Seen(
        ok=figures == expected and set(known) <= set(zones),
        seen=_figures(*figures, zones),
        expected=_figures(*expected, known),
    )


def _figures(vcpus: int, memory: int, cards: int, efa: int, zones: list[str]) -> str:
    return f"{vcpus} vCPUs, {memory} MiB, {cards} cards, {efa} EFA; {', '.join(zones) or 'no zone'}"


@PROBES.probe("dated-ami-parameter", needs=("AWS", "Batch"))
def dated_ami(desk: Desk) -> Seen:
    """The SSM parameter of the pinned host image exists and holds an image id."""
    name = desk.release.ecs_ami_ssm_parameter
    found = desk.client("ssm").get_parameters(Names=[name])["Parameters"]
    value = str(found[0]["Value"]) if found else "no such parameter"
    return Seen(ok=value.startswith("ami-"), seen=value, expected=f"an image id in {name}")


@PROBES.probe("vcpu-quota", needs=("AWS",))
def quota(desk: Desk) -> Seen:
    """The quota covers as many nodes as the deployment may start."""
    answer = desk.client("service-quotas").get_service_quota(
        ServiceCode="ec2", QuotaCode=TRAINIUM.code
    )
    allowed = float(answer["Quota"]["Value"])
    wanted = desk.target.instance_type.vcpus_for(desk.target.max_nodes)
    return Seen(
        ok=allowed >= wanted,
        seen=f"{allowed:g} vCPUs",
        expected=f"{wanted} vCPUs or more, for {desk.target.max_nodes} nodes",
    )


@PROBES.probe("service-linked-roles", needs=("AWS",))
def service_linked_roles(desk: Desk) -> Seen:
    """The services have created their service-linked roles."""
    pages = desk.client("iam").get_paginator("list_roles")
    found = {
        role["RoleName"]
        for page in pages.paginate(PathPrefix="/aws-service-role/")
        for role in page["Roles"]
    }
    wanted = _ROLES | (_EKS_ROLES if desk.target.eks is not None else {})
    missing = [service for service, role in wanted.items() if role not in found]
    return Seen(
        ok=not missing,
        seen=f"missing: {', '.join(missing)}" if missing else "all there",
        expected=f"roles of {', '.join(wanted)}",
    )


@PROBES.probe("image-pushed", "publishing-role", needs=("AWS",))
def image_pushed(desk: Desk) -> Seen:
    """The image that jobs run is in the deployment's own repository."""
    uri = _image(desk)
    parts = _ECR.match(uri)
    if parts is None:
        raise Missing("an image in ECR of one's own")
    tag, digest = uri[parts.end() :].lstrip(":"), uri.partition("@")[2]
    image = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    found = desk.client("ecr").batch_get_image(
        registryId=parts["account"], repositoryName=parts["repository"], imageIds=[image]
    )["images"]
    return Seen(
        ok=bool(found),
        seen=f"{len(found)} image {next(iter(image.values()))} in {parts['repository']}",
        expected="1 image",
    )


def _image(desk: Desk) -> str:
    if desk.target.eks is not None:
        return desk.target.eks.image
    found = desk.client("batch").describe_job_definitions(
        jobDefinitions=[desk.target.job_definition]
    )["jobDefinitions"]
    if not found:
        raise Missing("the job definition of verify")
    ranges = found[0]["nodeProperties"]["nodeRangeProperties"]
    return str(ranges[0]["container"]["image"])


@PROBES.probe("bert-tar", needs=("AWS",))
def bert_tar(desk: Desk) -> Seen:
    """The reference's shards are still public."""
    size = size_of(_BERT_TAR)
    return Seen(
        ok=size is not None and size > 10**9,
        seen="no such object" if size is None else f"{size / 1e9:.1f} GB",
        expected="a public object of many GB",
    )


def size_of(url: str) -> int | None:
    """Size of a public object in bytes; None if it cannot be read."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.headers["Content-Length"])
    except OSError:
        return None
