"""The declarations of all context keys: kind, default and help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks.config import addresses, kinds
from stacks.config.keys import DerivedDefault, key
from stacks.config.names import (
    LOG_RETENTION_DAYS,
    bucket_name,
    cpu_instance_type,
    data_uri,
    deployment_name,
    email_address,
    image_reference,
    is_zone_name,
    kms_key_arn,
    lustre_dns_name,
    lustre_mount_name,
    orchestrators,
    placement_group_name,
    region_name,
    topic_arn,
    zone,
    zone_id,
)
from trainium_catalogue import contract
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT, Orchestrator
from trainium_catalogue.instances import DEFAULT_CPU_INSTANCE_TYPES, INSTANCE_TYPES, EfaLayout
from trainium_catalogue.releases import DEFAULT_RELEASE, NEURON_RELEASES, TRAINING_RELEASES
from trainium_catalogue.zones import ZONES

DEFAULT_NUM_NODES = 4
HOME_REGION = "us-west-2"
_MAX_USD = 100_000_000


def _region(earlier: Mapping[str, Any]) -> str:
    offered = INSTANCE_TYPES[earlier["instance_type"]].zone_ids
    return HOME_REGION if HOME_REGION in offered else next(iter(offered))


def _nodes_zone(earlier: Mapping[str, Any]) -> str | None:
    return next(iter(earlier["zone_ids"]), None) or _best_zone(earlier)


def _best_zone(earlier: Mapping[str, Any]) -> str | None:
    """Choose a zone for a new network; an existing subnet determines its own."""
    region = earlier["region"]
    offered = INSTANCE_TYPES[earlier["instance_type"]].zone_ids.get(region)
    if not offered or earlier["subnet_id"] is not None:
        return None
    return next(zone for zone in ZONES[region] if zone in offered)


def _lustre_zone(earlier: Mapping[str, Any]) -> str | None:
    """Choose a zone regardless of the nodes' zone id: a file system cannot move with them."""
    nodes = earlier["availability_zone_id"]
    return nodes if nodes is None or is_zone_name(nodes) else _best_zone(earlier)


def _num_nodes(earlier: Mapping[str, Any]) -> int:
    multi_node = INSTANCE_TYPES[earlier["instance_type"]].supports_multi_node
    return DEFAULT_NUM_NODES if multi_node else 1


def _lustre_gib(earlier: Mapping[str, Any]) -> int:
    is_needed = Orchestrator.EKS in earlier["orchestrators"] and earlier["lustre_dns_name"] is None
    return contract.CLUSTER_LUSTRE_GIB if is_needed else 0


