"""Warnings, for ``Annotations``, about settings that cost money or cannot be checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from stacks.config.refusal import setting
from stacks.config.values import ConfigValues
from trainium_catalogue.charts import VOLCANO_KUBERNETES, VOLCANO_VERSION
from trainium_catalogue.eks import (
    NEWER_KERNEL,
    OLD_IMAGE_DAYS,
    STANDARD_SUPPORT_ENDS,
    SUPPORT_WARNING_DAYS,
    SYSTEM_NODES,
    USD_PER_HOUR_ESTIMATE,
)
from trainium_catalogue.wording import counted, either
from trainium_catalogue.zones import USD_PER_GB_ACROSS_ZONES

_FAMILIES_ON_BATCH = frozenset({"trn1", "trn1n"})
"""Families that Batch listed as accepted (torchx pull request 792, 2023)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigWarning:
    """A warning with an id for ``Annotations.acknowledge_warning``."""

    id: str
    message: str


def warnings_of(config: ConfigValues) -> tuple[ConfigWarning, ...]:
    """Return all warnings about this configuration."""
    return tuple(ConfigWarning(id=f"trainium:{id}", message=text) for id, text in _warnings(config))


def dated_warnings_of(config: ConfigValues, today: date) -> tuple[ConfigWarning, ...]:
    """Return warnings that depend on the date; the templates do not."""
    if not config.runs_on_eks:
        return ()
    dated = [*_support_end(config, today), *_system_image_age(config, today)]
    return tuple(ConfigWarning(id=f"trainium:{id}", message=text) for id, text in dated)


def _support_end(config: ConfigValues, today: date) -> Iterator[tuple[str, str]]:
    ends = STANDARD_SUPPORT_ENDS[config.kubernetes_version]
    if today < ends - timedelta(days=SUPPORT_WARNING_DAYS):
        return
    yield (
        "supportEnds",
        f"{setting('kubernetes_version', config.kubernetes_version)} is in EKS standard support "
        f"until {ends}; after that, EKS upgrades the control plane automatically, at a time that "
        "it chooses, but not the nodes or add-ons: see docs/upgrading.md",
    )


def _system_image_age(config: ConfigValues, today: date) -> Iterator[tuple[str, str]]:
    image = config.system_image
    built = datetime.strptime(image.rpartition("-")[2], "%Y%m%d").date()
    if (age := (today - built).days) < OLD_IMAGE_DAYS:
        return
    yield (
        "systemImage",
        f"{setting('eks_system_image', image)} is {age:,} days old, and newer ones have security "
        "fixes: see docs/upgrading.md for the newest",
    )


