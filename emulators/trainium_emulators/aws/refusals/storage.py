"""S3, ECR, KMS, SSM and CloudWatch Logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from trainium_emulators.aws.refusals.access import statements
from trainium_emulators.aws.refusals.refusal import (
    BUCKET,
    BUCKET_POLICY,
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
    ResourceReference,
    duplicates,
    get,
    number,
    text,
    texts,
    true,
)

S3 = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/"
ECR = "https://docs.aws.amazon.com/AmazonECR/latest/userguide/lifecycle_policy_parameters.html"
SSM = "https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html"
KMS = "https://docs.aws.amazon.com/kms/latest/"

_ACTIONS = {
    "ExpirationDate", "ExpirationInDays", "AbortIncompleteMultipartUpload", "Transition",
    "Transitions", "NoncurrentVersionExpirationInDays", "NoncurrentVersionTransition",
    "NoncurrentVersionTransitions", "NoncurrentVersionExpiration", "ExpiredObjectDeleteMarker",
}  # fmt: skip
_POLICY_BYTES = 20 * 1024
_LIFECYCLE = "Lifecycle policy validation failure: "


def _rules(request: AwsRequest) -> list[dict[str, Any]]:
    rules = request.each("LifecycleConfiguration.Rules")
    return [rule for rule in rules if isinstance(rule, dict)]


def _marker_and_days(request: AwsRequest) -> Iterable[Fill]:
    others = {"ExpirationInDays", "ExpirationDate", "TagFilters"}
    return when(
        any(
            true(rule.get("ExpiredObjectDeleteMarker")) and others & {*rule}
            for rule in _rules(request)
        )
    )


def _abort_and_tags(request: AwsRequest) -> Iterable[Fill]:
    return when(
        any(
            "AbortIncompleteMultipartUpload" in rule and rule.get("TagFilters")
            for rule in _rules(request)
        )
    )


def _expires_before_moved(request: AwsRequest) -> Iterable[Fill]:
    for rule in _rules(request):
        expires = number(rule.get("ExpirationInDays"))
        for moved in rule.get("Transitions", []):
            if expires <= number(get(moved, "TransitionInDays")):
                yield ()


def _public(request: AwsRequest) -> Iterable[Fill]:
    bucket = request.find(BUCKET, "Bucket")
    blocked = true(get(bucket, "PublicAccessBlockConfiguration.BlockPublicPolicy"))
    for statement in statements(request.get("PolicyDocument")):
        principal = get(statement, "Principal")
        anybody = principal == "*" or "*" in texts(get(principal, "AWS"))
        allowed = get(statement, "Effect") == "Allow" and get(statement, "Condition") is None
        if blocked and anybody and allowed:
            yield ()


def _of_objects(action: str) -> bool:
    name = action.lower()
    return name.startswith(("s3:getobject", "s3:putobject", "s3:deleteobject")) or name in (
        "s3:abortmultipartupload", "s3:restoreobject", "s3:listmultipartuploadparts",
    )  # fmt: skip


def _only_the_bucket(request: AwsRequest, resource: Any) -> bool:
    """Tell whether a resource is certainly a bucket and not an object in it."""
    if isinstance(resource, ResourceReference):
        return request.account.find(BUCKET, resource) is not None
    return bool(re.fullmatch(r"arn:[^:]+:s3:::[^/*]+", text(resource)))


def _objects_of_bucket(request: AwsRequest) -> Iterable[Fill]:
    for statement in statements(request.get("PolicyDocument")):
        given = get(statement, "Resource")
        resources = given if isinstance(given, list) else [given]
        actions = texts(get(statement, "Action"))
        if any(map(_of_objects, actions)) and all(
            _only_the_bucket(request, resource) for resource in resources
        ):
            yield ()


def _other_bucket(request: AwsRequest) -> Iterable[Fill]:
    own = request.text("Bucket")
    for statement in statements(request.get("PolicyDocument")):
        for resource in texts(get(statement, "Resource")):
            name = resource.partition(":::")[2].partition("/")[0]
            if own and name and "*" not in name and name != own:
                yield ()


def _policy_size(request: AwsRequest) -> Iterable[Fill]:
    document = request.get("PolicyDocument")
    return when(
        len(json.dumps(document, default=lambda _: "", separators=(",", ":"))) > _POLICY_BYTES
    )


# --- repositories --------------------------------------------------------------------------------


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
        id="bucket-rule-ids",
        on=BUCKET,
        condition="Two lifecycle rules of one id.",
        words="Rule ID must be unique. Found same ID for more than one rule",
        verbatim=False,
        source=S3 + "intro-lifecycle-rules.html",
        judge="pf-s3-lifecycle-rule-id-duplicate",
        check=lambda r: when(bool(duplicates(rule["Id"] for rule in _rules(r) if "Id" in rule))),
    ),
    AwsRefusal(
        id="bucket-rule-empty",
        on=BUCKET,
        condition="A lifecycle rule that does nothing.",
        words="At least one of [ExpirationDate,ExpirationInDays,AbortIncompleteMultipartUpload,"
        "Transition,Transitions,NoncurrentVersionExpirationInDays,NoncurrentVersionTransition,"
        "NoncurrentVersionTransitions,NoncurrentVersionExpiration] needs to be specified",
        source="https://github.com/aws-cloudformation/cloudformation-coverage-roadmap/issues/132",
        judge="pf-s3-lifecycle-rule-no-action",
        check=lambda r: when(any(not _ACTIONS & {*rule} for rule in _rules(r))),
    ),
    AwsRefusal(
        id="bucket-marker-and-days",
        on=BUCKET,
        condition="A rule that expires objects and their delete markers.",
        words="ExpiredObjectDeleteMarker cannot be specified with ExpirationInDays, "
        "ExpirationDate, or TagFilters.",
        source="https://github.com/aws/aws-cdk/pull/25841",
        judge="pf-s3-lifecycle-delete-marker-exclusive",
        check=_marker_and_days,
    ),
    AwsRefusal(
        id="bucket-abort-and-tags",
        on=BUCKET,
        condition="A rule that ends uploads by tag, which uploads have not.",
        words="AbortIncompleteMultipartUpload cannot be specified with Tags.",
        verbatim=False,
        source=S3 + "intro-lifecycle-rules.html",
        judge="pf-s3-lifecycle-abort-mpu-with-tag-filter",
        check=_abort_and_tags,
    ),
    AwsRefusal(
        id="bucket-expires-before-moved",
        on=BUCKET,
        condition="A rule that deletes objects before it moves them.",
        words="'Days' in the Expiration action must be greater than 'Days' in the Transition "
        "action",
        verbatim=False,
        source=S3 + "lifecycle-transition-general-considerations.html",
        judge="pf-s3-lifecycle-days-order",
        check=_expires_before_moved,
    ),
    AwsRefusal(
        id="bucket-name-reserved",
        on=BUCKET,
        condition="A name with a beginning that is kept.",
        words="The specified bucket is not valid.",
        verbatim=False,
        source=S3 + "bucketnamingrules.html",
        judge="pf-s3-bucket-name-reserved-prefix",
        check=lambda r: when(r.text("BucketName").startswith(("xn--", "sthree-", "amzn-s3-demo-"))),
    ),
    AwsRefusal(
        id="bucket-policy-public",
        on=BUCKET_POLICY,
        condition="A policy for everybody on a bucket that blocks those.",
        words="public policies are blocked by the BlockPublicPolicy block public access setting.",
        verbatim=False,
        source=S3 + "access-control-block-public-access.html",
        judge="pf-s3-policy-public-with-block-public-policy",
        check=_public,
    ),
    AwsRefusal(
        id="bucket-policy-objects",
        on=BUCKET_POLICY,
        condition="Actions on objects, and only the bucket as their resource.",
        words="Action does not apply to any resource(s) in statement",
        source=S3 + "bucket-policies.html",
        judge="pf-s3-bucket-policy-action-resource",
        check=_objects_of_bucket,
    ),
    AwsRefusal(
        id="bucket-policy-other-bucket",
        on=BUCKET_POLICY,
        condition="A resource in another bucket.",
        words="Policy has invalid resource",
        source="https://repost.aws/knowledge-center/s3-bucket-policy-for-config-rule",
        verbatim=False,
        check=_other_bucket,
    ),
    AwsRefusal(
        id="bucket-policy-size",
        on=BUCKET_POLICY,
        condition="A policy of more than 20 KB.",
        words="Policy has exceeded the maximum policy size of 20 KB",
        verbatim=False,
        source=S3 + "bucket-policies.html",
        check=_policy_size,
    ),
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
        words=_LIFECYCLE + "Rule for tagStatus=ANY must have the highest rulePriority",
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
