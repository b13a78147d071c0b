"""Refusals of EKS: node groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainium_emulators.aws.refusals.ec2_templates import user_data
from trainium_emulators.aws.refusals.eks_clusters import minor
from trainium_emulators.aws.refusals.refusal import (
    CLUSTER,
    LAUNCH_TEMPLATE,
    MOTO,
    NODE_GROUP,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import AwsRequest, each, get, text

API = "https://docs.aws.amazon.com/eks/latest/APIReference/"
GUIDE = "https://docs.aws.amazon.com/eks/latest/userguide/"
CFN = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/"

RESERVED_LABELS = ("kubernetes.io/", "k8s.io/", "eks.amazonaws.com/")
_VERSIONS = frozenset({"Version", "ReleaseVersion"})
_CREATE_ONLY = frozenset(
    {
        "AmiType", "CapacityType", "ClusterName", "DiskSize", "InstanceTypes", "NodeRole",
        "NodegroupName", "RemoteAccess", "Subnets",
    }
)  # fmt: skip
_QUALIFIED = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


def launch_template(request: AwsRequest) -> Mapping[str, Any]:
    """Return the data of the node group's launch template, as far as known."""
    given = request.get("LaunchTemplate", {})
    for key in ("Id", "Name"):
        found = request.account.find(LAUNCH_TEMPLATE, get(given, key))
        if found is not None:
            data = get(found, "LaunchTemplateData", {})
            return data if isinstance(data, Mapping) else {}
    return {}


def _of_template(request: AwsRequest, path: str) -> Any:
    return get(launch_template(request), path)


def _types_twice(request: AwsRequest) -> Iterable[Fill]:
    return when(
        _of_template(request, "InstanceType") is not None and bool(request.get("InstanceTypes"))
    )


def _subnets_of_template(request: AwsRequest) -> Iterable[Fill]:
    nics = each(_of_template(request, "NetworkInterfaces"))
    return when(any(get(nic, "SubnetId") is not None for nic in nics))


def _no_image_of_template(request: AwsRequest) -> Iterable[Fill]:
    custom = request.text("AmiType") == "CUSTOM"
    return when(custom and not request.has("LaunchTemplate"))


def _both_images(request: AwsRequest) -> Iterable[Fill]:
    image = _of_template(request, "ImageId") is not None
    return when(image and request.text("AmiType") not in ("", "CUSTOM"))


def _version_of_image(request: AwsRequest) -> Iterable[Fill]:
    return when(_of_template(request, "ImageId") is not None and request.has("Version"))


def _user_data(request: AwsRequest) -> Iterable[Fill]:
    """Check user data that EKS merges with its own, which it does not do for custom images."""
    given = user_data(launch_template(request))
    own_image = _of_template(request, "ImageId") is not None
    return when(bool(given) and not own_image and "multipart/" not in given)


def _market(request: AwsRequest) -> str:
    return text(_of_template(request, "InstanceMarketOptions.MarketType"))


def _block(request: AwsRequest) -> Iterable[Fill]:
    if request.get("CapacityType") != "CAPACITY_BLOCK":
        return []
    data = launch_template(request)
    target = get(data, "CapacityReservationSpecification.CapacityReservationTarget")
    whole = (
        _market(request) == "capacity-block"
        and target is not None
        and get(data, "InstanceType") is not None
    )
    return when(bool(data) and not whole)


def _block_type(request: AwsRequest) -> Iterable[Fill]:
    wanted = request.get("CapacityType", "ON_DEMAND") != "CAPACITY_BLOCK"
    return when(_market(request) == "capacity-block" and wanted)


def _size(request: AwsRequest, name: str) -> float:
    return request.number(f"ScalingConfig.{name}")


def _release(request: AwsRequest) -> Iterable[Fill]:
    release, version = request.text("ReleaseVersion"), request.text("Version")
    return when(
        bool(release and version) and not release.startswith(version + "."), release, version
    )


