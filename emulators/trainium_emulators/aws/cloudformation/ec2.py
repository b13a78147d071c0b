"""Models EC2: placement groups, security-group rules, zone ids, and deletes that moto lacks."""

from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.core.responses import ActionResult
from moto.ec2 import ec2_backends
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.responses import EC2Response

from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    ModeledResource,
    Properties,
    PropertyChange,
)

PLACEMENT_GROUPS: dict[AccountRegion, dict[str, str]] = {}
"""Strategy of each placement group by account, region and name; moto has no backend for them."""


def _backend(place: AccountRegion) -> Any:
    return ec2_backends[place.account_id][place.region]


def _create_placement_group(
    name: str, properties: Properties, place: AccountRegion
) -> ModeledResource:
    """AWS::EC2::PlacementGroup."""
    PLACEMENT_GROUPS.setdefault(place, {})[name] = properties["Strategy"]
    return ModeledResource(name, {"GroupName": name})


def _delete_placement_group(group: Any, _: Properties, place: AccountRegion) -> None:
    del PLACEMENT_GROUPS[place][group.physical_resource_id]


def describe_placement_groups(response: EC2Response) -> ActionResult:
    """DescribePlacementGroups; moto's response is an error that no client can parse."""
    place = AccountRegion(account_id=response.current_account, region=response.region)
    groups = [
        {
            "GroupName": name,
            "GroupId": f"pg-{index:017x}",
            "Strategy": strategy,
            "State": "available",
        }
        for index, (name, strategy) in enumerate(PLACEMENT_GROUPS.get(place, {}).items())
    ]
    return ActionResult({"PlacementGroups": groups})


# --- security groups -----------------------------------------------------------------------------


def _rule(properties: Properties, peer: str) -> dict[str, Any]:
    """Return the arguments for moto to authorize or revoke one rule."""
    group = properties.get(peer)
    ranges = [{"CidrIp": properties["CidrIp"]}] if "CidrIp" in properties else []
    return {
        "ip_protocol": str(properties["IpProtocol"]),
        "from_port": properties.get("FromPort"),
        "to_port": properties.get("ToPort"),
        "ip_ranges": ranges,
        "source_groups": [{"GroupId": group}] if group else [],
    }


