"""Authorizes the requests of IAM users by their policies, including resources.

moto can do so, but checks the resource "*" for every service except S3, and does not support "?"
(moto/iam/access_control.py). Conditions are not supported here either: evaluating a policy that has
one raises an error. Callers that are not IAM users in moto may do everything: nodes, whose roles
are checked separately, and the user who deploys.

The Service Authorization Reference lists the resource that an action needs; a test compares this
table with it.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlsplit

from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.authorization import ActionAuthenticatorMixin
from moto.core.exceptions import AccessDeniedError, JsonRESTError
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import determine_request_protocol
from moto.core.responses import ActionResult
from moto.core.routing import get_service_router
from moto.core.utils import get_service_model
from moto.iam.access_control import CreateAccessKeyFailure, IAMUserAccessKey, create_access_key
from moto.iam.models import Policy
from moto.iam.responses import IamResponse
from moto.s3.exceptions import S3AccessDeniedError

from trainium_emulators.aws.cloudformation.eks_members import MEMBERS, AccessEntry
from trainium_emulators.kubernetes.rbac import ADMIN, Caller

Params = Mapping[str, Any]
Arn = Callable[[str, str], str]
"""Builds an ARN in the caller's account and region from a service and the rest."""


def allows(policies: Iterable[Mapping[str, Any]], action: str, resource: str) -> bool:
    """Return whether identity policies allow ``action`` on ``resource``.

    Raises ``NotImplementedError`` for a policy with a condition, a Deny or any other such element.
    """
    return any(
        _covers(statement, action, resource)
        for policy in policies
        for statement in policy["Statement"]
    )


def _covers(statement: Mapping[str, Any], action: str, resource: str) -> bool:
    unknown = set(statement) - {"Sid", "Effect", "Action", "Resource"}
    if unknown or statement["Effect"] != "Allow":
        raise NotImplementedError(f"{statement} has elements that are not evaluated here")
    return any(
        _matches(each.lower(), action.lower()) for each in _as_list(statement["Action"])
    ) and any(_matches(each, resource) for each in _as_list(statement["Resource"]))


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _matches(pattern: str, text: str) -> bool:
    """Match IAM's wildcards: ``*`` is any text, ``?`` any one character."""
    as_regex = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(as_regex, text, re.DOTALL) is not None


# --- the permissions for a request ---------------------------------------------------------------


def needed(action: str, params: Params, arn: Arn) -> Iterator[tuple[str, str]]:
    """Yield the actions that a request needs, each with a resource."""
    resources = _RESOURCES[action](params, arn) if action in _RESOURCES else ["*"]
    for resource in resources:
        yield action, resource
    if action == "batch:SubmitJob" and params.get("tags"):
        # AWS Batch User Guide, tag resources. The job's id is not known yet.
        yield "batch:TagResource", arn("batch", "job/new")


def _batch_arn(kind: str, name: str, arn: Arn) -> str:
    """Return the ARN of a Batch resource, from its name or ARN."""
    return name if name.startswith("arn:") else arn("batch", f"{kind}/{name}")


_RESOURCES: Mapping[str, Callable[[Params, Arn], list[str]]] = {
    "batch:SubmitJob": lambda params, arn: [
        _batch_arn("job-definition", params["jobDefinition"], arn),
        _batch_arn("job-queue", params["jobQueue"], arn),
    ],
    "batch:TerminateJob": lambda params, arn: [arn("batch", f"job/{params['jobId']}")],
    "ecr:BatchGetImage": lambda params, arn: [arn("ecr", f"repository/{params['repositoryName']}")],
    "ec2:GetConsoleOutput": lambda params, arn: [arn("ec2", f"instance/{params['InstanceId']}")],
    "ecs:DescribeContainerInstances": lambda params, arn: [
        arn("ecs", f"container-instance/{params['cluster']}/{one.rpartition('/')[2]}")
        for one in params["containerInstances"]
    ],
    "eks:DescribeCluster": lambda params, arn: [arn("eks", f"cluster/{params['name']}")],
    "eks:DescribeNodegroup": lambda params, arn: [
        arn("eks", f"nodegroup/{params['clusterName']}/{params['nodegroupName']}/id")
    ],
    "kms:DescribeKey": lambda params, arn: [params["KeyId"]],
    "logs:DescribeLogStreams": lambda params, arn: [
        arn("logs", f"log-group:{params['logGroupName']}:log-stream:")
    ],
    "logs:GetLogEvents": lambda params, arn: [
        arn("logs", f"log-group:{params['logGroupName']}:log-stream:{params['logStreamName']}")
    ],
    "servicequotas:GetServiceQuota": lambda params, arn: [
        arn("servicequotas", f"{params['ServiceCode']}/{params['QuotaCode']}")
    ],
    "ssm:GetParameters": lambda params, arn: [
        arn("ssm", f"parameter/{name.lstrip('/')}") for name in params["Names"]
    ],
    "ssm:GetParametersByPath": lambda params, arn: [
        arn("ssm", f"parameter/{params['Path'].strip('/')}")
    ],
}
"""Resources by action; other actions need "*". moto supplies those of S3."""


