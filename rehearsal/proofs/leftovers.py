"""Lists the resources of the account and the cluster, to prove that destroy left none behind."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass

import jmespath  # type: ignore[import-untyped]

from rehearsal.deployment.aws import EmulatedAccount
from trainium_catalogue import account_listings
from trainium_catalogue.account_listings import Listing
from trainium_catalogue.contract import TAG_DEPLOYMENT

TOOLKIT_STACK = "CDKToolkit"
BATCH_SERVICE_ROLE = "AWSServiceRoleForBatch"


@dataclass(frozen=True, slots=True, order=True)
class AccountResource:
    """A resource in the account."""

    service: str
    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class ExpectedResource(AccountResource):
    """A resource that is supposed to remain after destroy."""

    why: str


_SERVICE_LINKED = "Roles[?starts_with(Path, '/aws-service-role/')]"
LISTINGS = (
    *account_listings.LISTINGS,
    # AWS retains these, and so does `jobs down`.
    Listing("iam", "service-linked role", "list_roles", _SERVICE_LINKED, "RoleName"),
)


_IN_EVERY_CLUSTER = frozenset(
    {
        *(AccountResource("kubernetes", "namespace", name)
          for name in ("default", "kube-system", "volcano-system")),
        AccountResource("kubernetes", "queue", "default"),
    }
)  # fmt: skip


def take_inventory(aws: EmulatedAccount) -> frozenset[AccountResource]:
    """List all resources of the services in use, and everything with the deployment's tag."""
    resources = {item for listing in LISTINGS for item in _list(aws, listing)}
    repositories = [item.id for item in resources if item.kind == "repository"]
    return frozenset(
        {
            *resources,
            *(
                AccountResource("ecr", "image", image)
                for name in repositories
                for image in _images(aws, name)
            ),
            *(AccountResource("ecs", "cluster", arn) for arn in _clusters(aws)),
            *(AccountResource("tag", TAG_DEPLOYMENT, arn) for arn in _tagged_arns(aws)),
        }
    )


def compare(
    *, before: Iterable[AccountResource], after: Iterable[AccountResource], toolkit: Iterable[str]
) -> tuple[list[ExpectedResource], list[AccountResource]]:
    """Split new resources into expected ones and leftovers.

    Args:
        before: The account before the deployment.
        after: The account after destroy.
        toolkit: Physical ids of the bootstrap stack's resources.
    """
    bootstrap = frozenset(toolkit)
    expected, leftovers = [], []
    for item in sorted(set(after) - set(before)):
        if why := _why_expected(item, bootstrap):
            expected.append(ExpectedResource(item.service, item.kind, item.id, why))
        else:
            leftovers.append(item)
    return expected, leftovers


def toolkit_resources(aws: EmulatedAccount) -> frozenset[str]:
    """Return the physical ids of the resources created by ``cdk bootstrap``."""
    pages = aws.client("cloudformation").get_paginator("list_stack_resources")
    return frozenset(
        resource["PhysicalResourceId"]
        for page in pages.paginate(StackName=TOOLKIT_STACK)
        for resource in page["StackResourceSummaries"]
        if "PhysicalResourceId" in resource
    )


def count_resources(aws: EmulatedAccount, stack: str) -> int:
    """Count the resources of a stack."""
    pages = aws.client("cloudformation").get_paginator("list_stack_resources")
    return sum(len(page["StackResourceSummaries"]) for page in pages.paginate(StackName=stack))


def _why_expected(item: AccountResource, bootstrap: frozenset[str]) -> str | None:
    if item == AccountResource("cloudformation", "stack", TOOLKIT_STACK):
        return "the stack of cdk bootstrap, which all apps of an account share"
    # An image in the bootstrap's repository is never expected.
    if item.kind != "image" and item.id in bootstrap:
        return "created by cdk bootstrap"
    if item in _IN_EVERY_CLUSTER:
        return "part of every Kubernetes cluster with Volcano, and deleted with it"
    if item.kind == "service-linked role" and item.id.lower() == BATCH_SERVICE_ROLE.lower():
        return "service-linked role, which AWS creates once per account for Batch"
    return None


def _list(aws: EmulatedAccount, listing: Listing) -> Iterable[AccountResource]:
    client = aws.client(listing.service)
    arguments = listing.arguments_of(aws.client("sts"))
    if client.can_paginate(listing.operation):
        pages = client.get_paginator(listing.operation).paginate(**arguments)
    else:
        pages = [getattr(client, listing.operation)(**arguments)]
    expression = jmespath.compile(listing.items)
    for page in pages:
        for item in expression.search(page) or ():
            yield AccountResource(
                listing.service, listing.kind, item[listing.id] if listing.id else item
            )


def _images(aws: EmulatedAccount, repository: str) -> Iterable[str]:
    pages = aws.client("ecr").get_paginator("list_images").paginate(repositoryName=repository)
    for page in pages:
        for image in page["imageIds"]:
            yield f"{repository}:{image.get('imageTag') or image['imageDigest']}"


def _clusters(aws: EmulatedAccount) -> Iterable[str]:
    """Return the ECS clusters of Batch's compute environments; deleted ones are INACTIVE."""
    ecs = aws.client("ecs")
    arns = [
        arn for page in ecs.get_paginator("list_clusters").paginate() for arn in page["clusterArns"]
    ]
    clusters = ecs.describe_clusters(clusters=arns)["clusters"] if arns else []
    return [cluster["clusterArn"] for cluster in clusters if cluster["status"] != "INACTIVE"]


def _tagged_arns(aws: EmulatedAccount) -> Iterable[str]:
    pages = aws.client("resourcegroupstaggingapi").get_paginator("get_resources")
    for page in pages.paginate(TagFilters=[{"Key": TAG_DEPLOYMENT}]):
        for resource in page["ResourceTagMappingList"]:
            yield resource["ResourceARN"]


_KUBERNETES_KINDS = {
    "namespace": "/api/v1/namespaces",
    "node": "/api/v1/nodes",
    "pod": "/api/v1/pods",
    "service": "/api/v1/services",
    "config map": "/api/v1/configmaps",
    "secret": "/api/v1/secrets",
    "service account": "/api/v1/serviceaccounts",
    "volume": "/api/v1/persistentvolumes",
    "volume claim": "/api/v1/persistentvolumeclaims",
    "deployment": "/apis/apps/v1/deployments",
    "daemon set": "/apis/apps/v1/daemonsets",
    "Volcano job": "/apis/batch.volcano.sh/v1alpha1/jobs",
    "pod group": "/apis/scheduling.volcano.sh/v1beta1/podgroups",
    "queue": "/apis/scheduling.volcano.sh/v1beta1/queues",
}
_KUBERNETES = "kubernetes"
_RESPONSE_LIMIT_S = 30.0


def take_cluster_inventory(endpoint: str | None) -> frozenset[AccountResource]:
    """List all objects of the kinds in ``_KUBERNETES_KINDS``; none without a cluster."""
    if endpoint is None:
        return frozenset()
    return frozenset(
        AccountResource(_KUBERNETES, kind, name)
        for kind, path in _KUBERNETES_KINDS.items()
        for name in _object_names(endpoint, path)
    )


def _object_names(endpoint: str, path: str) -> list[str]:
    # Loopback: never go through the user's proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(endpoint + path, timeout=_RESPONSE_LIMIT_S) as response:
        items = json.load(response)["items"]
    names = []
    for item in items:
        metadata = item["metadata"]
        place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
        names.append(place + metadata["name"])
    return names
