"""Refusals of EC2: endpoints, addresses, routes, flow logs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from trainium_emulators.aws.refusals.refusal import (
    CFN_LINT,
    ENDPOINT,
    FLOW_LOG,
    GATEWAY_ATTACHMENT,
    MOTO,
    NAT_GATEWAY,
    ROUTE,
    SUBNET,
    VPC,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import AwsRequest, duplicates, false, get, text, true

CFN = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/"

_RESERVED = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4")
_TARGETS = {
    "GatewayId", "LocalGatewayId", "CarrierGatewayId", "NatGatewayId", "NetworkInterfaceId",
    "VpcPeeringConnectionId", "EgressOnlyInternetGatewayId", "TransitGatewayId", "VpcEndpointId",
    "CoreNetworkArn", "InstanceId",
}  # fmt: skip


def _gateway(request: AwsRequest) -> bool:
    return bool(request.get("VpcEndpointType", "Gateway") == "Gateway")


def _gateway_service(request: AwsRequest) -> Iterable[Fill]:
    parts = request.text("ServiceName").split(".")
    aws = len(parts) == 4 and parts[:2] == ["com", "amazonaws"]
    return when(_gateway(request) and aws and parts[3] not in ("s3", "dynamodb"))


def _other_region(request: AwsRequest) -> Iterable[Fill]:
    parts = request.text("ServiceName").split(".")
    regional = len(parts) >= 4 and re.fullmatch(r"[a-z]{2}(-[a-z]+)+-\d+", parts[2])
    return when(
        bool(regional) and parts[2] != request.account.region and not request.has("ServiceRegion"),
        request.text("ServiceName"),
    )


def zones(request: AwsRequest, subnets: Iterable[Any]) -> list[str]:
    """Return the zones of subnets as far as known, by id or else by name."""
    found = [request.account.find(SUBNET, subnet) for subnet in subnets]
    return [
        zone
        for subnet in found
        if (zone := text(get(subnet, "AvailabilityZoneId"))
            or text(get(subnet, "AvailabilityZone")))
    ]  # fmt: skip


def _endpoint_zones(request: AwsRequest) -> Iterable[Fill]:
    return when(
        not _gateway(request) and bool(duplicates(zones(request, request.each("SubnetIds"))))
    )


def _same_private_name(request: AwsRequest) -> Iterable[Fill]:
    if _gateway(request) or not true(request.get("PrivateDnsEnabled")):
        return []
    others = [
        other
        for other in request.account.all(ENDPOINT)
        if get(other, "VpcEndpointType") == "Interface"
        and true(get(other, "PrivateDnsEnabled"))
        and text(get(other, "ServiceName")) == request.text("ServiceName")
        and request.account.same(get(other, "VpcId"), request.get("VpcId"))
        and other is not request.properties
        and other != request.previous
    ]
    service = ".".join(reversed(request.text("ServiceName").split(".")[2:]))
    return when(bool(others), f"{service}.amazonaws.com")


def _without_dns(request: AwsRequest) -> Iterable[Fill]:
    vpc = request.find(VPC, "VpcId")
    if vpc is None or _gateway(request) or not true(request.get("PrivateDnsEnabled")):
        return []
    support = get(vpc, "EnableDnsSupport", True) in (False, "false")
    return when(support or false(get(vpc, "EnableDnsHostnames")))


def _vpc_reserved(request: AwsRequest) -> Iterable[Fill]:
    try:
        own = ipaddress.ip_network(request.text("CidrBlock"), strict=False)
    except ValueError:
        return []
    return when(any(own.overlaps(ipaddress.ip_network(r)) for r in _RESERVED), str(own))


def _second_gateway(request: AwsRequest) -> Iterable[Fill]:
    attached = [
        other
        for other in request.account.all(GATEWAY_ATTACHMENT)
        if get(other, "InternetGatewayId") is not None
        and request.account.same(get(other, "VpcId"), request.get("VpcId"))
        and other is not request.properties
    ]
    return when(request.has("InternetGatewayId") and bool(attached))


def _delivery(request: AwsRequest) -> Iterable[Fill]:
    kind = request.get("LogDestinationType", "cloud-watch-logs")
    return when(kind == "cloud-watch-logs" and not request.has("DeliverLogsPermissionArn"))


ROWS = (
    AwsRefusal(
        id="endpoint-gateway-service",
        on=ENDPOINT,
        condition="A gateway endpoint of another service than S3 and DynamoDB.",
        words="Endpoint type (Gateway) does not match available service types",
        source="https://docs.aws.amazon.com/vpc/latest/privatelink/gateway-endpoints.html",
        judge="pf-ec2-vpce-gateway-service",
        check=_gateway_service,
    ),
    AwsRefusal(
        id="endpoint-gateway-subnets",
        on=ENDPOINT,
        condition="Subnets for a gateway endpoint.",
        words="Subnet IDs are only supported for Interface and GatewayLoadBalancer type VPC "
        "Endpoints.",
        source=CFN + "aws-resource-ec2-vpcendpoint.html",
        judge="pf-ec2-vpce-type-config",
        check=lambda r: when(_gateway(r) and r.has("SubnetIds")),
    ),
    AwsRefusal(
        id="endpoint-region",
        on=ENDPOINT,
        condition="A service of another region.",
        words="The Vpc Endpoint Service '{}' does not exist",
        verbatim=False,
        source="https://docs.aws.amazon.com/vpc/latest/privatelink/"
        "privatelink-access-aws-services.html",
        judge="pf-ec2-vpce-service-region",
        check=_other_region,
    ),
    AwsRefusal(
        id="endpoint-zones",
        on=ENDPOINT,
        condition="Two subnets of one zone.",
        words="Found another VPC endpoint subnet in the availability zone of the subnet. VPC "
        "endpoint subnets should be in different availability zones supported by the VPC endpoint "
        "service.",
        source="https://github.com/terraform-aws-modules/terraform-aws-vpc/issues/583",
        check=_endpoint_zones,
    ),
    AwsRefusal(
        id="endpoint-private-name-taken",
        on=ENDPOINT,
        condition="A second endpoint with the private name of a service.",
        words="private-dns-enabled cannot be set because there is already a conflicting DNS domain "
        "for {} in the VPC",
        source="https://github.com/hashicorp/terraform-provider-aws/issues/17535",
        known_to=CFN_LINT,
        check=_same_private_name,
    ),
    AwsRefusal(
        id="endpoint-without-dns",
        on=ENDPOINT,
        condition="A private name in a VPC that resolves none.",
        words="Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC "
        "attributes set to true",
        verbatim=False,
        source="https://docs.aws.amazon.com/vpc/latest/privatelink/"
        "privatelink-access-aws-services.html",
        check=_without_dns,
    ),
    AwsRefusal(
        id="vpc-reserved-range",
        on=VPC,
        condition="Addresses that mean something else.",
        words="The CIDR '{}' is invalid.",
        source=CFN + "aws-resource-ec2-vpc.html",
        judge="pf-ec2-vpc-cidr-reserved-range",
        check=_vpc_reserved,
    ),
    AwsRefusal(
        id="vpc-second-gateway",
        on=GATEWAY_ATTACHMENT,
        condition="A second internet gateway.",
        words="The VPC already has an internet gateway attached",
        verbatim=False,
        source=CFN + "aws-resource-ec2-vpcgatewayattachment.html",
        judge="pf-ec2-vpc-single-igw",
        known_to=MOTO,
        check=_second_gateway,
    ),
    AwsRefusal(
        id="route-targets",
        on=ROUTE,
        condition="A route to nowhere, or to two places.",
        words="The request must contain exactly one of gatewayId, natGatewayId and the other "
        "targets",
        verbatim=False,
        source=CFN + "aws-resource-ec2-route.html",
        judge="pf-ec2-route-target-exactly-one",
        check=lambda r: when(len(_TARGETS & {*r.properties}) != 1),
    ),
    AwsRefusal(
        id="flow-log-interval",
        on=FLOW_LOG,
        condition="An interval of other than 60 or 600 seconds.",
        words="Invalid Flow Log Max Aggregation Interval.",
        source=CFN + "aws-resource-ec2-flowlog.html",
        judge="pf-ec2-flow-log-aggregation-interval",
        known_to=MOTO,
        check=lambda r: when(
            r.has("MaxAggregationInterval") and r.number("MaxAggregationInterval") not in (60, 600)
        ),
    ),
    AwsRefusal(
        id="flow-log-role",
        on=FLOW_LOG,
        condition="A flow log in CloudWatch Logs without a role that may write it.",
        words="DeliverLogsPermissionArn can't be empty if LogDestinationType is cloud-watch-logs.",
        source=CFN + "aws-resource-ec2-flowlog.html",
        judge="pf-ec2-flow-log-destination-config",
        known_to=MOTO,
        check=_delivery,
    ),
    AwsRefusal(
        id="nat-without-address",
        on=NAT_GATEWAY,
        condition="A public gateway without an address.",
        words="The request must include the AllocationId parameter.",
        source=CFN + "aws-resource-ec2-natgateway.html",
        judge="pf-ec2-natgw-allocation",
        known_to=MOTO,
        check=lambda r: when(
            r.get("ConnectivityType", "public") == "public" and not r.has("AllocationId")
        ),
    ),
    AwsRefusal(
        id="nat-private-address",
        on=NAT_GATEWAY,
        condition="A private gateway with a public address.",
        words="AllocationId cannot be specified for a NAT Gateway with Connectivity Type private.",
        source=CFN + "aws-resource-ec2-natgateway.html",
        judge="pf-ec2-natgw-allocation",
        check=lambda r: when(r.text("ConnectivityType") == "private" and r.has("AllocationId")),
    ),
)
