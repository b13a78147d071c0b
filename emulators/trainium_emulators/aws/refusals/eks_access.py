"""Refusals of EKS: a cluster's members: access entries, add-ons, pod identities."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainium_emulators.aws.refusals.refusal import (
    ACCESS_ENTRY,
    ADDON,
    CFN_LINT,
    CLUSTER,
    POD_IDENTITY,
    ROLE,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import AwsRequest, each, get, text, texts

API = "https://docs.aws.amazon.com/eks/latest/APIReference/"
GUIDE = "https://docs.aws.amazon.com/eks/latest/userguide/"
CFN = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/"

RESERVED_NAMES = ("system:", "eks:", "aws:", "amazon:", "iam:")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def _node_entry(request: AwsRequest) -> bool:
    return request.text("Type") in ("EC2_LINUX", "EC2_WINDOWS")


def _reserved_groups(request: AwsRequest) -> Iterable[Fill]:
    for group in texts(request.get("KubernetesGroups")):
        for prefix in RESERVED_NAMES:
            if group.startswith(prefix):
                yield (group, prefix)


def _policy_arns(request: AwsRequest) -> Iterable[Fill]:
    arns = [text(get(entry, "PolicyArn")) for entry in request.each("AccessPolicies")]
    form = re.compile(r"arn:[^:]+:eks::aws:cluster-access-policy/.+")
    return when(any(arn and not form.fullmatch(arn) for arn in arns))


def _scopes(request: AwsRequest) -> list[Any]:
    return [get(entry, "AccessScope", {}) for entry in request.each("AccessPolicies")]


def _configuration_mode(request: AwsRequest) -> Iterable[Fill]:
    cluster = request.find(CLUSTER, "ClusterName")
    mode = get(cluster, "AccessConfig.AuthenticationMode", "CONFIG_MAP")
    return when(cluster is not None and mode == "CONFIG_MAP")


def _siblings(request: AwsRequest, kind: str) -> list[Mapping[str, Any]]:
    return [
        other
        for other in request.account.all(kind)
        if other is not request.properties
        and other != request.previous
        and request.account.same(get(other, "ClusterName"), request.get("ClusterName"))
    ]


def _entry_twice(request: AwsRequest) -> Iterable[Fill]:
    own = request.get("PrincipalArn")
    return when(
        any(
            request.account.same(get(e, "PrincipalArn"), own)
            for e in _siblings(request, ACCESS_ENTRY)
        )
    )


def _addon_twice(request: AwsRequest) -> Iterable[Fill]:
    own = request.text("AddonName")
    return when(any(text(get(e, "AddonName")) == own for e in _siblings(request, ADDON)))


def _identity_twice(request: AwsRequest) -> Iterable[Fill]:
    own = (request.text("Namespace"), request.text("ServiceAccount"))
    return when(
        any(
            own == (text(get(e, "Namespace")), text(get(e, "ServiceAccount")))
            for e in _siblings(request, POD_IDENTITY)
        )
    )


def _configuration(request: AwsRequest) -> Iterable[Fill]:
    given = request.text("ConfigurationValues")
    if not given.startswith('{"'):  # YAML is accepted too
        return []
    try:
        json.loads(given)
    except ValueError:
        return when(True)
    return []


def _trust(request: AwsRequest) -> Iterable[Fill]:
    role = request.find(ROLE, "RoleArn")
    if role is None:
        return []
    for statement in each(get(role, "AssumeRolePolicyDocument.Statement")):
        services = texts(get(statement, "Principal.Service"))
        actions = {*texts(get(statement, "Action"))}
        if "pods.eks.amazonaws.com" in services and {"sts:AssumeRole", "sts:TagSession"} <= actions:
            return []
    return when(True)


ROWS = (
    AwsRefusal(
        id="entry-group",
        on=ACCESS_ENTRY,
        condition="A group of Kubernetes' or AWS's own.",
        words="The kubernetes group name {} is invalid, it cannot start with {}",
        source="https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2915",
        judge="pf-eks-accessentry-groups-reserved-prefix",
        check=_reserved_groups,
    ),
    AwsRefusal(
        id="entry-groups-of-nodes",
        on=ACCESS_ENTRY,
        condition="Groups for a node, which has its own.",
        words="The specified kubernetesGroups is invalid: setting kubernetesGroups is not allowed "
        'when the type is "{}"',
        source=CFN + "aws-resource-eks-accessentry.html",
        judge="pf-eks-accessentry-node-type-forbids-groups",
        check=lambda r: when(
            _node_entry(r) and bool(texts(r.get("KubernetesGroups"))), r.text("Type")
        ),
    ),
    AwsRefusal(
        id="entry-policies-of-nodes",
        on=ACCESS_ENTRY,
        condition="Access policies for a node.",
        words='This operation can only be performed on Access Entries with a type of "STANDARD".',
        verbatim=False,
        source=CFN + "aws-resource-eks-accessentry.html",
        judge="pf-eks-accessentry-node-type-forbids-policies",
        check=lambda r: when(_node_entry(r) and bool(r.each("AccessPolicies"))),
    ),
    AwsRefusal(
        id="entry-name",
        on=ACCESS_ENTRY,
        condition="A user name of Kubernetes' or AWS's own.",
        words="The username must not begin with {}",
        source="https://github.com/aws-ia/terraform-aws-eks-blueprints/pull/1920",
        judge="pf-eks-accessentry-username-reserved-prefix",
        check=lambda r: [
            (prefix,) for prefix in RESERVED_NAMES if r.text("Username").startswith(prefix)
        ],
    ),
    AwsRefusal(
        id="entry-policy",
        on=ACCESS_ENTRY,
        condition="A policy of IAM, where one of EKS's is meant.",
        words="The policyArn parameter format is not valid",
        source=GUIDE + "access-policies.html",
        judge="pf-eks-accessentry-policy-arn-form",
        check=_policy_arns,
    ),
    AwsRefusal(
        id="entry-service-role",
        on=ACCESS_ENTRY,
        condition="A role that a service made for itself.",
        words="The caller is not allowed to modify access entries with a principalArn value of a "
        "Service Linked Role",
        source="https://github.com/hashicorp/terraform-provider-aws/issues/36447",
        judge="pf-eks-accessentry-principal-arn-service-linked-role",
        check=lambda r: when(":role/aws-service-role/" in r.text("PrincipalArn")),
    ),
    AwsRefusal(
        id="entry-scope-of-cluster",
        on=ACCESS_ENTRY,
        condition="Namespaces for a policy on the whole cluster.",
        words="accessScope should not include namespaces if the type is not set as namespace",
        source=API + "API_AccessScope.html",
        judge="pf-eks-accessentry-scope-cluster-forbids-namespaces",
        check=lambda r: when(
            any(
                text(get(scope, "Type")) == "cluster" and bool(get(scope, "Namespaces"))
                for scope in _scopes(r)
            )
        ),
    ),
    AwsRefusal(
        id="entry-scope-of-namespace",
        on=ACCESS_ENTRY,
        condition="A policy on namespaces that names none.",
        words="At least 1 namespace must be provided if the type is set as namespace",
        source=API + "API_AccessScope.html",
        judge="pf-eks-accessentry-scope-namespace-requires-namespaces",
        check=lambda r: when(
            any(
                text(get(scope, "Type")) == "namespace" and not get(scope, "Namespaces")
                for scope in _scopes(r)
            )
        ),
    ),
    AwsRefusal(
        id="entry-mode",
        on=ACCESS_ENTRY,
        condition="A cluster that knows only its config map.",
        words="The cluster's authentication mode must be set to one of [API, "
        "API_AND_CONFIG_MAP] to perform this operation.",
        source=GUIDE + "setting-up-access-entries.html",
        judge="pf-eks-accessentry-requires-api-auth-mode",
        check=_configuration_mode,
    ),
    AwsRefusal(
        id="entry-twice",
        on=ACCESS_ENTRY,
        condition="A second entry for a principal.",
        words="The specified access entry resource is already in use on this cluster.",
        verbatim=False,
        source=API + "API_CreateAccessEntry.html",
        known_to=CFN_LINT,
        check=_entry_twice,
    ),
    AwsRefusal(
        id="addon-configuration",
        on=ADDON,
        condition="Values that are no JSON, though they begin so.",
        words="The ConfigurationValues provided is not in valid YAML or JSON format.",
        source=CFN + "aws-resource-eks-addon.html",
        judge="pf-eks-addon-configuration-values-json",
        check=_configuration,
    ),
    AwsRefusal(
        id="addon-version",
        on=ADDON,
        condition="A version of another form than v1.2.3-eksbuild.4.",
        words="Addon version specified is not supported",
        source=API + "API_CreateAddon.html",
        judge="pf-eks-addon-version-format",
        check=lambda r: when(
            bool(r.text("AddonVersion"))
            and not re.fullmatch(r"v\d+\.\d+\.\d+-eksbuild\.[0-9A-Za-z]+", r.text("AddonVersion"))
        ),
    ),
    AwsRefusal(
        id="addon-twice",
        on=ADDON,
        condition="The same add-on twice.",
        words="Addon already exists.",
        source=API + "API_CreateAddon.html",
        known_to=CFN_LINT,
        check=_addon_twice,
    ),
    AwsRefusal(
        id="identity-trust",
        on=POD_IDENTITY,
        condition="A role that pods cannot take, or not with their tags.",
        words="Trust policy of the role provided is invalid",
        source="https://github.com/hashicorp/terraform-provider-aws/issues/41483",
        check=_trust,
    ),
    AwsRefusal(
        id="identity-twice",
        on=POD_IDENTITY,
        condition="A second role for a service account.",
        words="Association already exists",
        source="https://github.com/eksctl-io/eksctl/issues/7753",
        judge="pf-eks-podidentity-duplicate",
        check=_identity_twice,
    ),
    AwsRefusal(
        id="identity-namespace",
        on=POD_IDENTITY,
        condition="A namespace that Kubernetes does not take.",
        words="The parameter namespace contains invalid characters. It should conform to the "
        'regular expression "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"',
        source=CFN + "aws-resource-eks-podidentityassociation.html",
        judge="pf-eks-podidentity-namespace-format",
        check=lambda r: when(
            bool(r.text("Namespace")) and not _LABEL.fullmatch(r.text("Namespace"))
        ),
    ),
    AwsRefusal(
        id="identity-account",
        on=POD_IDENTITY,
        condition="A service account that Kubernetes does not take.",
        words="The parameter serviceAccount contains invalid characters.",
        source=CFN + "aws-resource-eks-podidentityassociation.html",
        judge="pf-eks-podidentity-service-account-format",
        check=lambda r: when(
            bool(r.text("ServiceAccount")) and not _SUBDOMAIN.fullmatch(r.text("ServiceAccount"))
        ),
    ),
)