def _mixed_update(request: AwsRequest) -> Iterable[Fill]:
    """Check an update in place; replacing a group counts as a creation."""
    before, after = request.previous, request.properties
    if before is None:
        return when(False)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    if changed & _CREATE_ONLY:
        return when(False)
    versions = bool(changed & _VERSIONS) and bool(changed - _VERSIONS)
    return when(versions or {"LaunchTemplate", "Tags"} <= changed)


def _cluster(request: AwsRequest) -> Mapping[str, Any]:
    return request.find(CLUSTER, "ClusterName") or {}


def _other_version(request: AwsRequest) -> Iterable[Fill]:
    own, theirs = minor(request.get("Version")), minor(get(_cluster(request), "Version"))
    allowed = ", ".join(f"1.{theirs - step}" for step in range(4))
    return when(own > 0 < theirs and not theirs - 3 <= own <= theirs, f"1.{theirs}", allowed)


def _labels(request: AwsRequest) -> dict[str, Any]:
    labels = request.get("Labels", {})
    return labels if isinstance(labels, dict) else {}


def _label_values(request: AwsRequest) -> Iterable[Fill]:
    return when(
        any(
            text(value)
            and not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)
            for value in _labels(request).values()
        )
    )


def _taint_keys(request: AwsRequest) -> Iterable[Fill]:
    keys = [text(get(taint, "Key")) for taint in request.each("Taints")]
    return when(any(key and not _QUALIFIED.fullmatch(key) for key in keys))


def _update_config(request: AwsRequest) -> Iterable[Fill]:
    given = request.get("UpdateConfig", {})
    return when({"MaxUnavailable", "MaxUnavailablePercentage"} <= {*given})