def _create_egress(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::EC2::SecurityGroupEgress."""
    group_id = properties["GroupId"]
    _revoke_default_egress(group_id, place)
    _backend(place).authorize_security_group_egress(
        group_id, **_rule(properties, "DestinationSecurityGroupId")
    )
    return ModeledResource(name)


_ALL_TRAFFIC = {"IpProtocol": "-1"}
_ALLOW_ALL = {**_ALL_TRAFFIC, "CidrIp": "0.0.0.0/0"}


def _revoke_default_egress(group_id: str, place: AccountRegion) -> None:
    """Remove EC2's allow-all rule, as any explicit rule does (aws/aws-cdk issues 987, 15297)."""
    group = _backend(place).get_security_group_from_id(group_id)
    if _allows_all(group):
        _backend(place).revoke_security_group_egress(group_id, **_rule(_ALLOW_ALL, ""))


def _allows_all(group: Any) -> bool:
    return any(
        rule.ip_protocol == "-1" and (rule.ip_range or {}).get("CidrIp") == "0.0.0.0/0"
        for rule in group.egress_rules
    )


def _allow_traffic_within_default_group(vpc: Any, _: Properties, place: AccountRegion) -> None:
    """Allow traffic within a default security group, as EC2 does; moto's group allows none.

    docs.aws.amazon.com/vpc/latest/userguide/default-security-group.html
    """
    backend = _backend(place)
    group = backend.get_security_group_from_name("default", vpc_id=vpc.id)
    itself = {**_ALL_TRAFFIC, "SourceSecurityGroupId": group.id}
    backend.authorize_security_group_ingress(group.id, **_rule(itself, "SourceSecurityGroupId"))


def _delete_egress(_: Any, properties: Properties, place: AccountRegion) -> None:
    _backend(place).revoke_security_group_egress(
        properties["GroupId"], **_rule(properties, "DestinationSecurityGroupId")
    )


def _delete_ingress(_: Any, properties: Properties, place: AccountRegion) -> None:
    _backend(place).revoke_security_group_ingress(
        properties["GroupId"], **_rule(properties, "SourceSecurityGroupId")
    )


def _apply_inline_egress(group: Any, properties: Properties, place: AccountRegion) -> None:
    """Apply inline egress rules: moto ignores them and adds the allow-all rule they replace."""
    if "SecurityGroupEgress" not in properties:
        return
    backend = _backend(place)
    backend.revoke_security_group_egress(group.id, **_rule(_ALLOW_ALL, ""))
    for rule in properties["SecurityGroupEgress"]:
        backend.authorize_security_group_egress(
            group.id, **_rule(rule, "DestinationSecurityGroupId")
        )


def _update_group(group: Any, change: PropertyChange, place: AccountRegion) -> Any:
    """Update the rules in both directions; any other change replaces a group on AWS."""
    change.refuse_others(
        "AWS::EC2::SecurityGroup",
        frozenset({"SecurityGroupEgress", "SecurityGroupIngress", "Tags"}),
    )
    backend = _backend(place)
    for rule in group.rehearsal_properties.get("SecurityGroupIngress", []):
        backend.revoke_security_group_ingress(group.id, **_rule(rule, "SourceSecurityGroupId"))
    for rule in change.properties.get("SecurityGroupIngress", []):
        backend.authorize_security_group_ingress(group.id, **_rule(rule, "SourceSecurityGroupId"))
    for rule in group.rehearsal_properties.get("SecurityGroupEgress", [_ALLOW_ALL]):
        backend.revoke_security_group_egress(group.id, **_rule(rule, "DestinationSecurityGroupId"))
    # Add the allow-all rule as at creation; _apply_inline_egress removes it if the template has
    # rules of its own.
    backend.authorize_security_group_egress(group.id, **_rule(_ALLOW_ALL, ""))
    return group


# --- the network ---------------------------------------------------------------------------------


def _resolve_zone_id(properties: Properties, place: AccountRegion) -> None:
    """Translate a zone id to a name, the only form that moto's model reads."""
    zone_id = properties.pop("AvailabilityZoneId", None)
    if zone_id is None:
        return
    zones = RegionsAndZonesBackend.zones[place.region]
    names = {zone.zone_id: zone.name for zone in zones}
    if zone_id not in names:
        raise ValidationError(message=f"{zone_id} is not a zone of {place.region}")
    properties["AvailabilityZone"] = names[zone_id]


def _delete_route(route: Any, properties: Properties, place: AccountRegion) -> None:
    _backend(place).delete_route(properties["RouteTableId"], properties["DestinationCidrBlock"])


def _disassociate_route_table(_: Any, properties: Properties, place: AccountRegion) -> None:
    backend = _backend(place)
    table = backend.get_route_table(properties["RouteTableId"])
    for association_id, subnet_id in list(table._associations.items()):
        if subnet_id == properties["SubnetId"]:
            backend.disassociate_route_table(association_id)


def _delete_vpc(vpc: Any, _: Properties, place: AccountRegion) -> None:
    """Delete a VPC with its default network ACL, as EC2 does and moto does not."""
    backend = _backend(place)
    backend.delete_vpc(vpc.id)
    for acl in [acl for acl in backend.network_acls.values() if acl.vpc_id == vpc.id]:
        backend.network_acls.pop(acl.id)


def _delete_nat_gateway(gateway: Any, _: Properties, place: AccountRegion) -> None:
    backend = _backend(place)
    backend.delete_nat_gateway(gateway.id)
    # EC2 deletes the gateway's interface with it; moto does not.
    eni = gateway._eni
    for address in backend.addresses:
        if address.eni is eni:
            address.eni = None
            address.association_id = None
    backend.enis.pop(eni.id, None)


def _detach_gateway(_: Any, properties: Properties, place: AccountRegion) -> None:
    _backend(place).detach_internet_gateway(properties["InternetGatewayId"], properties["VpcId"])


def _delete_flow_log(log: Any, _: Properties, place: AccountRegion) -> None:
    _backend(place).delete_flow_logs([log.physical_resource_id])


CONTRIBUTION = Contribution(
    create={
        "AWS::EC2::PlacementGroup": _create_placement_group,
        "AWS::EC2::SecurityGroupEgress": _create_egress,
    },
    before={"AWS::EC2::Subnet": _resolve_zone_id},
    after={
        "AWS::EC2::SecurityGroup": _apply_inline_egress,
        "AWS::EC2::VPC": _allow_traffic_within_default_group,
    },
    update={"AWS::EC2::SecurityGroup": _update_group},
    delete={
        "AWS::EC2::PlacementGroup": _delete_placement_group,
        "AWS::EC2::SecurityGroupEgress": _delete_egress,
        "AWS::EC2::SecurityGroupIngress": _delete_ingress,
        "AWS::EC2::Route": _delete_route,
        "AWS::EC2::RouteTable": lambda table, _, place: _backend(place).delete_route_table(
            table.id
        ),
        "AWS::EC2::SubnetRouteTableAssociation": _disassociate_route_table,
        "AWS::EC2::NatGateway": _delete_nat_gateway,
        "AWS::EC2::EIP": lambda address, _, place: _backend(place).release_address(
            allocation_id=address.allocation_id
        ),
        "AWS::EC2::VPCGatewayAttachment": _detach_gateway,
        "AWS::EC2::InternetGateway": lambda gateway, _, place: _backend(
            place
        ).delete_internet_gateway(gateway.id),
        "AWS::EC2::VPCEndpoint": lambda endpoint, _, place: _backend(place).delete_vpc_endpoints(
            [endpoint.id]
        ),
        "AWS::EC2::FlowLog": _delete_flow_log,
        "AWS::EC2::VPC": _delete_vpc,
    },
)
