"""Search for remaining resources of a deployment, by its tag and in every service."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jobs.aws import Aws
from jobs.errors import as_refusal, error_code, is_denied
from trainium_catalogue.account_listings import LISTINGS, Listing
from trainium_catalogue.contract import TAG_DEPLOYMENT
from trainium_catalogue.documents import Amount
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.prices import HOURS_PER_MONTH, PRICES

_STATES = ("StackStatus", "State", "Status", "status", "Lifecycle")
_BEING_DELETED = frozenset({"shutting-down", "deleting", "PendingDeletion", "DELETING"})
_TAGGING = "resourcegroupstaggingapi"
_MAX_PAGES = 100
"""Maximum number of pages, of 1,000 versions each, to read for a bucket's size."""
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingResource:
    """A resource of the deployment that still exists."""

    service: str
    kind: str
    id: str
    seen_by: Literal["tag", "service", "tag and service"]
    why: str
    """Why it belongs to the deployment, or is retained."""
    state: str | None
    usd_per_month: Amount | None
    """Estimate from list prices; null if the cost cannot be estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncheckedKind:
    """A kind of resource that could not be checked."""

    service: str
    kind: str
    permission: str
    """IAM action required to check it."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Identifies a deployment's resources."""

    deployment: str
    other_deployments: frozenset[str]
    physical_ids: frozenset[str]
    """Physical ids of all present and past resources of its stacks."""

    def reason(self, id: str, item: Item) -> str | None:
        """Return why a resource belongs to the deployment; None if it does not."""
        tags = _tags(item)
        if (tagged := tags.get(TAG_DEPLOYMENT)) is not None:
            return f"tag {TAG_DEPLOYMENT}" if tagged == self.deployment else None
        texts = [id, *(value for value in item.values() if isinstance(value, str))]
        for text in texts:
            if text in self.physical_ids:
                return f"stack resource {text}"
        for text in (*texts, *tags.values()):
            if self.is_named_in(text):
                return f"named {text}"
        return None

    def is_named_in(self, text: str) -> bool:
        """Return whether a text contains a name assigned by this deployment's stacks."""
        longer = (name for name in self.other_deployments if name.startswith(f"{self.deployment}-"))
        return _mentions(text, self.deployment) and not any(_mentions(text, it) for it in longer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Result of a search."""

    found: tuple[RemainingResource, ...]
    unchecked: tuple[UncheckedKind, ...]


def find_remains(aws: Aws, owner: Ownership) -> Remains:
    """List the existing resources of a deployment, by its tag and service by service.

    The tagging API lists deleted resources for a while, and does not cover some kinds: if the
    service can be queried, its response takes precedence.
    """
    unchecked: list[UncheckedKind] = []
    try:
        arns = _tagged(aws, owner.deployment)
    except Exception as error:
        arns = []
        unchecked.append(_unchecked(_TAGGING, "tagged resource", "tag:GetResources", error, aws))
    found: list[RemainingResource] = []
    for listing in LISTINGS:
        own = [arn for arn in arns if _rest(arn, listing) is not None]
        try:
            items = list(_list_items(aws, listing))
            found += _owned_resources(aws, owner, listing, items, own)
        except Exception as error:
            action = _iam_action(aws, listing)
            unchecked.append(_unchecked(listing.service, listing.kind, action, error, aws))
            found += [_tagged_resource(arn, listing.kind) for arn in own]
    known = {arn for arn in arns for listing in LISTINGS if _rest(arn, listing) is not None}
    found += [_tagged_resource(arn, _kind_of(arn)) for arn in arns if arn not in known]
    return Remains(found=tuple(found), unchecked=tuple(unchecked))


def _tagged(aws: Aws, deployment: str) -> list[str]:
    pages = aws.client(_TAGGING).get_paginator("get_resources")
    tag = {"Key": TAG_DEPLOYMENT, "Values": [deployment]}
    return [
        resource["ResourceARN"]
        for page in pages.paginate(TagFilters=[tag])
        for resource in page["ResourceTagMappingList"]
    ]


def _list_items(aws: Aws, listing: Listing) -> Iterator[tuple[str, Item]]:
    import jmespath  # type: ignore[import-untyped]  # boto3 needs it too

    client, arguments = aws.client(listing.service), listing.arguments_of(aws.client("sts"))
    if client.can_paginate(listing.operation):
        pages: Iterable[Any] = client.get_paginator(listing.operation).paginate(**arguments)
    else:
        pages = [getattr(client, listing.operation)(**arguments)]
    for page in pages:
        for item in jmespath.search(listing.items, page) or ():
            yield (str(item[listing.id]), item) if listing.id else (str(item), {})


def _owned_resources(
    aws: Aws, owner: Ownership, listing: Listing, items: list[tuple[str, Item]], arns: list[str]
) -> Iterator[RemainingResource]:
    """Yield the listed resources that belong to the deployment."""
    for id, item in items:
        tagged = any(_matches_arn(arn, listing, id) for arn in arns)
        reason = owner.reason(id, item)
        if reason is None and not tagged:
            continue
        state, usd = _details(aws, listing, id, item)
        yield RemainingResource(
            service=listing.service,
            kind=listing.kind,
            id=id,
            seen_by="service" if not tagged else "tag" if reason is None else "tag and service",
            why=reason or f"tag {TAG_DEPLOYMENT}",
            state=state,
            usd_per_month=usd,
        )


def is_being_deleted(state: str | None) -> bool:
    """Return whether AWS is already deleting a resource."""
    return state in _BEING_DELETED


def _tagged_resource(arn: str, kind: str) -> RemainingResource:
    return RemainingResource(
        service=arn.split(":")[2],
        kind=kind,
        id=arn,
        seen_by="tag",
        why=f"tag {TAG_DEPLOYMENT}; the tagging API also lists recently deleted resources",
        state=None,
        usd_per_month=None,
    )


def _rest(arn: str, listing: Listing) -> str | None:
    """Return the part of an ARN after the kind; None for another kind."""
    parts = arn.split(":", 5)
    if len(parts) < 6 or parts[2] != listing.service:
        return None
    for start in listing.arns:
        if parts[5].startswith(start):
            return parts[5].removeprefix(start)
    return None


def _matches_arn(arn: str, listing: Listing, id: str) -> bool:
    rest = _rest(arn, listing)
    # arn:aws:eks:...:nodegroup/<cluster>/..., arn:aws:logs:...:log-group:<name>:*
    return id == arn or rest == id or (rest or "").startswith((f"{id}/", f"{id}:"))


def _kind_of(arn: str) -> str:
    return re.split("[:/]", arn.split(":", 5)[-1])[0]


def _mentions(text: str, deployment: str) -> bool:
    name = re.escape(deployment)
    return bool(re.search(rf"(?<![a-z0-9])trainium[-/]{name}(?![a-z0-9])", text.lower()))


def _tags(item: Item) -> dict[str, str]:
    """Return the tags of a listed resource, in the format of EC2 or of Batch and EKS."""
    tags = item.get("Tags") or item.get("TagSet") or item.get("tags") or {}
    if isinstance(tags, Mapping):
        return {str(key): str(value) for key, value in tags.items()}
    return {str(tag.get("Key")): str(tag.get("Value")) for tag in tags}


def _details(aws: Aws, listing: Listing, id: str, item: Item) -> tuple[str | None, float | None]:
    """Read the state and monthly cost of a resource; the cost is None without permission."""
    state = next((item[name] for name in _STATES if item.get(name)), None)
    state = str(state["Name"]) if isinstance(state, Mapping) else state
    try:
        if listing.kind == "key":
            state = str(aws.client("kms").describe_key(KeyId=id)["KeyMetadata"]["KeyState"])
        return state, 0.0 if is_being_deleted(state) else _usd(aws, listing.kind, id, item)
    except Exception as error:
        if as_refusal(error, region=aws.region) is None:
            raise
        return state, None


def _usd(aws: Aws, kind: str, id: str, item: Item) -> float | None:
    """Estimate the cost per month; None if unknown."""
    match kind:
        case "instance":
            known = INSTANCE_TYPES.get(item["InstanceType"])
            return None if known is None else known.usd_per_hour_estimate * HOURS_PER_MONTH
        case "file system":
            speed = item.get("LustreConfiguration", {}).get("PerUnitStorageThroughput")
            price = PRICES.get(f"lustre-{speed}")
            return None if price is None else float(item["StorageCapacity"]) * price.usd
        case "bucket":
            return (
                None if (size := bucket_bytes(aws, id)) is None else size / 1e9 * PRICES["s3"].usd
            )
        case "repository":
            pages = aws.client("ecr").get_paginator("describe_images").paginate(repositoryName=id)
            images = [image for page in pages for image in page["imageDetails"]]
            stored = sum(int(image.get("imageSizeInBytes", 0)) for image in images)
            return stored / 1e9 * PRICES["ecr"].usd
        case "endpoint":
            # A gateway endpoint has no subnets, and is free.
            return len(item.get("SubnetIds") or ()) * PRICES["interface-endpoint"].usd
        case "volume":
            return float(item["Size"] * PRICES["gp3"].usd)
        case "log group":
            return float(item.get("storedBytes", 0) / 1e9 * PRICES["logs"].usd)
    price = PRICES.get(_PRICED.get(kind, ""))
    return 0.0 if price is None else price.usd


_PRICED = {
    "address": "address",
    "NAT gateway": "nat-gateway",
    "cluster": "eks",
    "key": "kms",
    "secret": "secret",
}


def bucket_bytes(aws: Aws, bucket: str) -> int | None:
    """Return the size of all versions in a bucket; None if there are too many to list."""
    size = 0
    for number, page in enumerate(version_pages(aws.client("s3"), bucket)):
        if number == _MAX_PAGES:
            return None
        size += sum(int(item["Size"]) for item in page.get("Versions", ()))
    return size


def version_pages(s3: Any, bucket: str) -> Iterator[Item]:
    """Yield pages of the versions in a bucket; none if the bucket does not exist."""
    try:
        yield from s3.get_paginator("list_object_versions").paginate(Bucket=bucket)
    except Exception as error:
        if error_code(error) != "NoSuchBucket":
            raise


_OTHER_ACTIONS = {"ListBuckets": "ListAllMyBuckets", "DescribeBudgets": "ViewBudget"}
"""IAM actions whose names differ from those of the operations (Service Authorization Reference)."""


def _iam_action(aws: Aws, listing: Listing) -> str:
    """Return the IAM action of a listing."""
    operation = aws.client(listing.service).meta.method_to_api_mapping[listing.operation]
    return f"{listing.service}:{_OTHER_ACTIONS.get(operation, operation)}"


def _unchecked(service: str, kind: str, action: str, error: Exception, aws: Aws) -> UncheckedKind:
    """Describe a kind that could not be checked; re-raise an unexpected error."""
    from botocore.parsers import ResponseParserError

    refusal = as_refusal(error, region=aws.region)
    if isinstance(error, ResponseParserError):
        reason = "the response cannot be parsed"  # from an endpoint without this operation
    elif refusal is None:
        raise error
    else:
        reason = "the permission is missing" if is_denied(error) else refusal.message
    return UncheckedKind(service=service, kind=kind, permission=action, reason=reason)
