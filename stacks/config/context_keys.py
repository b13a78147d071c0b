"""Every context key, declared once: its kind, its default and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks.config import addresses, kinds
from stacks.config.keys import Derived, key
from stacks.config.names import (
    LOG_RETENTION_DAYS,
    bucket_name,
    cpu_instance_type,
    data_uri,
    deployment_name,
    image_reference,
    is_zone_name,
    kms_key_arn,
    lustre_dns_name,
    lustre_mount_name,
    orchestrators,
    placement_group_name,
    region_name,
    zone,
)
from trainium_catalogue import contract
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT, Orchestrator
from trainium_catalogue.instances import DEFAULT_CPU_INSTANCE_TYPES, INSTANCE_TYPES, EfaLayout
from trainium_catalogue.releases import DEFAULT_RELEASE, NEURON_RELEASES, TRAINING_RELEASES
from trainium_catalogue.zones import ZONES

DEFAULT_NUM_NODES = 4
HOME_REGION = "us-west-2"


def _region(earlier: Mapping[str, Any]) -> str:
    offered = INSTANCE_TYPES[earlier["instance_type"]].zone_ids
    return HOME_REGION if HOME_REGION in offered else next(iter(offered))


def _best_zone(earlier: Mapping[str, Any]) -> str | None:
    """Choose a zone for a new network; an existing subnet has its own."""
    region = earlier["region"]
    offered = INSTANCE_TYPES[earlier["instance_type"]].zone_ids.get(region)
    if not offered or earlier["subnet_id"] is not None:
        return None
    return next(zone for zone in ZONES[region] if zone in offered)


def _lustre_zone(earlier: Mapping[str, Any]) -> str | None:
    """Choose a zone independent of the nodes': a file system cannot move with them."""
    nodes = earlier["availability_zone_id"]
    return nodes if nodes is None or is_zone_name(nodes) else _best_zone(earlier)


def _num_nodes(earlier: Mapping[str, Any]) -> int:
    multi_node = INSTANCE_TYPES[earlier["instance_type"]].supports_multi_node
    return DEFAULT_NUM_NODES if multi_node else 1


def _lustre_gib(earlier: Mapping[str, Any]) -> int:
    wanted = Orchestrator.EKS in earlier["orchestrators"] and earlier["lustre_dns_name"] is None
    return contract.CLUSTER_LUSTRE_GIB if wanted else 0


