"""Refusals of S3: buckets and their policies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from trainium_emulators.aws.refusals.access import statements
from trainium_emulators.aws.refusals.refusal import (
    BUCKET,
    BUCKET_POLICY,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import (
    AwsRequest,
    ResourceReference,
    duplicates,
    get,
    number,
    text,
    texts,
    true,
)

S3 = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/"

_ACTIONS = {
    "ExpirationDate", "ExpirationInDays", "AbortIncompleteMultipartUpload", "Transition",
    "Transitions", "NoncurrentVersionExpirationInDays", "NoncurrentVersionTransition",
    "NoncurrentVersionTransitions", "NoncurrentVersionExpiration", "ExpiredObjectDeleteMarker",
}  # fmt: skip
_POLICY_BYTES = 20 * 1024


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
    """Tell whether a resource is certainly a bucket rather than an object in it."""
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
)
