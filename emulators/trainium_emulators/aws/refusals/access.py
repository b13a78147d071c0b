"""Refusals of IAM and Lambda: roles, policies, instance profiles, functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from trainium_emulators.aws.refusals.refusal import (
    CFN_LINT,
    FUNCTION,
    INSTANCE_PROFILE,
    MOTO,
    POLICY,
    ROLE,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import (
    AwsRequest,
    ResourceReference,
    each,
    get,
    text,
    texts,
)

IAM = "https://docs.aws.amazon.com/IAM/latest/"
QUOTAS = IAM + "UserGuide/reference_iam-quotas.html"
LAMBDA = "https://docs.aws.amazon.com/lambda/latest/"

ROLE_POLICY_CHARACTERS = 10_240
TRUST_CHARACTERS = 2048
MANAGED_POLICIES = 25
"""Maximum of a raised quota; an account starts with 20."""
_DESCRIPTION = re.compile("[\t\n\r\x20-\x7e\xa1-\xff]*")
_ASSUME = {
    "sts:AssumeRole", "sts:AssumeRoleWithWebIdentity", "sts:AssumeRoleWithSAML", "sts:TagSession",
    "sts:SetSourceIdentity", "sts:SetContext",
}  # fmt: skip
_RESERVED = {
    "_HANDLER", "_X_AMZN_TRACE_ID", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_EXECUTION_ENV",
    "AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_LAMBDA_FUNCTION_VERSION",
    "AWS_LAMBDA_INITIALIZATION_TYPE", "AWS_LAMBDA_LOG_GROUP_NAME", "AWS_LAMBDA_LOG_STREAM_NAME",
    "AWS_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AWS_LAMBDA_RUNTIME_API", "LAMBDA_TASK_ROOT", "LAMBDA_RUNTIME_DIR",
}  # fmt: skip
"""Lambda Developer Guide, Defined runtime environment variables."""
_IN_VPC = ("AWSLambdaVPCAccessExecutionRole", "AWSLambdaENIManagementAccess", "AdministratorAccess")


def statements(document: Any) -> Iterator[Any]:
    """Return the statements of a policy."""
    given = get(document, "Statement")
    yield from [given] if isinstance(given, dict) else each(given)


def _documents(request: AwsRequest) -> list[Any]:
    """Return a role's inline policies, or the document of a policy resource."""
    inline = [get(entry, "PolicyDocument") for entry in request.each("Policies")]
    return [*inline, *([request.get("PolicyDocument")] if request.has("PolicyDocument") else [])]


def size(document: Any) -> int:
    """Count a policy's characters without white space; references count 0, so a lower bound."""
    return len(json.dumps(document, default=lambda _: "", separators=(",", ":")))


def _actions(request: AwsRequest) -> Iterator[str]:
    for document in _documents(request):
        for statement in statements(document):
            yield from texts(get(statement, "Action"))


def _resources(request: AwsRequest) -> Iterator[str]:
    for document in _documents(request):
        for statement in statements(document):
            yield from texts(get(statement, "Resource"))


def _regional_buckets(request: AwsRequest) -> Iterable[Fill]:
    for resource in _resources(request):
        parts = resource.split(":")
        if len(parts) >= 6 and parts[2] == "s3" and parts[3]:
            yield (resource,)


def _trust_actions(request: AwsRequest) -> Iterable[Fill]:
    document = request.get("AssumeRolePolicyDocument")
    actions = [a for s in statements(document) for a in texts(get(s, "Action"))]
    return when(any(action not in _ASSUME for action in actions))


def _trust_principals(request: AwsRequest) -> Iterable[Fill]:
    for statement in statements(request.get("AssumeRolePolicyDocument")):
        for service in texts(get(statement, "Principal.Service")):
            if not re.fullmatch(r"[a-z0-9.-]+\.amazonaws\.com(\.cn)?|[a-z0-9-]+\.aws", service):
                yield (service,)


def _variables(request: AwsRequest) -> dict[str, Any]:
    variables = request.get("Environment.Variables", {})
    return variables if isinstance(variables, dict) else {}


def _variables_size(request: AwsRequest) -> Iterable[Fill]:
    return when(size(_variables(request)) > 4096)


def _reserved_variables(request: AwsRequest) -> Iterable[Fill]:
    taken = sorted(_RESERVED & {*_variables(request)})
    return when(bool(taken), ", ".join(taken))


def _log_levels(request: AwsRequest) -> Iterable[Fill]:
    logging = request.get("LoggingConfig", {})
    levels = {"ApplicationLogLevel", "SystemLogLevel"} & {*logging}
    return when(bool(levels) and get(logging, "LogFormat", "Text") == "Text", *sorted(levels)[:1])


