"""Refusals of EKS: clusters."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from trainium_catalogue.eks import KUBERNETES_VERSIONS
from trainium_emulators.aws.refusals.ec2_network import zones
from trainium_emulators.aws.refusals.refusal import (
    CLUSTER,
    KEY,
    SECURITY_GROUP,
    SUBNET,
    AwsOutcome,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import AwsRequest, each, false, get, text, texts, true

API = "https://docs.aws.amazon.com/eks/latest/APIReference/"
GUIDE = "https://docs.aws.amazon.com/eks/latest/userguide/"
CFN = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/"

WITHOUT_CONTROL_PLANE = {"use1-az3", "usw1-az2", "cac1-az3"}
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")


def _one_zone(request: AwsRequest) -> Iterable[Fill]:
    subnets = request.get("ResourcesVpcConfig.SubnetIds")
    known = zones(request, each(subnets))
    if not isinstance(subnets, list) or (len(subnets) > 1 and len(known) < len(subnets)):
        return []
    return when(len(subnets) == 1 or len(set(known)) == 1)


def _bad_zone(request: AwsRequest) -> Iterable[Fill]:
    for zone in zones(request, request.each("ResourcesVpcConfig.SubnetIds")):
        if zone in WITHOUT_CONTROL_PLANE:
            yield (zone,)


def _other_vpc(request: AwsRequest) -> Iterable[Fill]:
    def vpcs(kind: str, path: str) -> list[Any]:
        found = [request.account.find(kind, value) for value in request.each(path)]
        return [get(entry, "VpcId") for entry in found if entry is not None]

    ours = vpcs(SUBNET, "ResourcesVpcConfig.SubnetIds")
    groups = vpcs(SECURITY_GROUP, "ResourcesVpcConfig.SecurityGroupIds")
    return when(
        bool(ours)
        and any(
            type(group) is type(ours[0]) and not request.account.same(group, ours[0])
            for group in groups
        )
    )


def _auto_mode(request: AwsRequest) -> Iterable[Fill]:
    switches = [
        request.get("ComputeConfig.Enabled"),
        request.get("KubernetesNetworkConfig.ElasticLoadBalancing.Enabled"),
        request.get("StorageConfig.BlockStorage.Enabled"),
    ]
    on, off = [true(value) for value in switches], [false(value) for value in switches]
    return when(any(on) and any(off))


def _self_managed(request: AwsRequest) -> Iterable[Fill]:
    enabled = true(request.get("ComputeConfig.Enabled"))
    return when(enabled and request.get("BootstrapSelfManagedAddons", True) in (True, "true"))


def _closed(request: AwsRequest) -> Iterable[Fill]:
    network = "ResourcesVpcConfig."
    private = false(request.get(network + "EndpointPrivateAccess"))
    return when(private and request.get(network + "EndpointPublicAccess") in (False, "false"))


def _unread_cidrs(request: AwsRequest) -> Iterable[Fill]:
    network = "ResourcesVpcConfig."
    off = request.get(network + "EndpointPublicAccess") in (False, "false")
    return when(off and request.has(network + "PublicAccessCidrs"))


def _service_range(request: AwsRequest) -> Any:
    try:
        return ipaddress.ip_network(
            request.text("KubernetesNetworkConfig.ServiceIpv4Cidr"), strict=False
        )
    except ValueError:
        return None


def _service_size(request: AwsRequest) -> Iterable[Fill]:
    own = _service_range(request)
    return when(own is not None and not 12 <= own.prefixlen <= 24, own)


def _service_public(request: AwsRequest) -> Iterable[Fill]:
    own = _service_range(request)
    return when(
        own is not None and not any(own.subnet_of(ipaddress.ip_network(p)) for p in _PRIVATE), own
    )


def _wrong_key(request: AwsRequest) -> Iterable[Fill]:
    for entry in request.each("EncryptionConfig"):
        key = request.account.find(KEY, get(entry, "Provider.KeyArn"))
        if text(get(key, "KeySpec")) not in ("", "SYMMETRIC_DEFAULT"):
            yield ()


def minor(version: Any) -> int:
    """Return the minor version of Kubernetes, or -1."""
    major, _, minor = text(version).partition(".")
    return int(minor) if major == "1" and minor.isdigit() else -1


def _version_step(request: AwsRequest) -> Iterable[Fill]:
    before, after = get(request.previous, "Version"), request.get("Version")
    old, new = minor(before), minor(after)
    return when(old > 0 < new and new - old not in (0, 1), before, after)


def _authentication_step(request: AwsRequest) -> Iterable[Fill]:
    modes = ["CONFIG_MAP", "API_AND_CONFIG_MAP", "API"]
    path = "AccessConfig.AuthenticationMode"
    before, after = get(request.previous, path), request.get(path)
    if before not in modes or after not in modes:
        return []
    return when(modes.index(after) < modes.index(before), before, after)


ROWS = (
    AwsRefusal(
        id="cluster-zones",
        on=CLUSTER,
        condition="Subnets in one zone.",
        words="Subnets specified must be in at least two different AZs",
        source="https://github.com/awsdocs/amazon-eks-user-guide/pull/795",
        judge="pf-eks-cluster-subnets-two-azs",
        check=_one_zone,
    ),
    AwsRefusal(
        id="cluster-zone",
        on=CLUSTER,
        condition="A subnet in a zone where no control plane can be.",
        words="Cannot create cluster because {}, the targeted availability zone, does not "
        "currently have sufficient capacity to support the cluster",
        verbatim=False,
        source=GUIDE + "network-reqs.html",
        check=_bad_zone,
    ),
    AwsRefusal(
        id="cluster-vpc",
        on=CLUSTER,
        condition="Security groups of another VPC than the subnets'.",
        words="Security group(s) are not (in/associated to) the same VPC as the subnets",
        source=CFN + "aws-properties-eks-cluster-resourcesvpcconfig.html",
        judge="pf-eks-cluster-sg-and-subnets-same-vpc",
        check=_other_vpc,
    ),
    AwsRefusal(
        id="cluster-auto-mode",
        on=CLUSTER,
        condition="A part of Auto Mode.",
        words="For EKS Auto Mode, please ensure that all required configs, including "
        "computeConfig, kubernetesNetworkConfig, and blockStorage are all either fully enabled or "
        "fully disabled.",
        source="https://github.com/kubernetes-sigs/cluster-api-provider-aws/issues/5278",
        judge="pf-eks-cluster-automode-all-three",
        check=_auto_mode,
    ),
    AwsRefusal(
        id="cluster-self-managed-addons",
        on=CLUSTER,
        condition="Auto Mode and add-ons of the cluster's own.",
        words="When EKS Auto Mode is enabled, bootstrapSelfManagedAddons must be set to false",
        verbatim=False,
        source="https://github.com/aws/aws-cdk/pull/33373",
        check=_self_managed,
    ),
    AwsRefusal(
        id="cluster-auto-mode-access",
        on=CLUSTER,
        condition="Auto Mode without access entries.",
        words="When EKS Auto Mode is enabled, you must use an EKS access config authentication "
        "mode of API_AND_CONFIG_MAP or API",
        source=GUIDE + "automode.html",
        judge="pf-eks-cluster-automode-requires-api-auth",
        check=lambda r: when(
            true(r.get("ComputeConfig.Enabled"))
            and r.get("AccessConfig.AuthenticationMode", "CONFIG_MAP") == "CONFIG_MAP"
        ),
    ),
    AwsRefusal(
        id="cluster-endpoints",
        on=CLUSTER,
        condition="Neither endpoint.",
        words="Private and public endpoint access cannot be false",
        source=CFN + "aws-properties-eks-cluster-resourcesvpcconfig.html",
        judge="pf-eks-cluster-endpoint-both-disabled",
        check=_closed,
    ),
    AwsRefusal(
        id="cluster-ignores-cidrs",
        on=CLUSTER,
        condition="Addresses that may reach a public endpoint which is off.",
        words="publicAccessCidrs has no effect while the public endpoint is off",
        verbatim=False,
        outcome=AwsOutcome.IGNORED,
        source="https://github.com/pulumi/pulumi-eks/issues/1436",
        check=_unread_cidrs,
    ),
    AwsRefusal(
        id="cluster-version",
        on=CLUSTER,
        condition="A version with its patch number, or one that is gone.",
        words="unsupported Kubernetes version {}",
        source=GUIDE + "kubernetes-versions.html",
        judge="pf-eks-cluster-version-unsupported",
        check=lambda r: when(
            bool(r.text("Version"))
            and (
                not re.fullmatch(r"1\.\d+", r.text("Version"))
                or minor(r.get("Version")) < min(map(minor, KUBERNETES_VERSIONS)) - 4
            ),
            r.text("Version"),
        ),
    ),
    AwsRefusal(
        id="cluster-version-step",
        on=CLUSTER,
        condition="An update by more than one minor version, or back.",
        words="Unsupported Kubernetes minor version update from {} to {}",
        source="https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2607",
        check=_version_step,
    ),
    AwsRefusal(
        id="cluster-authentication-step",
        on=CLUSTER,
        condition="Back from access entries to the config map.",
        words="Unsupported authentication mode update from {} to {}",
        verbatim=False,
        source=GUIDE + "setting-up-access-entries.html",
        check=_authentication_step,
    ),
    AwsRefusal(
        id="cluster-service-range-size",
        on=CLUSTER,
        condition="Addresses of services in a range of other than /12 to /24.",
        words="serviceIpv4Cidr {} must have netmask size between /12 and /24 inclusive",
        verbatim=False,
        source=API + "API_KubernetesNetworkConfigRequest.html",
        judge="pf-eks-cluster-service-ipv4-cidr-prefix-range",
        check=_service_size,
    ),
    AwsRefusal(
        id="cluster-service-range-public",
        on=CLUSTER,
        condition="Addresses of services in a public range.",
        words="serviceIpv4Cidr {} must be within RFC1918 range",
        verbatim=False,
        source=API + "API_KubernetesNetworkConfigRequest.html",
        judge="pf-eks-cluster-service-ipv4-cidr-private-range",
        check=_service_public,
    ),
    AwsRefusal(
        id="cluster-encrypted-resources",
        on=CLUSTER,
        condition="Encryption of something else than secrets.",
        words="Invalid k8s resource for encryption",
        source=API + "API_EncryptionConfig.html",
        judge="pf-eks-cluster-encryption-resources-secrets-only",
        check=lambda r: when(
            any(
                resource != "secrets"
                for entry in r.each("EncryptionConfig")
                for resource in texts(get(entry, "Resources"))
            )
        ),
    ),
    AwsRefusal(
        id="cluster-key",
        on=CLUSTER,
        condition="Encryption by a key that is not symmetric.",
        words="The KMS key of encryptionConfig must be symmetric",
        verbatim=False,
        source=API + "API_Provider.html",
        check=_wrong_key,
    ),
)