def _warnings(config: ConfigValues) -> Iterator[tuple[str, str]]:
    type_name = config.instance_type
    if config.zone_name is not None:
        offered = either(config.instance.zone_ids[config.region])
        yield (
            "zoneName",
            f"{setting('availability_zone_id', config.zone_name)} cannot be checked: a zone name "
            f"can map to a different zone in each account; for {type_name}, its zone id must be "
            f"{offered}",
        )
    if config.subnet_id is not None and config.availability_zone_id is None:
        yield (
            "subnetZone",
            f"{setting('subnet_id', config.subnet_id)} cannot be checked: set "
            f"{setting('availability_zone_id', '<its zone id>')} to check that its zone offers "
            f"{type_name}",
        )
    if config.runs_on_batch and config.instance.family not in _FAMILIES_ON_BATCH:
        yield (
            "batchInstanceType",
            f"{setting('instance_type', type_name)} cannot be checked: AWS does not document "
            "whether Batch accepts the type; if it does not, the deployment of the `batch` stack "
            f"fails; {setting('orchestrators', 'eks')} does not use Batch for nodes",
        )
    if config.security_group_id is not None:
        yield (
            "securityGroup",
            f"{setting('security_group_id', config.security_group_id)} cannot be checked: for EFA, "
            "it must allow all traffic to and from itself",
        )
    needs_default_group = config.vpc_id is not None and config.tasks_use_default_group
    if needs_default_group and config.default_security_group_id is None:
        yield (
            "defaultSecurityGroup",
            f"{setting('vpc_id', config.vpc_id)} has a default security group that cannot be "
            "checked: tasks of multi-node jobs use it, and it must allow TCP between its members, "
            f"in and out; set {setting('default_security_group_id', '<its id>')} so that `submit` "
            "checks it",
        )
    if config.has_lustre and config.security_group_id is not None:
        reverse = ", whose rules must allow the same" if config.lustre_dns_name else ""
        yield (
            "lustreGroup",
            f"{setting('security_group_id', config.security_group_id)} is not changed: it must "
            f"allow TCP 988 and 1018-1023 to and from the file system's group{reverse}",
        )
    if config.lustre_security_group_id is not None:
        yield (
            "lustreServersGroup",
            f"{setting('lustre_security_group_id', config.lustre_security_group_id)} cannot be "
            f"checked: {config.lustre_dns_name} must use it",
        )
    if config.lustre_gib:
        yield (
            "lustre",
            f"{setting('lustre_gib', config.lustre_gib)} creates a file system that is billed by "
            "the hour while it exists; cdk destroy deletes it with all data not exported to "
            "the bucket",
        )
    zones = config.zone_ids or (config.availability_zone_id,)
    others = [zone for zone in zones if zone is not None and zone != config.lustre_zone_id]
    if config.lustre_gib and config.lustre_zone_id is not None and others:
        same_zone = (
            f"; to use their zone, set {setting('lustre_zone_id', others[0])}, but delete an "
            f"existing file system first with {setting('lustre_gib', 0)}"
        )
        yield (
            "lustreZone",
            f"{setting('lustre_zone_id', config.lustre_zone_id)} is not the nodes' zone, "
            f"{either(others)}: reads and writes across zones are slower, and billed at "
            f"{USD_PER_GB_ACROSS_ZONES:.2f} USD a GB each way (estimate)"
            f"{same_zone if len(zones) == 1 else ''}",
        )
    if config.runs_on_eks:
        yield (
            "eks",
            f"{setting('orchestrators', ','.join(config.orchestrators))} creates a cluster with "
            f"{SYSTEM_NODES} small nodes for its add-ons, billed continuously: about "
            f"{USD_PER_HOUR_ESTIMATE:.2f} USD an hour (estimate)",
        )
    if config.runs_on_eks and config.kubernetes_version in NEWER_KERNEL and config.has_lustre:
        yield (
            "lustreKernel",
            f"{setting('kubernetes_version', config.kubernetes_version)} cannot be checked: its "
            "nodes run Linux 6.18, for which no Lustre client is known",
        )
    if config.runs_on_eks and config.kubernetes_version not in VOLCANO_KUBERNETES:
        yield (
            "volcanoKubernetes",
            f"{setting('kubernetes_version', config.kubernetes_version)} is newer than the "
            f"versions that Volcano {VOLCANO_VERSION} lists as compatible "
            f"({', '.join(sorted(VOLCANO_KUBERNETES))}): Volcano ignores that "
            "version's new features",
        )
    if config.eks_node_image is not None:
        yield (
            "nodeImage",
            f"{setting('eks_node_image', config.eks_node_image)} cannot be fully checked, "
            "because its driver may be unknown: Neuron release "
            f"{config.neuron_release} needs driver {config.release.driver_range}",
        )
    if config.eks_chart_versions:
        yield (
            "chartVersions",
            f"{setting('eks_chart_versions', ','.join(config.eks_chart_versions))} cannot be "
            "checked: the charts' values are those of the pinned versions, and `python -m jobs` "
            f"parses the output of Volcano {VOLCANO_VERSION}",
        )
    if config.eks_nodes:
        usd = config.eks_nodes * config.instance.usd_per_hour_estimate
        idle = config.eks_idle_minutes
        until = f"idle for {counted(idle, 'minute')}" if idle else "scaled down"
        yield (
            "eksNodes",
            f"{setting('eks_nodes', config.eks_nodes)} starts {counted(config.eks_nodes, 'node')}, "
            f"billed until {until}: about {usd:,.0f} USD an hour (estimate)",
        )
    if config.runs_on_eks and not config.eks_idle_minutes:
        yield (
            "idleNodes",
            f"{setting('eks_idle_minutes', 0)} keeps idle nodes of the cluster running, about "
            f"{config.instance.usd_per_hour_estimate:.0f} USD an hour each (estimate), until you "
            "scale them down",
        )
    if config.ami_id is not None:
        yield (
            "hostImage",
            f"{setting('ami_id', config.ami_id)} cannot be checked: Neuron release "
            f"{config.neuron_release} needs driver {config.release.driver_range}",
        )
    for key in ("base_image", "image_uri"):
        if (image := getattr(config, key)) is not None:
            yield (
                "containerImage",
                f"{setting(key, image)} cannot be checked: it must contain the runtime of Neuron "
                f"release {config.neuron_release} ({config.release.runtime_library})",
            )
    for key in ("capacity_reservation_id", "capacity_block_id"):
        if (reservation := getattr(config, key)) is not None:
            zone = config.availability_zone_id or f"the zone of {config.subnet_id}"
            yield (
                "reservation",
                f"{setting(key, reservation)} cannot be checked: it must be for {type_name} in "
                f"{zone}",
            )
    if config.monthly_budget_usd is not None and config.capacity_block_id is not None:
        yield (
            "blockBudget",
            f"{setting('monthly_budget_usd', config.monthly_budget_usd)} does not count "
            f"{setting('capacity_block_id', config.capacity_block_id)}: a block is paid for "
            "upfront, outside this deployment and without its tag",
        )
    if config.placement_group is not None:
        yield (
            "placementGroup",
            f"{setting('placement_group', config.placement_group)} cannot be checked: it must be a "
            f"cluster placement group of this account in {config.region}; if a reservation was "
            "created in a placement group, it must be that one",
        )
    if config.bucket_kms_key_arn is not None:
        yield (
            "bucketKey",
            f"{setting('bucket_kms_key_arn', config.bucket_kms_key_arn)} cannot be checked: the "
            "key's policy must let the account's IAM policies grant its use, and users who submit "
            "need kms:Decrypt and kms:GenerateDataKey too",
        )
    elif config.bucket_name is not None:
        yield (
            "existingBucket",
            f"{setting('bucket_name', config.bucket_name)} cannot be checked: if it is encrypted "
            f"with a customer managed key, add {setting('bucket_kms_key_arn', '<its ARN>')}",
        )
    if config.notify_topic_arn is not None:
        yield (
            "notifyTopic",
            f"{setting('notify_topic_arn', config.notify_topic_arn)} cannot be checked: it must "
            "exist; if it belongs to another account, or is encrypted with a customer managed "
            "key, the policies of the topic and the key must let this account's roles use them",
        )
    if config.notify_topic_arn is not None and config.monthly_budget_usd is not None:
        yield (
            "budgetTopic",
            f"{setting('notify_topic_arn', config.notify_topic_arn)} cannot be checked: the budget "
            "notifies only a topic of this account whose policy allows budgets.amazonaws.com to "
            "publish (and to use its key)",
        )
    if config.min_nodes:
        usd = config.min_nodes * config.instance.usd_per_hour_estimate
        yield (
            "minNodes",
            f"{setting('min_nodes', config.min_nodes)} keeps {counted(config.min_nodes, 'node')} "
            f"running and billed continuously: about {usd:,.0f} USD an hour (estimate)",
        )
