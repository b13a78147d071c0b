"""Refusals of ECR, KMS, SSM and CloudWatch Logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from trainium_emulators.aws.refusals.access import statements
from trainium_emulators.aws.refusals.refusal import (
    CFN_LINT,
    KEY,
    LOG_GROUP,
    MOTO,
    PARAMETER,
    REPOSITORY,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import (
    AwsRequest,
    PartialText,
    duplicates,
    get,
    number,
    texts,
    true,
)

ECR = "https://docs.aws.amazon.com/AmazonECR/latest/userguide/lifecycle_policy_parameters.html"
SSM = "https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html"
KMS = "https://docs.aws.amazon.com/kms/latest/"

_LIFECYCLE = "Lifecycle policy validation failure: "


def _lifecycle(request: AwsRequest) -> list[Any]:
    try:
        document = json.loads(request.text("LifecyclePolicy.LifecyclePolicyText") or "{}")
    except ValueError:
        return []
    rules = get(document, "rules")
    return rules if isinstance(rules, list) else []


def _selections(request: AwsRequest) -> Iterator[tuple[float, Any]]:
    for rule in _lifecycle(request):
        yield number(get(rule, "rulePriority")), get(rule, "selection", {})


def _no_document(request: AwsRequest) -> Iterable[Fill]:
    given = request.text("LifecyclePolicy.LifecyclePolicyText")
    try:
        json.loads(given or "{}")
    except ValueError:
        return when(True)
    return []


def _any_not_last(request: AwsRequest) -> Iterable[Fill]:
    selections = list(_selections(request))
    last = max((priority for priority, _ in selections), default=0)
    return when(any(get(s, "tagStatus") == "any" and priority < last for priority, s in selections))


def _tagged_without_list(request: AwsRequest) -> Iterable[Fill]:
    lists = {"tagPrefixList", "tagPatternList"}
    return when(
        any(
            get(selection, "tagStatus") == "tagged" and not lists & {*selection}
            for _, selection in _selections(request)
        )
    )


def _list_without_tag(request: AwsRequest) -> Iterable[Fill]:
    for _, selection in _selections(request):
        status = get(selection, "tagStatus")
        for key in ("tagPrefixList", "tagPatternList"):
            if status in ("untagged", "any") and get(selection, key):
                yield (key, status)


def _count_unit(request: AwsRequest) -> Iterable[Fill]:
    return when(
        any(
            (get(selection, "countType") == "imageCountMoreThan")
            == (get(selection, "countUnit") is not None)
            for _, selection in _selections(request)
            if get(selection, "countType") in ("imageCountMoreThan", "sinceImagePushed")
        )
    )


# --- keys, parameters, log groups ----------------------------------------------------------------


def _locked_out(request: AwsRequest) -> Iterable[Fill]:
    if true(request.get("BypassPolicyLockoutSafetyCheck")):
        return []
    for statement in statements(request.get("KeyPolicy")):
        if get(statement, "Effect") != "Allow" or get(statement, "NotAction") is not None:
            continue
        actions = get(statement, "Action")
        covering = ("*", "kms:*", "kms:put*", "kms:putkeypolicy")
        covers = any(action.lower() in covering for action in texts(actions))
        principal = get(statement, "Principal")
        named = get(principal, "AWS", "*" if principal == "*" else None)
        if covers and named is not None:
            return []
    return when(request.has("KeyPolicy"))


def _rotates(request: AwsRequest) -> Iterable[Fill]:
    spec = request.get("KeySpec", "SYMMETRIC_DEFAULT")
    external = request.text("Origin") == "EXTERNAL"
    return when(
        true(request.get("EnableKeyRotation"))
        and (external or (isinstance(spec, str) and spec != "SYMMETRIC_DEFAULT"))
    )


def _parameter_name(request: AwsRequest) -> str:
    return request.text("Name").removeprefix("/")


def _value_size(request: AwsRequest) -> int:
    value = request.get("Value")
    return len(value) if isinstance(value, (str, PartialText)) else 0


ROWS = (
    AwsRefusal(
        id="repository-policy",
        on=REPOSITORY,
        condition="A lifecycle policy that is no JSON.",
        words="Lifecycle policy parsing failure: Could not map policyString into LifecyclePolicy",
        source=ECR,
        judge="pf-ecr-lifecycle-policy-syntax",
        known_to=CFN_LINT,
        check=_no_document,
    ),
    AwsRefusal(
        id="repository-priority-twice",
        on=REPOSITORY,
        condition="Two lifecycle rules of one priority.",
        words=_LIFECYCLE + "Duplicate priority in multiple rules",
        source=ECR,
        judge="pf-ecr-lifecycle-rule-priority",
        check=lambda r: when(bool(duplicates(priority for priority, _ in _selections(r)))),
    ),
    AwsRefusal(
        id="repository-any-not-last",
        on=REPOSITORY,
        condition="A lifecycle rule for all images before another one.",
        # The pack quotes "must have the highest rulePriority"; users report these words, since
        # there are storage classes, in no place that has an address.
        words=_LIFECYCLE + "Rule for tagStatus=ANY must have the lowest priority per storage class",
        verbatim=False,
        source=ECR,
        judge="pf-ecr-lifecycle-rule-priority",
        check=_any_not_last,
    ),
    AwsRefusal(
        id="repository-tagged-without-list",
        on=REPOSITORY,
        condition="A lifecycle rule for tagged images that names no tags.",
        words=_LIFECYCLE + "Must specify tagPrefixList or tagPatternList",
        source=ECR,
        judge="pf-ecr-lifecycle-tag-status",
        check=_tagged_without_list,
    ),
    AwsRefusal(
        id="repository-list-without-tag",
        on=REPOSITORY,
        condition="A lifecycle rule that names tags of images without.",
        words=_LIFECYCLE + "Cannot specify {} with tagStatus {}",
        source=ECR,
        judge="pf-ecr-lifecycle-tag-status",
        check=_list_without_tag,
    ),
    AwsRefusal(
        id="repository-count-unit",
        on=REPOSITORY,
        condition="Days for a number of images, or none for an age.",
        words=_LIFECYCLE + "countUnit goes with sinceImagePushed only",
        verbatim=False,
        source=ECR,
        judge="pf-ecr-lifecycle-count",
        check=_count_unit,
    ),
    AwsRefusal(
        id="key-locked-out",
        on=KEY,
        condition="A key policy that nobody could change any more.",
        words="The new key policy will not allow you to update the key policy in the future.",
        source=KMS + "developerguide/key-policy-default.html",
        judge="pf-kms-key-policy-lockout",
        check=_locked_out,
    ),
    AwsRefusal(
        id="key-policy-characters",
        on=KEY,
        condition="A key policy with characters beyond Latin-1.",
        words="Value at 'policy' failed to satisfy constraint: Member must satisfy regular "
        "expression pattern: [\\u0009\\u000A\\u000D\\u0020-\\u00FF]+",
        verbatim=False,
        source=KMS + "APIReference/API_CreateKey.html",
        judge="pf-kms-key-policy-charset",
        check=lambda r: when(
            re.search(
                "[^\t\n\r\x20-\xff]",
                json.dumps(r.get("KeyPolicy"), default=lambda _: "", ensure_ascii=False),
            )
            is not None
        ),
    ),
    AwsRefusal(
        id="key-rotation",
        on=KEY,
        condition="Rotation of a key that cannot rotate.",
        words="You cannot set the EnableKeyRotation property to true on asymmetric or external "
        "keys.",
        source="https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/"
        "aws-resource-kms-key.html",
        judge="pf-kms-key-rotation",
        check=_rotates,
    ),
    AwsRefusal(
        id="parameter-prefix",
        on=PARAMETER,
        condition="A name that begins like AWS's own.",
        words='Parameter name: can\'t be prefixed with "aws" or "ssm" (case-insensitive).',
        source=SSM,
        judge="pf-ssm-parameter-name",
        known_to=CFN_LINT | MOTO,
        check=lambda r: when(_parameter_name(r).lower().startswith(("aws", "ssm"))),
    ),
    AwsRefusal(
        id="parameter-slash",
        on=PARAMETER,
        condition="A name that ends with a slash.",
        words="Parameter name must not end with slash.",
        source=SSM,
        judge="pf-ssm-parameter-name",
        known_to=CFN_LINT,
        check=lambda r: when(r.text("Name").endswith("/")),
    ),
    AwsRefusal(
        id="parameter-characters",
        on=PARAMETER,
        condition="A name with other characters than letters, digits, dots, hyphens, underscores.",
        words="Parameter name: each sub-path can be formed as a mix of letters, numbers and the "
        "following 3 symbols .-_",
        verbatim=False,
        source=SSM,
        judge="pf-ssm-parameter-name",
        known_to=CFN_LINT,
        check=lambda r: when(
            bool(r.text("Name"))
            and not re.fullmatch(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*/?", _parameter_name(r))
        ),
    ),
    AwsRefusal(
        id="parameter-depth",
        on=PARAMETER,
        condition="A name of more than 15 levels.",
        words="A hierarchy can have a maximum of 15 levels",
        verbatim=False,
        source=SSM,
        check=lambda r: when(_parameter_name(r).count("/") >= 15),
    ),
    AwsRefusal(
        id="parameter-size",
        on=PARAMETER,
        condition="A value of more than 4,096 characters.",
        words="Standard tier parameters support a maximum parameter value of 4096 characters.",
        source="https://github.com/github-aws-runners/terraform-aws-github-runner/issues/3815",
        judge="pf-ssm-parameter-tier",
        check=lambda r: when(_value_size(r) > 4096 and r.get("Tier", "Standard") == "Standard"),
    ),
    AwsRefusal(
        id="parameter-nested",
        on=PARAMETER,
        condition="A value that looks like a reference to another.",
        words='Parameter value can\'t nest another parameter. Do not use "{{{{}}}}" in the value.',
        source=SSM,
        judge="pf-ssm-parameter-value",
        check=lambda r: when(re.search(r"\{\{.*\}\}", r.text("Value")) is not None),
    ),
    AwsRefusal(
        id="parameter-pattern",
        on=PARAMETER,
        condition="A value that the parameter's own pattern does not take.",
        words="Parameter value, cannot be validated against allowedPattern: {}",
        source=SSM,
        judge="pf-ssm-parameter-allowed-pattern",
        check=lambda r: when(
            bool(r.text("AllowedPattern") and r.text("Value"))
            and re.fullmatch(r.text("AllowedPattern"), r.text("Value")) is None,
            r.text("AllowedPattern"),
        ),
    ),
    AwsRefusal(
        id="log-group-name",
        on=LOG_GROUP,
        condition="A name that begins with aws/, which is kept.",
        words="Log groups starting with aws/ are reserved for AWS.",
        verbatim=False,
        source="https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/"
        "API_CreateLogGroup.html",
        check=lambda r: when(r.text("LogGroupName").startswith("aws/")),
    ),
)