ROWS = (
    AwsRefusal(
        id="nodes-types-twice",
        on=NODE_GROUP,
        condition="Instance types of the group and one of its template.",
        words="Cannot specify instance types in launch template and API request",
        source="https://github.com/terraform-aws-modules/terraform-aws-eks/issues/1386",
        judge="pf-eks-nodegroup-lt-forbids-lt-instance-type",
        check=_types_twice,
    ),
    AwsRefusal(
        id="nodes-subnets-of-template",
        on=NODE_GROUP,
        condition="A launch template that names a subnet.",
        words="You must not specify a subnet in your launch template. All subnets must be "
        "specified in the API.",
        source=GUIDE + "launch-templates.html",
        judge="pf-eks-nodegroup-lt-forbids-subnet-id",
        check=_subnets_of_template,
    ),
    AwsRefusal(
        id="nodes-profile-of-template",
        on=NODE_GROUP,
        condition="A launch template that names an instance profile.",
        words="Launch template should not specify an instance profile. The noderole in your "
        "request will be used to construct an instance profile.",
        verbatim=False,
        source=GUIDE + "launch-templates.html",
        check=lambda r: when(_of_template(r, "IamInstanceProfile") is not None),
    ),
    AwsRefusal(
        id="nodes-shutdown-of-template",
        on=NODE_GROUP,
        condition="A launch template that says how instances end.",
        words="Launch template should not specify a shutdown behavior",
        verbatim=False,
        source=GUIDE + "launch-templates.html",
        check=lambda r: when(
            _of_template(r, "InstanceInitiatedShutdownBehavior") not in (None, "terminate")
        ),
    ),
    AwsRefusal(
        id="nodes-spot-of-template",
        on=NODE_GROUP,
        condition="A launch template that asks for Spot.",
        words="Instance market options are not supported with the launch template.",
        source="https://github.com/hashicorp/terraform-provider-aws/issues/18025",
        check=lambda r: when(_market(r) == "spot"),
    ),
    AwsRefusal(
        id="nodes-block",
        on=NODE_GROUP,
        condition="A group in a Capacity Block whose template lacks market, type or reservation.",
        words="Launch template of a CAPACITY_BLOCK node group must have an instance type, the "
        "market type capacity-block and a capacity reservation target",
        verbatim=False,
        source=GUIDE + "capacity-blocks-mng.html",
        check=_block,
    ),
    AwsRefusal(
        id="nodes-block-type",
        on=NODE_GROUP,
        condition="A template for a Capacity Block, and another type of capacity.",
        words="Capacity type must be CAPACITY_BLOCK when the launch template has the market type "
        "capacity-block",
        verbatim=False,
        source=GUIDE + "capacity-blocks-mng.html",
        check=_block_type,
    ),
    AwsRefusal(
        id="nodes-disk",
        on=NODE_GROUP,
        condition="A disk size beside a launch template.",
        words="Disk size must be specified within the launch template.",
        source="https://github.com/crossplane-contrib/provider-upjet-aws/issues/866",
        judge="pf-eks-nodegroup-lt-forbids-disk-size",
        known_to=MOTO,
        check=lambda r: when(r.has("DiskSize") and r.has("LaunchTemplate")),
    ),
    AwsRefusal(
        id="nodes-remote-access",
        on=NODE_GROUP,
        condition="Access by SSH beside a launch template.",
        words="Remote access configuration cannot be specified with a launch template.",
        source=GUIDE + "launch-templates.html",
        judge="pf-eks-nodegroup-lt-forbids-remote-access",
        check=lambda r: when(r.has("RemoteAccess") and r.has("LaunchTemplate")),
    ),
    AwsRefusal(
        id="nodes-template-id-and-name",
        on=NODE_GROUP,
        condition="A launch template by id and name.",
        words="Either provide launch template ID or launch template name in the request.",
        source=API + "API_LaunchTemplateSpecification.html",
        judge="pf-eks-nodegroup-lt-id-xor-name",
        check=lambda r: when(r.has("LaunchTemplate.Id") and r.has("LaunchTemplate.Name")),
    ),
    AwsRefusal(
        id="nodes-image-without-template",
        on=NODE_GROUP,
        condition="An image of one's own that no template names.",
        words="Launch template details can't be null for Custom ami type node group",
        source=API + "API_CreateNodegroup.html",
        judge="pf-eks-nodegroup-custom-ami-type-needs-lt",
        check=_no_image_of_template,
    ),
    AwsRefusal(
        id="nodes-image-twice",
        on=NODE_GROUP,
        condition="An image of the template and one of EKS's own.",
        words="You cannot specify an AMI Type other than CUSTOM, when specifying an image id in "
        "your launch template.",
        source="https://github.com/rancher/eks-operator/pull/185",
        check=_both_images,
    ),
    AwsRefusal(
        id="nodes-image-and-version",
        on=NODE_GROUP,
        condition="An image of the template and a Kubernetes version.",
        words="You cannot specify a kubernetes version to use when specifying an image id to use "
        "within the launch template.",
        source="https://github.com/terraform-aws-modules/terraform-aws-eks/issues/3459",
        check=_version_of_image,
    ),
    AwsRefusal(
        id="nodes-user-data",
        on=NODE_GROUP,
        condition="User data of the template in one part, where EKS adds its own.",
        words="User data was not in the MIME multipart format.",
        source="https://github.com/terraform-aws-modules/terraform-aws-eks/issues/1875",
        check=_user_data,
    ),
    AwsRefusal(
        id="nodes-desired",
        on=NODE_GROUP,
        condition="More nodes desired than allowed.",
        words="desiredSize can't be greater than maxSize",
        source="https://github.com/ministryofjustice/cloud-platform-infrastructure/pull/4595",
        judge="pf-eks-nodegroup-scaling-desired-le-max",
        check=lambda r: when(_size(r, "DesiredSize") > _size(r, "MaxSize")),
    ),
    AwsRefusal(
        id="nodes-minimum",
        on=NODE_GROUP,
        condition="Fewer nodes desired than needed.",
        words="minSize can't be greater than desiredSize",
        source="https://github.com/sassoftware/viya4-iac-aws/issues/298",
        judge="pf-eks-nodegroup-scaling-min-le-desired",
        check=lambda r: when(_size(r, "MinSize") > _size(r, "DesiredSize")),
    ),
    AwsRefusal(
        id="nodes-release",
        on=NODE_GROUP,
        condition="An image of another Kubernetes version than the group's.",
        words="Requested release version {} is not valid for kubernetes version {}.",
        source="https://github.com/eksctl-io/eksctl/issues/7976",
        check=_release,
    ),
    AwsRefusal(
        id="nodes-mixed-update",
        on=NODE_GROUP,
        condition="A new version or image, or a new launch template and tags, with anything else.",
        words="Version and ReleaseVersion updates cannot be combined with other updates",
        source="https://github.com/aws/containers-roadmap/issues/1258 (of tags and a template: "
        "github.com/aws/aws-cdk/issues/16644); " + CFN + "aws-resource-eks-nodegroup.html "
        "(ReleaseVersion, Version)",
        check=_mixed_update,
    ),
    AwsRefusal(
        id="nodes-version",
        on=NODE_GROUP,
        condition="A version above the cluster's, or more than three below.",
        words="Cluster Kubernetes version {} supports the following Nodegroup Kubernetes versions: "
        "[{}]",
        source=API + "API_CreateNodegroup.html",
        judge="pf-eks-nodegroup-version-matches-cluster",
        check=_other_version,
    ),
    AwsRefusal(
        id="nodes-label",
        on=NODE_GROUP,
        condition="A label of Kubernetes' or EKS's own.",
        words="Label cannot start with reserved prefixes [kubernetes.io/, k8s.io/, "
        "eks.amazonaws.com/]",
        source="https://github.com/eksctl-io/eksctl/issues/4007",
        judge="pf-eks-nodegroup-label-reserved-prefix",
        check=lambda r: when(any(key.startswith(RESERVED_LABELS) for key in _labels(r))),
    ),
    AwsRefusal(
        id="nodes-label-key",
        on=NODE_GROUP,
        condition="A label's key that Kubernetes does not take.",
        words="field must consist of alphanumeric characters, '-', '_' or '.', and must start and "
        "end with an alphanumeric character",
        source=CFN + "aws-resource-eks-nodegroup.html",
        judge="pf-eks-nodegroup-label-key-format",
        check=lambda r: when(any(not _QUALIFIED.fullmatch(key) for key in _labels(r))),
    ),
    AwsRefusal(
        id="nodes-label-value",
        on=NODE_GROUP,
        condition="A label's value that Kubernetes does not take.",
        words="field must consist of alphanumeric characters, '-', '_' or '.', and must start and "
        "end with an alphanumeric character",
        source="https://github.com/aws-controllers-k8s/community/issues/2208",
        check=_label_values,
    ),
    AwsRefusal(
        id="nodes-taint-key",
        on=NODE_GROUP,
        condition="A taint's key that Kubernetes does not take.",
        # The beginning, as the pack quotes it: Kubernetes' own text (IsQualifiedName in
        # k8s.io/apimachinery) continues with examples and a regular expression.
        words="invalid taint spec: a qualified name must consist of alphanumeric characters, '-', "
        "'_' or '.', and must start and end with an alphanumeric character",
        verbatim=False,
        source=CFN + "aws-properties-eks-nodegroup-taint.html",
        judge="pf-eks-nodegroup-taint-key-format",
        check=_taint_keys,
    ),
    AwsRefusal(
        id="nodes-update-config",
        on=NODE_GROUP,
        condition="A number and a percentage of nodes that may be away.",
        words="Either provide max-unavailable or max-unavailable-percentage in the request.",
        source=API + "API_NodegroupUpdateConfig.html",
        judge="pf-eks-nodegroup-update-config-xor",
        check=_update_config,
    ),
    AwsRefusal(
        id="nodes-name",
        on=NODE_GROUP,
        condition="A name of more than 63 characters.",
        words="nodeGroupName can't be longer than 63 characters!",
        source=API + "API_CreateNodegroup.html",
        judge="pf-eks-nodegroup-name-length",
        check=lambda r: when(len(r.text("NodegroupName")) > 63),
    ),
)