def _no_interfaces(request: AwsRequest) -> Iterable[Fill]:
    role = request.find(ROLE, "Role")
    if role is None or not request.each("VpcConfig.SubnetIds"):
        return []
    managed = role.get("ManagedPolicyArns", [])
    # A name may depend on a condition, and a policy resource may be anywhere: report nothing then.
    named = [entry if isinstance(entry, str) else "" for entry in each(managed)]
    if any(name.endswith(_IN_VPC) or not name for name in named):
        return []
    attached = [
        policy
        for policy in request.account.all(POLICY)
        if any(
            _is_role(request, entry, request.get("Role")) for entry in each(get(policy, "Roles"))
        )
    ]
    actions = [
        action
        for holder in (role, *attached)
        for action in _actions(AwsRequest(properties=holder, account=request.account))
    ]
    wanted = ("*", "ec2:*", "ec2:CreateNetworkInterface", "ec2:Create*")
    return when(not any(action in wanted for action in actions))


def _is_role(request: AwsRequest, name: Any, arn: Any) -> bool:
    if isinstance(name, ResourceReference):
        return request.account.same(name, arn)
    return isinstance(name, str) and text(arn).endswith(f"/{name}")


ROWS = (
    AwsRefusal(
        id="role-description",
        on=ROLE,
        condition="A role's description with an arrow, a dash of print, or another such character.",
        words="1 validation error detected: Value at 'description' failed to satisfy constraint: "
        "Member must satisfy regular expression pattern: "
        "[\\u0009\\u000A\\u000D\\u0020-\\u007E\\u00A1-\\u00FF]*",
        source="https://github.com/ministackorg/ministack/issues/1411",
        known_to=CFN_LINT,
        check=lambda r: when(not _DESCRIPTION.fullmatch(r.text("Description"))),
    ),
    AwsRefusal(
        id="role-trust-actions",
        on=ROLE,
        condition="A trust policy that allows more than to take the role.",
        words="AssumeRole policy may only specify STS AssumeRole actions.",
        source=IAM + "UserGuide/id_roles_create_for-custom.html",
        judge="pf-iam-trust-policy-action-sts-only",
        check=_trust_actions,
    ),
    AwsRefusal(
        id="role-trust-service",
        on=ROLE,
        condition="A trust policy for a service that is none.",
        words='Invalid principal in policy: "SERVICE":"{}"',
        source=IAM + "UserGuide/reference_policies_elements_principal.html",
        judge="pf-iam-trust-policy-service-principal",
        check=_trust_principals,
    ),
    AwsRefusal(
        id="role-trust-resource",
        on=ROLE,
        condition="A trust policy that names a resource.",
        words="Has prohibited field Resource",
        source=IAM + "UserGuide/id_roles_create_for-custom.html",
        judge="pf-iam-trust-policy-no-resource",
        known_to=CFN_LINT,
        check=lambda r: when(
            any(
                get(statement, "Resource") is not None
                for statement in statements(r.get("AssumeRolePolicyDocument"))
            )
        ),
    ),
    AwsRefusal(
        id="role-trust-size",
        on=ROLE,
        condition="A trust policy of more than 2,048 characters.",
        words="Cannot exceed quota for ACLSizePerRole: 2048",
        source=QUOTAS,
        verbatim=False,
        check=lambda r: when(size(r.get("AssumeRolePolicyDocument")) > TRUST_CHARACTERS),
    ),
    AwsRefusal(
        id="role-policies",
        on=ROLE,
        condition="More managed policies than any quota gives.",
        words="Cannot exceed quota for PoliciesPerRole: {}",
        source="https://github.com/ministryofjustice/cloud-platform-environments/pull/14118",
        judge="pf-iam-managed-policy-count",
        check=lambda r: when(len(r.each("ManagedPolicyArns")) > MANAGED_POLICIES, MANAGED_POLICIES),
    ),
    AwsRefusal(
        id="role-policy-size",
        on=ROLE,
        condition="Policies of a role's own with more than 10,240 characters in all.",
        words="Maximum policy size of 10240 bytes exceeded for role {}",
        source="https://github.com/serverless/serverless/issues/12167",
        check=lambda r: when(
            sum(map(size, _documents(r))) > ROLE_POLICY_CHARACTERS, r.text("RoleName")
        ),
    ),
    AwsRefusal(
        id="role-path",
        on=ROLE,
        condition="A path that is kept for services.",
        words="Paths beginning with '/aws-service-role' are reserved for AWS Service Linked Roles",
        source=IAM + "UserGuide/id_roles_create_for-service.html",
        judge="pf-iam-path-service-role-reserved",
        check=lambda r: when(r.text("Path").startswith("/aws-service-role")),
    ),
    AwsRefusal(
        id="policy-size",
        on=POLICY,
        condition="A policy of more than 10,240 characters.",
        words="Maximum policy size of 10240 bytes exceeded for role",
        source="https://github.com/serverless/serverless/issues/12167",
        judge="pf-iam-inline-policy-size",
        check=lambda r: when(size(r.get("PolicyDocument")) > ROLE_POLICY_CHARACTERS),
    ),
    *(
        AwsRefusal(
            id=f"{name}-action-vendor",
            on=kind,
            condition="An action without its service.",
            words="Actions/Conditions must be prefaced by a vendor, e.g., iam, sdb, ec2, etc.",
            source=IAM + "UserGuide/reference_policies_elements_action.html",
            judge="pf-iam-policy-action-format",
            known_to=known,
            check=lambda r: when(any(a != "*" and ":" not in a for a in _actions(r))),
        )
        for name, kind, known in (("role", ROLE, CFN_LINT), ("policy", POLICY, CFN_LINT | MOTO))
    ),
    AwsRefusal(
        id="policy-action-colons",
        on=POLICY,
        condition="An action with two colons.",
        words="Actions/Condition can contain only one colon.",
        source=IAM + "UserGuide/reference_policies_elements_action.html",
        judge="pf-iam-policy-action-single-colon",
        known_to=CFN_LINT | MOTO,
        check=lambda r: when(any(action.count(":") > 1 for action in _actions(r))),
    ),
    AwsRefusal(
        id="policy-resource-region",
        on=POLICY,
        condition="A region in the ARN of a bucket, which has none.",
        words="Resource {} can not contain region information.",
        source=IAM + "UserGuide/reference_policies_elements_resource.html",
        known_to=MOTO,
        check=_regional_buckets,
    ),
    AwsRefusal(
        id="profile-roles",
        on=INSTANCE_PROFILE,
        condition="Other than one role.",
        words="Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1",
        source=QUOTAS,
        judge="pf-iam-instance-profile-single-role",
        known_to=CFN_LINT,
        check=lambda r: when(len(r.each("Roles")) > 1),
    ),
    AwsRefusal(
        id="function-interfaces",
        on=FUNCTION,
        condition="A function in a VPC whose role may make no interfaces.",
        words="The provided execution role does not have permissions to call "
        "CreateNetworkInterface on EC2",
        source="https://github.com/amazon-connect/amazon-connect-salesforce-lambda/issues/29",
        check=_no_interfaces,
    ),
    AwsRefusal(
        id="function-network-empty",
        on=FUNCTION,
        condition="A VPC without subnets, or without security groups.",
        words="VpcConfig needs at least one subnet and one security group",
        verbatim=False,
        source=LAMBDA + "dg/configuration-vpc.html",
        judge="pf-lambda-vpc-non-empty",
        check=lambda r: when(
            any(r.get(f"VpcConfig.{key}") == [] for key in ("SubnetIds", "SecurityGroupIds"))
        ),
    ),
    AwsRefusal(
        id="function-variables-size",
        on=FUNCTION,
        condition="Environment variables of more than 4 KB.",
        words="Lambda was unable to configure your environment variables because the environment "
        "variables you have provided exceeded the 4KB limit.",
        source="https://github.com/aws-samples/aws-genai-llm-chatbot/issues/583",
        judge="pf-lambda-env-size",
        known_to=CFN_LINT,
        check=_variables_size,
    ),
    AwsRefusal(
        id="function-variable-name",
        on=FUNCTION,
        condition="An environment variable that does not begin with a letter.",
        words="Member must satisfy regular expression pattern: [a-zA-Z]([a-zA-Z0-9_])+",
        verbatim=False,
        source=LAMBDA + "dg/configuration-envvars.html",
        judge="pf-lambda-env-key-start-letter",
        known_to=CFN_LINT,
        check=lambda r: when(
            any(not re.fullmatch(r"[a-zA-Z]\w*", name, re.ASCII) for name in _variables(r))
        ),
    ),
    AwsRefusal(
        id="function-variable-reserved",
        on=FUNCTION,
        condition="An environment variable that Lambda sets.",
        words="Lambda was unable to configure your environment variables because the environment "
        "variables you have provided contains reserved keys that are currently not supported for "
        "modification. Reserved keys used in this request: {}",
        verbatim=False,
        source=LAMBDA + "dg/configuration-envvars.html",
        known_to=CFN_LINT,
        check=_reserved_variables,
    ),
    AwsRefusal(
        id="function-log-level",
        on=FUNCTION,
        condition="A level for logs that are plain text.",
        words="{} is only supported with the log format JSON",
        verbatim=False,
        source=LAMBDA + "dg/monitoring-cloudwatchlogs-log-level.html",
        judge="pf-lambda-loglevel-requires-json",
        check=_log_levels,
    ),
)
