"""Claims about the account and deployment, checked with EC2, ECR, IAM and Service Quotas."""

from __future__ import annotations

import urllib.request

from jobs.capacity import TRAINIUM, read_quota
from jobs.prerequisites import find_container, is_in_registry, list_offering_zones
from jobs.verify.probes.context import PROBES, REMEDY, ClientContext
from trainium_catalogue.probing import ProbeResult, SubjectMissing
from trainium_catalogue.wording import counted

_BERT_TAR = (
    "https://neuron-s3.s3.us-west-2.amazonaws.com/training_datasets/"
    "bert_pretrain_wikicorpus_tokenized_hdf5/"
    "bert_pretrain_wikicorpus_tokenized_hdf5_seqlen128.tar"
)
_ROLES = {"Batch": "AWSServiceRoleForBatch", "ECS": "AWSServiceRoleForECS"}
_EKS_ROLES = {
    "EKS": "AWSServiceRoleForAmazonEKS",
    "EKS node groups": "AWSServiceRoleForAmazonEKSNodegroup",
}


@PROBES.probe("instance-figures")
def instance_figures(context: ClientContext) -> ProbeResult:
    """EC2's description of the instance type matches the catalogue, including its zones."""
    wanted, ec2 = context.target.instance_type, context.client("ec2")
    found = ec2.describe_instance_types(InstanceTypes=[wanted.name])["InstanceTypes"][0]
    network = found["NetworkInfo"]
    figures = (
        found["VCpuInfo"]["DefaultVCpus"],
        found["MemoryInfo"]["SizeInMiB"],
        network["MaximumNetworkCards"],
        network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
    )
    zones = list_offering_zones(ec2, wanted)
    known = sorted(wanted.zone_ids.get(context.target.region, ()))
    expected = (
        wanted.num_vcpus,
        wanted.memory_mib,
        wanted.num_network_cards,
        wanted.num_efa_interfaces,
    )
    return ProbeResult(
        ok=figures == expected and set(known) <= set(zones),
        seen=_figures(*figures, zones),
        expected=_figures(*expected, known),
    )


def _figures(vcpus: int, memory: int, cards: int, efa: int, zones: list[str]) -> str:
    return (
        f"{vcpus} vCPUs, {memory} MiB, {counted(cards, 'network card')}, "
        f"{counted(efa, 'EFA interface')}; {', '.join(zones) or 'no zone'}"
    )


@PROBES.probe("dated-ami-parameter", needs=("AWS", "Batch"))
def dated_ami(context: ClientContext) -> ProbeResult:
    """The SSM parameter of the pinned AMI exists and contains an AMI ID."""
    name = context.release.ecs_ami_ssm_parameter
    found = context.client("ssm").get_parameters(Names=[name])["Parameters"]
    value = str(found[0]["Value"]) if found else "no such parameter"
    return ProbeResult(ok=value.startswith("ami-"), seen=value, expected=f"an AMI ID in {name}")


@PROBES.probe("vcpu-quota", needs=("AWS",))
def quota(context: ClientContext) -> ProbeResult:
    """The quota covers the deployment's maximum number of nodes."""
    allowed = read_quota(context.client("service-quotas"), TRAINIUM)
    wanted = context.target.instance_type.vcpus_for(context.target.max_nodes)
    return ProbeResult(
        ok=allowed >= wanted,
        seen=f"{allowed:g} vCPUs",
        expected=f"{wanted} vCPUs or more, for {counted(context.target.max_nodes, 'node')}; "
        f"{REMEDY}",
    )


@PROBES.probe("service-linked-roles", needs=("AWS",))
def service_linked_roles(context: ClientContext) -> ProbeResult:
    """The services have created their service-linked roles."""
    pages = context.client("iam").get_paginator("list_roles")
    found = {
        role["RoleName"]
        for page in pages.paginate(PathPrefix="/aws-service-role/")
        for role in page["Roles"]
    }
    wanted = _ROLES | (_EKS_ROLES if context.target.eks is not None else {})
    missing = [service for service, role in wanted.items() if role not in found]
    return ProbeResult(
        ok=not missing,
        seen=f"missing: {', '.join(missing)}" if missing else "all exist",
        expected=f"roles of {', '.join(wanted)}",
    )


@PROBES.probe("image-pushed", "publishing-role", needs=("AWS",))
def image_pushed(context: ClientContext) -> ProbeResult:
    """The jobs' image is in the deployment's own repository."""
    uri = _image(context)
    found = is_in_registry(context.aws.ecr, uri)
    if found is None:
        raise SubjectMissing("an image in a private ECR repository")
    return ProbeResult(
        ok=found,
        seen=f"{uri} is {'' if found else 'not '}in its repository",
        expected=f"in its repository; {REMEDY}",
    )


def _image(context: ClientContext) -> str:
    if context.target.eks is not None:
        return context.target.eks.image
    container = find_container(context.client("batch"), str(context.target.job_definition))
    if container is None:
        raise SubjectMissing("the job definition of verify")
    return str(container["image"])


@PROBES.probe("bert-tar", needs=("AWS",))
def bert_tar(context: ClientContext) -> ProbeResult:
    """The reference dataset is still public."""
    size = size_of(_BERT_TAR)
    return ProbeResult(
        ok=size is not None and size > 10**9,
        seen="no such object" if size is None else f"{size / 1e9:.1f} GB",
        expected="a public object of more than 1 GB",
    )


def size_of(url: str) -> int | None:
    """Return the size of a public object in bytes; None if it cannot be read."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.headers["Content-Length"])
    except OSError:
        return None
