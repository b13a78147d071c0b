"""The context keys for EKS, and for shells on nodes."""

from __future__ import annotations

from dataclasses import dataclass

from stacks.config import kinds
from stacks.config.context_keys import ContextKeys
from stacks.config.keys import key
from stacks.config.names import (
    add_on_version,
    chart_version,
    endpoint_cidr,
    host_image_release,
    image_registry,
    principal_arn,
    system_instance_type,
)
from trainium_catalogue.eks import (
    DEFAULT_IDLE_MINUTES,
    DEFAULT_KUBERNETES_VERSION,
    DEFAULT_SYSTEM_INSTANCE_TYPES,
    KUBERNETES_VERSIONS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EksKeys(ContextKeys):
    """All keys; those declared here need ``eks`` in ``orchestrators``, except ``node_shell``."""

    kubernetes_version: str = key(
        kinds.name_in(KUBERNETES_VERSIONS, noun="Kubernetes version", lists_all=True),
        default=DEFAULT_KUBERNETES_VERSION,
        help="Kubernetes version of the EKS cluster",
    )
    eks_admin_arns: tuple[str, ...] = key(
        kinds.possibly_empty_list(principal_arn, noun="list"),
        default=(),
        help="ARNs of the IAM roles and users that administer the cluster; EKS needs at least one",
    )
    eks_submitter_arns: tuple[str, ...] = key(
        kinds.possibly_empty_list(principal_arn, noun="list"),
        default=(),
        help="ARNs of the IAM roles and users that may submit, watch, exec into and stop jobs in "
        "the cluster, and do nothing else",
    )
    eks_endpoint_cidrs: tuple[str, ...] = key(
        kinds.possibly_empty_list(endpoint_cidr, noun="list"),
        default=(),
        help="public address ranges that may call the cluster's API, such as `203.0.113.7/32`; EKS "
        "needs at least one, or `eks_private`: then these are private ranges (default: the VPC)",
    )
    eks_private: bool = key(
        kinds.boolean(),
        default=False,
        help="true: the cluster's API is reachable only from the VPC and connected networks",
    )
    eks_nodes: int = key(
        kinds.whole_number(0, 1000),
        default=0,
        help="number of Trainium nodes that the cluster starts with, billed while they run; "
        "`python -m jobs scale` and `eks_idle_minutes` change their number later, until a "
        "deployment changes this or `max_nodes`",
    )
    eks_idle_minutes: int = key(
        kinds.whole_number(0, 1440),
        default=DEFAULT_IDLE_MINUTES,
        help="minutes after which a Trainium node that no job uses or waits for is removed from "
        "the cluster; 0: nodes stay, and are billed, until `python -m jobs scale --nodes 0`",
    )
    eks_subnet_ids: tuple[str, ...] = key(
        kinds.possibly_empty_list(kinds.resource_id("subnet").read, noun="list"),
        default=(),
        help="existing private subnets of `vpc_id` in zones other than that of `subnet_id`, with a "
        "route to the internet: EKS places its control plane's network interfaces in two zones",
    )
    eks_system_instance_types: tuple[str, ...] = key(
        kinds.comma_separated(system_instance_type, noun="list"),
        default=DEFAULT_SYSTEM_INSTANCE_TYPES,
        help="instance types of the two On-Demand nodes that run the cluster's add-ons",
    )
    eks_node_image: str | None = key(
        kinds.optional(host_image_release()),
        default=None,
        help="release version of the Trainium nodes' AMI, such as `1.35.6-20260625`, "
        "instead of that of `neuron_release`; a change replaces the nodes",
    )
    eks_system_image: str | None = key(
        kinds.optional(host_image_release()),
        default=None,
        help="release version of the AMI of the nodes that run add-ons, instead of the pinned one",
    )
    eks_add_on_versions: tuple[str, ...] = key(
        kinds.possibly_empty_list(add_on_version, noun="list"),
        default=(),
        help="versions of EKS add-ons that replace the pinned ones, such as "
        "`vpc-cni=v1.22.4-eksbuild.3`",
    )
    eks_image_registry: str | None = key(
        kinds.optional(image_registry()),
        default=None,
        help="registry of Volcano's images instead of Docker Hub, which limits anonymous pulls "
        "per IP address: a mirror, or a pull-through cache such as "
        "`111122223333.dkr.ecr.us-west-2.amazonaws.com/docker-hub`",
    )
    eks_chart_versions: tuple[str, ...] = key(
        kinds.possibly_empty_list(chart_version, noun="list"),
        default=(),
        help="versions of Helm charts that replace the pinned ones, such as `efa=v0.5.29`",
    )
    node_shell: bool = key(
        kinds.boolean(),
        default=False,
        help="true: nodes accept AWS Systems Manager sessions (`python -m jobs shell` on Batch)",
    )