def _max_vcpus(earlier: Mapping[str, Any]) -> int:
    return INSTANCE_TYPES[earlier["instance_type"]].vcpus_for(earlier["max_nodes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextKeys:
    """The keys, most important first as far as their defaults allow."""

    deployment: str = key(
        deployment_name(),
        default=DEFAULT_DEPLOYMENT,
        help="name of this deployment: several live side by side in one account and region, "
        "each in its own stacks `trainium-<deployment>-<part>`",
    )
    orchestrators: tuple[Orchestrator, ...] = key(
        orchestrators(),
        default=(Orchestrator.BATCH,),
        help="what runs jobs on the nodes: AWS Batch, an EKS cluster, or each of them; data and "
        "export jobs run on Batch anyway",
    )
    instance_type: str = key(
        kinds.name_in(INSTANCE_TYPES, noun="instance type"),
        default="trn1.32xlarge",
        help="type of every node; `python -m jobs catalogue` lists them",
    )
    region: str = key(
        region_name(),
        default=Derived(
            text=f"`{HOME_REGION}`, or the first region that offers the type", compute=_region
        ),
        help="region of every stack; it must offer the type",
    )
    max_nodes: int = key(
        kinds.whole_number(1, 1000),
        default=Derived(
            text=f"{DEFAULT_NUM_NODES}, or 1 for a type without EFA", compute=_num_nodes
        ),
        help="nodes of the largest job",
    )
    min_nodes: int = key(
        kinds.whole_number(0, 1000),
        default=0,
        help="nodes that stay up, and are billed, while no job runs",
    )
    max_vcpus: int = key(
        kinds.whole_number(1, 1_000_000),
        default=Derived(text="`max_nodes` x the vCPUs of the type", compute=_max_vcpus),
        help="ceiling of the compute environment; more than one largest job needs lets jobs run "
        "side by side; keep it within the account's vCPU quota",
    )
    efa_layout: EfaLayout = key(  # noqa: RUF009 - it declares a field
        kinds.one_of(EfaLayout),
        default=EfaLayout.EFA,
        help="interfaces on the secondary network cards: `efa` takes an address on each, as AWS's "
        "own samples do, `efa-only` takes none",
    )
    vpc_id: str | None = key(
        kinds.optional(kinds.resource_id("vpc")),
        default=None,
        help="existing VPC to use instead of a new one, with `subnet_id` and `subnet_cidr`; "
        "nothing in it is looked up or changed",
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
        help="existing security group of the nodes in `vpc_id`, open to itself in both "
        "directions; left out, one is created",
    )
    default_security_group_id: str | None = key(
        kinds.optional(kinds.resource_id("sg")),
        default=None,
        help="default security group of `vpc_id`, which the tasks of multi-node Batch jobs carry: "
        "it must admit itself on TCP, in and out; only looked at, by `submit`",
    )
    availability_zone_id: str | None = key(
        kinds.optional(zone()),
        default=Derived(
            text="the zone that offers the type and the most others; none with `subnet_id`",
            compute=_best_zone,
        ),
        help="zone id of the nodes (`usw2-az4`: the same zone in every account), checked against "
        "the catalogue; another one later is an update of what starts nodes, and of nothing else; "
        "a zone name (`us-west-2d`) is accepted with a warning, and cannot be changed later",
    )
    vpc_cidr: str | None = key(
        kinds.optional(kinds.cidr(addresses.WIDEST_PREFIX, addresses.NARROWEST_VPC_PREFIX)),
        default=Derived(
            text="10.0.0.0/16; none with `vpc_id`",
            compute=lambda earlier: None if earlier["vpc_id"] else "10.0.0.0/16",
        ),
        help="address range of a new VPC; a quarter of it is the nodes' subnet in each of up to "
        "three zones",
    )
    nat_gateways: int = key(
        kinds.whole_number(0, 1),
        default=Derived(
            text="1; 0 with `vpc_id`", compute=lambda earlier: 0 if earlier["vpc_id"] else 1
        ),
        help="NAT gateways of a new VPC, billed by the hour; nodes need one to install the EFA "
        "software unless `ami_id` has it",
    )
    interface_endpoints: bool = key(
        kinds.boolean(),
        default=Derived(
            text="true; false with `vpc_id`", compute=lambda earlier: not earlier["vpc_id"]
        ),
        help="interface endpoints in a new VPC for what a private node calls (ECR, ECS, logs and "
        "the like), billed by the hour; false sends those calls through the NAT gateway",
    )
    neuron_release: str = key(
        kinds.name_in(NEURON_RELEASES, noun="Neuron release", suggested=TRAINING_RELEASES),
        default=DEFAULT_RELEASE,
        help="Neuron SDK release; it pins the container image, the host driver and the host image",
    )
    base_image: str | None = key(
        kinds.optional(image_reference()),
        default=None,
        help="image to build on, instead of the one that the release pins",
    )
    image_uri: str | None = key(
        kinds.optional(image_reference()),
        default=None,
        help="finished image to run; nothing is built",
    )
    ami_id: str | None = key(
        kinds.optional(kinds.resource_id("ami")),
        default=None,
        help="host image, instead of the dated ECS-optimised Neuron image that fits the release; "
        "[what it must hold](operating.md#a-host-image-of-your-own)",
    )
    root_volume_gib: int = key(
        kinds.whole_number(100, contract.MAX_ROOT_VOLUME_GIB),
        default=contract.ROOT_VOLUME_GIB,
        help="size of each node's root volume; the container image lies on it",
    )
    capacity_reservation_id: str | None = key(
        kinds.optional(kinds.resource_id("cr")),
        default=None,
        help="On-Demand Capacity Reservation to launch the nodes in",
    )
    capacity_block_id: str | None = key(
        kinds.optional(kinds.resource_id("cr")),
        default=None,
        help="Capacity Block for ML to launch the nodes in; on Batch a compute environment ends "
        "with its block: for the next one destroy the `batch` stack and deploy again",
    )
    placement_group: str | None = key(
        kinds.optional(placement_group_name()),
        default=None,
        help="existing cluster placement group to launch the nodes in, such as the one that "
        "`capacity_reservation_id` was made in; left out, one is created, and none for reserved "
        "capacity",
    )
    scale_down_delay_minutes: int | None = key(
        kinds.optional(kinds.whole_number(20, 10_080)),
        default=None,
        help="minutes that idle nodes stay up, and are billed, for the next job; left out, Batch "
        "ends them within minutes",
    )
    runnable_time_limit_minutes: int = key(
        kinds.whole_number(
            10,
            1440,
            why="Batch cancels no sooner than after 10 minutes and no later than after a day",
        ),
        default=60,
        help="minutes after which a job is cancelled that heads its queue and cannot start: no "
        "capacity, or a configuration that can never run; 1440, a day, is the longest wait that "
        "Batch allows. On EKS: minutes for which idle nodes are held for a job that waits for more",
    )
    job_time_limit_hours: int = key(
        kinds.whole_number(1, contract.MAX_JOB_TIME_LIMIT_HOURS),
        default=contract.JOB_TIME_LIMIT_HOURS,
        help="longest time limit that a job may ask for; each workload has a default of its own",
    )
    log_retention_days: int = key(
        kinds.one_number_of(LOG_RETENTION_DAYS, whose="the periods of CloudWatch Logs"),
        default=30,
        help="days that CloudWatch keeps the logs of the nodes",
    )
    cpu_instance_types: tuple[str, ...] = key(
        kinds.comma_separated(cpu_instance_type, noun="list"),
        default=DEFAULT_CPU_INSTANCE_TYPES,
        help="types that data and export jobs may run on; several give Spot more to choose from",
    )
    cpu_spot: bool = key(
        kinds.boolean(),
        default=True,
        help="run data and export jobs on Spot instances; a job whose instance is reclaimed is "
        "retried and goes on",
    )
    cpu_max_vcpus: int = key(
        kinds.whole_number(1, 100_000),
        default=64,
        help="ceiling of the CPU environment over all its jobs, 16 vCPUs each",
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
        help="security group of `lustre_dns_name`: it then admits the nodes on Lustre's ports, and "
        "what it lets out is left as it is; with `security_group_id` the rules of both groups are "
        "yours",
    )
    lustre_gib: int = key(
        kinds.whole_number(0, 1_000_000),
        default=Derived(text="0; 1200 with `eks` and no `lustre_dns_name`", compute=_lustre_gib),
        help="size of a new FSx for Lustre file system, mounted on every node at /fsx and billed "
        "while it exists; 0 makes none, and removes one that there was",
    )
    lustre_zone_id: str | None = key(
        kinds.optional(zone()),
        default=Derived(
            text="the default of `availability_zone_id`, whatever that is set to",
            compute=_lustre_zone,
        ),
        help="zone id of that file system, which cannot move; nodes in another zone reach it, and "
        "pay for traffic across zones; with `vpc_id` it is in `subnet_id`",
    )
    lustre_mbps_per_tib: int = key(
        kinds.one_number_of({125, 250, 500, 1000}, whose="the throughputs of PERSISTENT_2"),
        default=contract.LUSTRE_MBPS_PER_TIB,
        help="throughput of that file system in MB/s for each TiB",
    )
    data_uris: tuple[str, ...] = key(
        kinds.possibly_empty_list(data_uri, noun="list"),
        default=(),
        help="`s3://bucket/prefix` outside the deployment that jobs may use: tokenize reads "
        "there, `--checkpoint-uri` may point there",
    )
    bucket_name: str | None = key(
        kinds.optional(bucket_name()),
        default=None,
        help="existing bucket for data, runs and caches; left out, one is created",
    )
    bucket_kms_key_arn: str | None = key(
        kinds.optional(kms_key_arn()),
        default=None,
        help="ARN of the KMS key that `bucket_name` encrypts with; the jobs' roles may then use it "
        "through S3",
    )
    retain_data: bool = key(
        kinds.boolean(),
        default=True,
        help="destroy keeps the created bucket and says so; false empties and deletes it",
    )
    cdk_preflight: bool = key(
        kinds.boolean(),
        default=True,
        help="synthesis fails on what cdk-preflight knows that AWS refuses during a deployment; "
        "false leaves its rules out, and some seconds, for a synthesis that is not deployed",
    )