# --- moto ----------------------------------------------------------------------------------------


def user_of(account_id: str, access_key: str) -> IAMUserAccessKey | None:
    """Return the IAM user who owns an access key; None if there is none."""
    try:
        user = create_access_key(account_id, "aws", access_key, {})
    except CreateAccessKeyFailure:
        return None
    assert isinstance(user, IAMUserAccessKey)
    return user


def _authorize(response: Any, _: type, resource: str = "*") -> None:
    """Refuse a request that no policy of its user allows."""
    user = user_of(response.current_account, response.access_key)
    # AWS always allows GetCallerIdentity (AWS STS API reference).
    if user is None or response.service_name == "sts":
        return
    policies = [_document(policy) for policy in user.collect_policies()]
    for action, arn in _required_permissions(response, resource):
        if not allows(policies, action, arn):
            _deny(response, user.arn, action, arn)


def _required_permissions(response: Any, resource: str) -> Iterable[tuple[str, str]]:
    service = response.boto3_service_name
    if service == "s3":
        return [(f"s3:{response._get_action()}", resource)]
    request = response.normalized_request
    operation, uri_params = response._get_action(), response.uri_match
    model = get_service_model(service)
    if operation not in model.operation_names:
        operation_model, uri_params = get_service_router(service).match(request)
        operation = operation_model.name
    protocol = determine_request_protocol(model, request.content_type)
    params = PROTOCOL_PARSERS[protocol](model.operation_model(operation), map_type=dict).parse(
        {
            "method": request.method,
            "values": request.values,
            "headers": request.headers,
            "body": request.data,
            "url_path": request.path,
            "url_params": uri_params,
        }
    )

    def arn(service: str, rest: str) -> str:
        return f"arn:aws:{service}:{response.region}:{response.current_account}:{rest}"

    # The name in signatures is IAM's prefix: servicequotas, where boto3 has a hyphen.
    return needed(f"{model.signing_name}:{operation}", params, arn)


def _document(policy: Any) -> dict[str, Any]:
    text = (
        next(version.document for version in policy.versions if version.is_default)
        if isinstance(policy, Policy)
        else policy["policy_document"]
    )
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def _simulate(response: Any) -> ActionResult:
    """Simulate the calling user's own policies; any other caller is allowed everything."""
    user = user_of(response.current_account, response.access_key)
    policies = None if user is None else [_document(each) for each in user.collect_policies()]
    results = [
        {
            "EvalActionName": action,
            "EvalResourceName": resource,
            "EvalDecision": "allowed"
            if policies is None or allows(policies, action, resource)
            else "implicitDeny",
        }
        for action in response._get_param("ActionNames")
        for resource in response._get_param("ResourceArns")
    ]
    return ActionResult({"EvaluationResults": results, "IsTruncated": False})


def install_simulation() -> None:
    """Add SimulatePrincipalPolicy to moto, which lacks it."""
    IamResponse.simulate_principal_policy = _simulate


def _deny(response: Any, who: str, action: str, resource: str) -> NoReturn:
    """Raise the access-denied error in the format of the service's protocol."""
    if response.boto3_service_name == "s3":
        raise S3AccessDeniedError
    if get_service_model(response.boto3_service_name).protocol in ("json", "rest-json"):
        raise JsonRESTError(
            "AccessDeniedException",
            f"User: {who} is not authorized to perform: {action} on resource: {resource}",
        )
    raise AccessDeniedError(user_arn=who, action=f"{action} on resource: {resource}")


_TOKEN_PREFIX = "k8s-aws-v1."


def caller_of(token: str) -> Caller | None:
    """Return the caller behind a cluster's token, a presigned GetCallerIdentity request.

    docs.aws.amazon.com/eks/latest/userguide/access-entries.html. None if the user has no access
    entry. A caller who is not an IAM user in moto is an administrator, like the user who deploys.
    """
    if not token.startswith(_TOKEN_PREFIX):
        return ADMIN
    url = base64.urlsafe_b64decode(token.removeprefix(_TOKEN_PREFIX) + "==").decode()
    (scope,) = parse_qs(urlsplit(url).query)["X-Amz-Credential"]
    user = user_of(DEFAULT_ACCOUNT_ID, scope.partition("/")[0])
    if user is None:
        return ADMIN
    entries = [
        members[user.arn]
        for (_, _, type_name), members in MEMBERS.items()
        if type_name == AccessEntry.type_name and user.arn in members
    ]
    groups = {group for entry in entries for group in entry.get("KubernetesGroups", ())}
    return Caller(name=user.arn, groups=frozenset(groups)) if entries else None


def install() -> None:
    """Patch moto in this process."""
    ActionAuthenticatorMixin._authenticate_and_authorize_action = _authorize
    install_simulation()