def _max_vcpus(earlier: Mapping[str, Any]) -> int:
    return INSTANCE_TYPES[earlier["instance_type"]].vcpus_for(earlier["max_nodes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextKeys:
    """The keys, most important first, except where a default depends on another key."""

    deployment: str = key(
        deployment_name(),
        default=DEFAULT_DEPLOYMENT,
        help="name of this deployment; several can exist in one account and region, each with its "
        "own stacks `trainium-<deployment>-<part>`",
    )
    orchestrators: tuple[Orchestrator, ...] = key(
        orchestrators(),
        default=(Orchestrator.BATCH,),
        help="orchestrator of the nodes: AWS Batch, an EKS cluster, or both; data and export jobs "
        "always run on Batch",
    )
    instance_type: str = key(
        kinds.name_in(INSTANCE_TYPES, noun="instance type"),
        default="trn1.32xlarge",
        help="instance type of every node; `python -m jobs catalogue` lists the types",
    )
    region: str = key(
        region_name(),
        default=DerivedDefault(
            text=f"`{HOME_REGION}`, or the first region that offers the type", compute=_region
        ),
        help="region of every stack; it must offer the type",
    )
    max_nodes: int = key(
        kinds.whole_number(1, 1000),
        default=DerivedDefault(
            text=f"{DEFAULT_NUM_NODES}, or 1 for a type without EFA", compute=_num_nodes
        ),
        help="maximum number of nodes of a job",
    )
    min_nodes: int = key(
        kinds.whole_number(0, 1000),
        default=0,
        help="number of nodes that keep running, and are billed, while no job runs",
    )
    max_vcpus: int = key(
        kinds.whole_number(1, 1_000_000),
        default=DerivedDefault(text="`max_nodes` x the vCPUs of the type", compute=_max_vcpus),
        help="maximum vCPUs of the compute environment in each zone; to run jobs concurrently, "
        "set more than one job of `max_nodes` nodes needs; keep it within the account's vCPU quota",
    )
    efa_layout: EfaLayout = key(  # noqa: RUF009 - it declares a field
        kinds.one_of(EfaLayout),
        default=EfaLayout.EFA,
        help="type of the interfaces on secondary network cards: `efa` uses an IP address on "
        "each, as in AWS's samples, `efa-only` uses none",
    )
    vpc_id: str | None = key(
        kinds.optional(kinds.resource_id("vpc")),
        default=None,
        help="existing VPC to use instead of a new one, with `subnet_id` and `subnet_cidr`; it is "
        "neither looked up nor changed",
    )
    subnet_id: str | None = key(
        kinds.optional(kinds.resource_id("subnet")),
        default=None,
        help="existing private subnet for the nodes, with a route to the internet",
    )
    subnet_cidr: str | None = key(
        kinds.optional(kinds.cidr(addresses.WIDEST_PREFIX, addresses.NARROWEST_PREFIX)),
        default=None,
        help="address range of `subnet_id`, to count its addresses",
    )
    security_group_id: str | None = key(
        kinds.optional(kinds.resource_id("sg")),
        default=None,
        help="existing security group of the nodes in `vpc_id`, which must allow traffic "
        "between its members in both directions; if unset, one is created",
    )
    default_security_group_id: str | None = key(
        kinds.optional(kinds.resource_id("sg")),
        default=None,
        help="default security group of `vpc_id`, which the tasks of multi-node Batch jobs use: "
        "it must allow TCP between its members, in and out; `submit` checks but never changes it",
    )
    zone_ids: tuple[str, ...] = key(
        kinds.possibly_empty_list(zone_id, noun="list of zone IDs"),
        default=DerivedDefault(text="`availability_zone_id` alone", compute=lambda _: ()),
        help="zone IDs in the order in which a job tries them, such as `usw2-az4,usw2-az1`: a job "
        "that finds no capacity in the first [moves to the next](operating.md#several-zones), "
        "with all its nodes",
    )
    availability_zone_id: str | None = key(
        kinds.optional(zone()),
        default=DerivedDefault(
            text="the first of `zone_ids`, or the zone offering the type and the most other types; "
            "none with `subnet_id`",
            compute=_nodes_zone,
        ),
        help="zone id of the nodes (`usw2-az4`: the same zone in every account), checked against "
        "the catalogue; changing it later affects only where nodes launch; a zone name "
        "(`us-west-2d`) is accepted with a warning, and cannot be changed later",
    )
    vpc_cidr: str | None = key(
        kinds.optional(kinds.cidr(addresses.WIDEST_PREFIX, addresses.NARROWEST_VPC_PREFIX)),
        default=DerivedDefault(
            text="10.0.0.0/16; none with `vpc_id`",
            compute=lambda earlier: None if earlier["vpc_id"] else "10.0.0.0/16",
        ),
        help="address range of a new VPC; a quarter of it is the nodes' subnet in each of up to "
        "three zones",
    )
    nat_gateways: int = key(
        kinds.whole_number(0, 1),
        default=DerivedDefault(
            text=f"{contract.NAT_GATEWAYS}; 0 with `vpc_id`",
            compute=lambda earlier: 0 if earlier["vpc_id"] else contract.NAT_GATEWAYS,
        ),
        help="NAT gateways of a new VPC, billed by the hour; nodes need one to install the EFA "
        "software unless the AMI in `ami_id` contains it",
    )
    interface_endpoints: bool = key(
        kinds.boolean(),
        default=DerivedDefault(
            text="true; false with `vpc_id`",
            compute=lambda earlier: contract.HAS_INTERFACE_ENDPOINTS and not earlier["vpc_id"],
        ),
        help="create interface endpoints in a new VPC for the services that nodes call (ECR, ECS, "
        "CloudWatch Logs and others), billed by the hour; false routes those calls through the NAT "
        "gateway",
    )
    neuron_release: str = key(
        kinds.name_in(NEURON_RELEASES, noun="Neuron release", suggested=TRAINING_RELEASES),
        default=DEFAULT_RELEASE,
        help="Neuron SDK release; it pins the container image, the Neuron driver and the AMI",
    )
    base_image: str | None = key(
        kinds.optional(image_reference()),
        default=None,
        help="base image to build on, instead of the release's",
    )
    image_uri: str | None = key(
        kinds.optional(image_reference()),
        default=None,
        help="complete image to run, instead of building one",
    )
    ami_id: str | None = key(
        kinds.optional(kinds.resource_id("ami")),
        default=None,
        help="AMI of Batch's nodes, instead of the release's pinned ECS-optimized Neuron AMI; "
        "[what it must contain](operating.md#an-ami-of-your-own)",
    )
    root_volume_gib: int = key(
        kinds.whole_number(100, contract.MAX_ROOT_VOLUME_GIB),
        default=contract.ROOT_VOLUME_GIB,
        help="size of each node's root volume, which holds the container image",
    )
    capacity_reservation_id: str | None = key(
        kinds.optional(kinds.resource_id("cr")),
        default=None,
        help="On-Demand Capacity Reservation in which to launch the nodes",
    )
    capacity_block_id: str | None = key(
        kinds.optional(kinds.resource_id("cr")),
        default=None,
        help="Capacity Block for ML in which to launch the nodes; on Batch a compute environment "
        "cannot outlive its block: for the next block, destroy the `batch` stack and deploy again",
    )
    placement_group: str | None = key(
        kinds.optional(placement_group_name()),
        default=None,
        help="existing cluster placement group in which to launch the nodes, such as that of "
        "`capacity_reservation_id`; if unset, one is created, except for reserved capacity",
    )
    scale_down_delay_minutes: int | None = key(
        kinds.optional(kinds.whole_number(20, 10_080)),
        default=None,
        help="minutes that idle nodes keep running, and are billed, for the next job; if unset, "
        "Batch terminates them within minutes",
    )
    runnable_time_limit_minutes: int = key(
        kinds.whole_number(
            10,
            1440,
            why="Batch allows 10 minutes to 24 hours",
        ),
        default=contract.RUNNABLE_TIME_LIMIT_MINUTES,
        help="minutes after which a job at the head of its queue is cancelled if it cannot start: "
        "no capacity, or a configuration that can never run; Batch allows at most 1,440, a "
        "day. On EKS: minutes for which idle nodes are held for a job that is waiting for more",
    )
    job_time_limit_hours: int = key(
        kinds.whole_number(1, contract.MAX_JOB_TIME_LIMIT_HOURS),
        default=contract.JOB_TIME_LIMIT_HOURS,
        help="maximum time limit of a job; each workload has its own default",
    )
    max_cost_per_job_usd: int | None = key(
        kinds.optional(kinds.whole_number(1, _MAX_USD)),
        default=None,
        help="maximum cost in USD of one submission, including all attempts and waits: `submit` "
        "refuses a job that could cost more; [what counts](costs.md#caps)",
    )
    monthly_budget_usd: int | None = key(
        kinds.optional(kinds.whole_number(1, _MAX_USD)),
        default=None,
        help="monthly budget in USD: AWS Budgets notifies `notify_email` or `notify_topic_arn` at "
        "80% and 100%; it stops nothing; the payer account must [activate a tag](costs.md#caps)",
    )
    log_retention_days: int = key(
        kinds.one_number_of(LOG_RETENTION_DAYS, noun="retention periods of CloudWatch Logs"),
        default=30,
        help="days that CloudWatch Logs keeps the deployment's logs",
    )
    cpu_instance_types: tuple[str, ...] = key(
        kinds.comma_separated(cpu_instance_type, noun="list"),
        default=DEFAULT_CPU_INSTANCE_TYPES,
        help="instance types of data and export jobs; several types give Spot more choice",
    )
    cpu_spot: bool = key(
        kinds.boolean(),
        default=contract.CPU_SPOT,
        help="run data and export jobs on Spot instances; a job whose instance is reclaimed is "
        "retried and resumes",
    )
    cpu_max_vcpus: int = key(
        kinds.whole_number(1, 100_000),
        default=64,
        help="maximum vCPUs of the compute environment for data and export jobs; each job uses 16",
    )
    lustre_dns_name: str | None = key(
        kinds.optional(lustre_dns_name()),
        default=None,
        help="existing FSx for Lustre file system to mount, in `vpc_id` or a VPC peered with it, "
        "with `lustre_mount_name` and `lustre_security_group_id`",
    )
    lustre_mount_name: str | None = key(
        kinds.optional(lustre_mount_name()),
        default=None,
        help="mount name of `lustre_dns_name`",
    )
    lustre_security_group_id: str | None = key(
        kinds.optional(kinds.resource_id("sg")),
        default=None,
        help="security group of `lustre_dns_name`: the deployment adds rules for node traffic "
        "on Lustre's ports; its egress is not changed; with `security_group_id` you manage "
        "the rules of both groups",
    )
    lustre_gib: int = key(
        kinds.whole_number(0, 1_000_000),
        default=DerivedDefault(
            text="0; 1200 with `eks` and no `lustre_dns_name`", compute=_lustre_gib
        ),
        help="size of a new FSx for Lustre file system, mounted on every node at /fsx and billed "
        "while it exists; 0 creates none, and deletes an existing one",
    )
    lustre_zone_id: str | None = key(
        kinds.optional(zone()),
        default=DerivedDefault(
            text="the default of `availability_zone_id`, even if that is set",
            compute=_lustre_zone,
        ),
        help="zone id of that file system, which cannot be changed; nodes in another zone can use "
        "it, and cross-zone traffic is billed; with `vpc_id` it is in `subnet_id`",
    )
    lustre_mbps_per_tib: int = key(
        kinds.one_number_of({125, 250, 500, 1000}, noun="throughputs of PERSISTENT_2"),
        default=contract.LUSTRE_MBPS_PER_TIB,
        help="throughput of that file system in MB/s per TiB",
    )
    data_uris: tuple[str, ...] = key(
        kinds.possibly_empty_list(data_uri, noun="list"),
        default=(),
        help="`s3://bucket/prefix` of other buckets that jobs may use: as input of tokenize and "
        "programs, or for `--checkpoint-uri`",
    )
    bucket_name: str | None = key(
        kinds.optional(bucket_name()),
        default=None,
        help="existing bucket for data, runs and caches; if unset, one is created",
    )
    bucket_kms_key_arn: str | None = key(
        kinds.optional(kms_key_arn()),
        default=None,
        help="ARN of the KMS key of `bucket_name`; the jobs' roles may then use it through S3",
    )
    retain_data: bool = key(
        kinds.boolean(),
        default=True,
        help="keep the created bucket on destroy; false empties and deletes it",
    )
    notify_email: str | None = key(
        kinds.optional(email_address()),
        default=None,
        help="email address for [notifications](operating.md#notifications), whose owner "
        "must confirm the subscription, and for alerts of `monthly_budget_usd`",
    )
    notify_topic_arn: str | None = key(
        kinds.optional(topic_arn()),
        default=None,
        help="existing SNS topic to publish to instead, in the deployment's region; for "
        "`monthly_budget_usd` it must be in the same account, and its policy must allow "
        "budgets.amazonaws.com to publish",
    )
    notify_wait_minutes: int = key(
        kinds.whole_number(5, 1440),
        default=30,
        help="minutes that a run may wait for its nodes before a notification is sent",
    )
    cdk_preflight: bool = key(
        kinds.boolean(),
        default=True,
        help="fail synthesis on findings of cdk-preflight, which checks for what AWS would reject; "
        "false saves a few seconds if the output is not deployed",
    )
