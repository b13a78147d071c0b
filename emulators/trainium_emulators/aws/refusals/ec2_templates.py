"""Refusals of EC2: launch templates and placement groups.

Faults that AWS would only report when an instance launches are refused with the template.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_emulators.aws.refusals.refusal import (
    LAUNCH_TEMPLATE,
    PLACEMENT_GROUP,
    AwsOutcome,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import (
    AwsRequest,
    duplicates,
    each,
    get,
    number,
    text,
    true,
)

API = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/"
CFN = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/"
GUIDE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/"

USER_DATA_BYTES = 16_384
GP3_IOPS = 3000
"""Default of a gp3 volume."""
_BURSTABLE = {"t2", "t3", "t3a", "t4g"}


def _data(request: AwsRequest) -> Any:
    return request.get("LaunchTemplateData", {})


def _interfaces(request: AwsRequest) -> list[Any]:
    return each(get(_data(request), "NetworkInterfaces"))


def user_data(data: Any) -> str:
    """Return user data as the host reads it: templates have the text, requests have base64."""
    given = get(data, "UserData")
    if not isinstance(given, str):
        return ""
    try:
        return base64.b64decode(given, validate=True).decode()
    except (binascii.Error, ValueError):
        return given


def _user_data(request: AwsRequest) -> Iterable[Fill]:
    return when(len(user_data(_data(request)).encode()) > USER_DATA_BYTES)


def _throughput(request: AwsRequest) -> Iterable[Fill]:
    for mapping in each(get(_data(request), "BlockDeviceMappings")):
        volume = get(mapping, "Ebs", {})
        if text(get(volume, "VolumeType")) != "gp3":
            continue
        ratio = number(get(volume, "Throughput")) / number(get(volume, "Iops"), GP3_IOPS)
        if ratio > 0.25:
            yield (f"{ratio:.6f}",)


def _public_address(request: AwsRequest) -> Iterable[Fill]:
    nics = _interfaces(request)
    return when(len(nics) > 1 and any(true(get(nic, "AssociatePublicIpAddress")) for nic in nics))


def _groups_beside_interfaces(request: AwsRequest) -> Iterable[Fill]:
    return when(bool(_interfaces(request)) and get(_data(request), "SecurityGroupIds") is not None)


def _is_efa(nic: Any) -> bool:
    return text(get(nic, "InterfaceType")).startswith("efa")


def _efa_unsupported(request: AwsRequest) -> Iterable[Fill]:
    kind = text(get(_data(request), "InstanceType"))
    known = INSTANCE_TYPES.get(kind)
    without = known is not None and known.num_efa_interfaces == 0
    burstable = kind.partition(".")[0] in _BURSTABLE
    return when((without or burstable) and any(map(_is_efa, _interfaces(request))), kind)


def _cards(request: AwsRequest) -> Iterable[Fill]:
    kind = text(get(_data(request), "InstanceType"))
    known = INSTANCE_TYPES.get(kind)
    if known is None:
        return
    for nic in _interfaces(request):
        card = number(get(nic, "NetworkCardIndex"), 0)
        if card >= known.num_network_cards:
            yield (int(card), kind)


def _same_slot(request: AwsRequest) -> Iterable[Fill]:
    slots = [
        (number(get(nic, "NetworkCardIndex"), 0), number(get(nic, "DeviceIndex"), 0))
        for nic in _interfaces(request)
    ]
    return [(int(card), int(device)) for card, device in duplicates(slots)]


def _primary_without_address(request: AwsRequest) -> Iterable[Fill]:
    return when(
        any(
            number(get(nic, "NetworkCardIndex"), 0) == 0
            and number(get(nic, "DeviceIndex"), 0) == 0
            and text(get(nic, "InterfaceType")) == "efa-only"
            for nic in _interfaces(request)
        )
    )


def _no_primary(request: AwsRequest) -> Iterable[Fill]:
    nics = _interfaces(request)
    return when(
        bool(nics)
        and all(
            number(get(nic, "NetworkCardIndex"), 0) > 0 or number(get(nic, "DeviceIndex"), 0) > 0
            for nic in nics
        )
    )


def _addresses_of_efa_only(request: AwsRequest) -> Iterable[Fill]:
    keys = {"PrivateIpAddress", "PrivateIpAddresses", "SecondaryPrivateIpAddressCount",
            "Ipv6AddressCount", "Ipv6Addresses", "AssociatePublicIpAddress"}  # fmt: skip
    return when(
        any(
            text(get(nic, "InterfaceType")) == "efa-only" and bool(keys & {*nic})
            for nic in _interfaces(request)
            if isinstance(nic, dict)
        )
    )


def _burstable_in_cluster(request: AwsRequest) -> Iterable[Fill]:
    kind = text(get(_data(request), "InstanceType"))
    group = request.account.find(PLACEMENT_GROUP, get(_data(request), "Placement.GroupName"))
    strategy = text(get(group, "Strategy"))
    return when(strategy == "cluster" and kind.partition(".")[0] in _BURSTABLE, kind)


def _block_without_reservation(request: AwsRequest) -> Iterable[Fill]:
    data = _data(request)
    market = text(get(data, "InstanceMarketOptions.MarketType"))
    target = get(data, "CapacityReservationSpecification.CapacityReservationTarget")
    return when(market == "capacity-block" and target is None)


def _block_unsold(request: AwsRequest) -> Iterable[Fill]:
    data = _data(request)
    kind = text(get(data, "InstanceType"))
    known = INSTANCE_TYPES.get(kind)
    wanted = text(get(data, "InstanceMarketOptions.MarketType")) == "capacity-block"
    return when(wanted and known is not None and not known.supports_capacity_block, kind)


ROWS = (
    AwsRefusal(
        id="template-user-data",
        on=LAUNCH_TEMPLATE,
        condition="User data of more than 16 KiB.",
        words="User data is limited to 16384 bytes.",
        source="https://github.com/github-aws-runners/terraform-aws-github-runner/issues/3700",
        judge="pf-ec2-userdata-size",
        check=_user_data,
    ),
    AwsRefusal(
        id="template-throughput",
        on=LAUNCH_TEMPLATE,
        condition="A gp3 volume with more than a quarter MiB/s for each operation a second.",
        words="Throughput (MiBps) to iops ratio of {} is too high; maximum is 0.250000 MiBps per "
        "iops",
        source="https://github.com/runs-on/runs-on/issues/260",
        check=_throughput,
    ),
    AwsRefusal(
        id="template-type-and-requirements",
        on=LAUNCH_TEMPLATE,
        condition="An instance type and requirements that choose one.",
        words="Either the instance type or the instance requirements can be specified in the "
        "request, but not both",
        source=CFN + "aws-resource-ec2-launchtemplate.html",
        judge="pf-ec2-instance-requirements-exclusive",
        check=lambda r: when(
            get(_data(r), "InstanceType") is not None
            and get(_data(r), "InstanceRequirements") is not None
        ),
    ),
    AwsRefusal(
        id="template-name",
        on=LAUNCH_TEMPLATE,
        condition="A name of other characters than letters, digits and ()./_-, or of 2 or 129.",
        words="Launch template names must be between 3 and 128 characters of letters, numbers and "
        "- ( ) . / _",
        verbatim=False,
        source=API + "API_CreateLaunchTemplate.html",
        judge="pf-ec2-launch-template-name",
        check=lambda r: when(
            bool(r.text("LaunchTemplateName"))
            and not re.fullmatch(r"[a-zA-Z0-9()./_-]{3,128}", r.text("LaunchTemplateName"))
        ),
    ),
    AwsRefusal(
        id="template-groups-beside-interfaces",
        on=LAUNCH_TEMPLATE,
        condition="Security groups of the instance beside interfaces, which have their own.",
        words="Network interfaces and an instance-level security groups may not be specified on "
        "the same request",
        source="https://github.com/pulumi/pulumi-aws/issues/2506",
        outcome=AwsOutcome.FAILS_LATER,
        check=_groups_beside_interfaces,
    ),
    AwsRefusal(
        id="template-public-address",
        on=LAUNCH_TEMPLATE,
        condition="A public address for an instance with several interfaces.",
        words="The associatePublicIPAddress parameter cannot be specified when launching with "
        "multiple network interfaces",
        source="https://github.com/zalando-incubator/kubernetes-on-aws/pull/8733",
        outcome=AwsOutcome.FAILS_LATER,
        check=_public_address,
    ),
    AwsRefusal(
        id="template-efa-unsupported",
        on=LAUNCH_TEMPLATE,
        condition="EFA on an instance type without it.",
        words="{} instances do not support Elastic Fabric Adapters.",
        source="https://github.com/devopsacademyau/academy/pull/277",
        outcome=AwsOutcome.FAILS_LATER,
        check=_efa_unsupported,
    ),
    AwsRefusal(
        id="template-network-card",
        on=LAUNCH_TEMPLATE,
        condition="An interface on a network card that the instance type does not have.",
        words="Network card index {} exceeds the limit for {}",
        verbatim=False,
        source=GUIDE + "using-eni.html#network-cards",
        outcome=AwsOutcome.FAILS_LATER,
        check=_cards,
    ),
    AwsRefusal(
        id="template-same-slot",
        on=LAUNCH_TEMPLATE,
        condition="Two interfaces at the same place of a network card.",
        words="Network card index {} has two interfaces with device index {}",
        verbatim=False,
        source=API + "API_LaunchTemplateInstanceNetworkInterfaceSpecificationRequest.html",
        outcome=AwsOutcome.FAILS_LATER,
        check=_same_slot,
    ),
    AwsRefusal(
        id="template-primary-efa-only",
        on=LAUNCH_TEMPLATE,
        condition="A primary interface without an address.",
        words="An EFA-only network interface can't be the primary network interface",
        verbatim=False,
        source=GUIDE + "efa.html",
        outcome=AwsOutcome.FAILS_LATER,
        check=_primary_without_address,
    ),
    AwsRefusal(
        id="template-efa-only-address",
        on=LAUNCH_TEMPLATE,
        condition="An address for an interface that takes none.",
        words="You can't assign an IP address to an EFA-only network interface",
        verbatim=False,
        source=GUIDE + "efa.html",
        outcome=AwsOutcome.FAILS_LATER,
        check=_addresses_of_efa_only,
    ),
    AwsRefusal(
        id="template-no-primary",
        on=LAUNCH_TEMPLATE,
        condition="Interfaces of which none is the primary one.",
        words="The primary network interface must be assigned to network card index 0 and device "
        "index 0",
        verbatim=False,
        source=GUIDE + "using-eni.html#network-cards",
        outcome=AwsOutcome.FAILS_LATER,
        check=_no_primary,
    ),
    AwsRefusal(
        id="template-burstable-in-cluster",
        on=LAUNCH_TEMPLATE,
        condition="A burstable type in a cluster placement group.",
        words="Cluster placement groups are not supported by the '{}' instance type. Specify a "
        "supported instance type or change the placement group strategy, and try again.",
        source="https://github.com/dstackai/dstack/issues/2872",
        outcome=AwsOutcome.FAILS_LATER,
        check=_burstable_in_cluster,
    ),
    AwsRefusal(
        id="template-block-without-reservation",
        on=LAUNCH_TEMPLATE,
        condition="A Capacity Block is asked for and none is named.",
        words="A Capacity Block needs a capacity reservation target",
        verbatim=False,
        source=GUIDE + "capacity-blocks-launch.html",
        outcome=AwsOutcome.FAILS_LATER,
        check=_block_without_reservation,
    ),
    AwsRefusal(
        id="template-block-unsold",
        on=LAUNCH_TEMPLATE,
        condition="A Capacity Block of an instance type that is not sold so.",
        words="Capacity Blocks are not supported by the '{}' instance type",
        verbatim=False,
        source=GUIDE + "ec2-capacity-blocks.html",
        outcome=AwsOutcome.FAILS_LATER,
        check=_block_unsold,
    ),
    AwsRefusal(
        id="placement-partitions",
        on=PLACEMENT_GROUP,
        condition="Partitions of a group that has another strategy.",
        words="partition-count is only available with the 'partition' strategy.",
        source=CFN + "aws-resource-ec2-placementgroup.html",
        judge="pf-ec2-placement-group-partition-count",
        check=lambda r: when(
            r.has("PartitionCount") and r.text("Strategy") not in ("", "partition")
        ),
    ),
    AwsRefusal(
        id="placement-spread",
        on=PLACEMENT_GROUP,
        condition="A level of spreading for a group that has another strategy.",
        words="spread-level is only available with the 'spread' or 'partition' strategy.",
        source=CFN + "aws-resource-ec2-placementgroup.html",
        judge="pf-ec2-placement-group-spread-level",
        check=lambda r: when(r.has("SpreadLevel") and r.text("Strategy") == "cluster"),
    ),
)
