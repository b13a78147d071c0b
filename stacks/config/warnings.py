"""Warnings about what cannot be checked here or costs money: data for ``Annotations``."""

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
from trainium_catalogue.zones import USD_PER_GB_ACROSS_ZONES

_FAMILIES_ON_BATCH = frozenset({"trn1", "trn1n"})
"""Families in the list that Batch itself printed (torchx pull request 792, of 2023)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigWarning:
    """A warning with an id, by which ``Annotations.acknowledge_warning`` silences it."""

    id: str
    message: str


def warnings_of(config: ConfigValues) -> tuple[ConfigWarning, ...]:
    """All warnings about this configuration."""
    return tuple(ConfigWarning(id=f"trainium:{id}", message=text) for id, text in _warnings(config))


def dated_warnings_of(config: ConfigValues, today: date) -> tuple[ConfigWarning, ...]:
    """Warnings that appear with time; apart, since templates and tests depend on no date."""
    if not config.runs_on_eks:
        return ()
    found = [*_support_ends(config, today), *_system_image_is_old(config, today)]
    return tuple(ConfigWarning(id=f"trainium:{id}", message=text) for id, text in found)


def _support_ends(config: ConfigValues, today: date) -> Iterator[tuple[str, str]]:
    ends = STANDARD_SUPPORT_ENDS[config.kubernetes_version]
    if today < ends - timedelta(days=SUPPORT_WARNING_DAYS):
        return
    yield (
        "supportEnds",
        f"{setting('kubernetes_version', config.kubernetes_version)} has EKS's standard support "
        f"until {ends}; from then on EKS upgrades the control plane by itself, at an hour of its "
        "choice, and leaves nodes and add-ons behind: see docs/upgrading.md",
    )


def _system_image_is_old(config: ConfigValues, today: date) -> Iterator[tuple[str, str]]:
    image = config.system_image
    built = datetime.strptime(image.rpartition("-")[2], "%Y%m%d").date()
    if (age := (today - built).days) < OLD_IMAGE_DAYS:
        return
    yield (
        "systemImage",
        f"{setting('eks_system_image', image)} is {age} days old, and later ones have security "
        "fixes: see docs/upgrading.md for the newest",
    )


def _warnings(config: ConfigValues) -> Iterator[tuple[str, str]]:
    type_name = config.instance_type
    if config.zone_name is not None:
        offered = ", ".join(config.instance.zone_ids[config.region])
        yield (
            "zoneName",
            f"{setting('availability_zone_id', config.zone_name)} cannot be checked: a zone name "
            f"means another zone in every account; the zone ids that offer {type_name} are "
            f"{offered}",
        )
    if config.subnet_id is not None and config.availability_zone_id is None:
        yield (
            "subnetZone",
            f"{setting('subnet_id', config.subnet_id)} cannot be checked: set "
            f"{setting('availability_zone_id', '<its zone id>')} to know whether its zone offers "
            f"{type_name}",
        )
    if config.runs_on_batch and config.instance.family not in _FAMILIES_ON_BATCH:
        yield (
            "batchInstanceType",
            f"{setting('instance_type', type_name)} cannot be checked: nothing that AWS publishes "
            "says that Batch takes the type, and if it does not, the deployment of the `batch` "
            f"stack fails; {setting('orchestrators', 'eks')} does not depend on it",
        )
    if config.security_group_id is not None:
        yield (
            "securityGroup",
            f"{setting('security_group_id', config.security_group_id)} cannot be checked: EFA "
            "needs all traffic from the group to itself, in and out",
        )
    needs_default_group = config.vpc_id is not None and config.tasks_use_default_group
    if needs_default_group and config.default_security_group_id is None:
        yield (
            "defaultSecurityGroup",
            f"{setting('vpc_id', config.vpc_id)} has a default security group that cannot be "
            "checked: tasks of multi-node jobs carry it, and it must admit itself on TCP, in and "
            f"out; {setting('default_security_group_id', '<its id>')} says that it does, and "
            "submit looks",
        )
    if config.has_lustre and config.security_group_id is not None:
        both = " and be admitted by it" if config.lustre_dns_name else ""
        yield (
            "lustreGroup",
            f"{setting('security_group_id', config.security_group_id)} is not changed: it must "
            f"admit the file system's group on TCP 988 and 1018-1023, in and out{both}",
        )
    if config.lustre_security_group_id is not None:
        yield (
            "lustreServersGroup",
            f"{setting('lustre_security_group_id', config.lustre_security_group_id)} cannot be "
            f"checked: {config.lustre_dns_name} must carry it",
        )
    if config.lustre_gib:
        yield (
            "lustre",
            f"{setting('lustre_gib', config.lustre_gib)} is billed by the hour while it exists, "
            "and destroy deletes it with what has not been exported to the bucket",
        )
    if config.lustre_gib and config.lustre_zone_id not in (None, config.availability_zone_id):
        zone = config.availability_zone_id
        yield (
            "lustreZone",
            f"{setting('lustre_zone_id', config.lustre_zone_id)} is not the nodes' zone {zone}: "
            "what they read and write takes longer, and is billed at "
            f"{USD_PER_GB_ACROSS_ZONES:.2f} USD a GB each way (estimate); "
            f"{setting('lustre_zone_id', zone)} is beside them, but moves no file system that "
            "exists: let that go first with "
            f"{setting('lustre_gib', 0)}",
        )
    if config.runs_on_eks:
        yield (
            "eks",
            f"{setting('orchestrators', ','.join(config.orchestrators))} makes a cluster with "
            f"{SYSTEM_NODES} small nodes for its add-ons, billed day and night: about "
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
            f"{setting('kubernetes_version', config.kubernetes_version)} is newer than what "
            f"Volcano {VOLCANO_VERSION} lists as compatible "
            f"({', '.join(sorted(VOLCANO_KUBERNETES))}): it ignores what that version added",
        )
    if config.eks_node_image is not None:
        yield (
            "nodeImage",
            f"{setting('eks_node_image', config.eks_node_image)} cannot be checked as far as its "
            "driver is not known: Neuron release "
            f"{config.neuron_release} needs driver {config.release.driver_range}",
        )
    if config.eks_chart_versions:
        yield (
            "chartVersions",
            f"{setting('eks_chart_versions', ','.join(config.eks_chart_versions))} cannot be "
            "checked: the values that the charts get are those of the pinned versions, and the "
            f"commands read what Volcano {VOLCANO_VERSION} writes",
        )
    if config.eks_nodes:
        usd = config.eks_nodes * config.instance.usd_per_hour_estimate
        idle = config.eks_idle_minutes
        until = f"no job has used them for {idle} minutes" if idle else "they are scaled down"
        yield (
            "eksNodes",
            f"{setting('eks_nodes', config.eks_nodes)} starts nodes that run, and are billed, "
            f"until {until}: about {usd:.0f} USD an hour (estimate)",
        )
    if config.runs_on_eks and not config.eks_idle_minutes:
        yield (
            "idleNodes",
            f"{setting('eks_idle_minutes', 0)} leaves nodes of the cluster that no job uses "
            f"running, about {config.instance.usd_per_hour_estimate:.0f} USD an hour each "
            "(estimate), until somebody scales them down",
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
                f"{setting(key, image)} cannot be checked: it must hold the runtime of Neuron "
                f"release {config.neuron_release} ({config.release.runtime_library})",
            )
    for key in ("capacity_reservation_id", "capacity_block_id"):
        if (reservation := getattr(config, key)) is not None:
            zone = config.availability_zone_id or f"the zone of {config.subnet_id}"
            yield (
                "reservation",
                f"{setting(key, reservation)} cannot be checked: it must hold {type_name} in "
                f"{zone}",
            )
    if config.placement_group is not None:
        yield (
            "placementGroup",
            f"{setting('placement_group', config.placement_group)} cannot be checked: it must be a "
            f"cluster placement group of this account in {config.region}, and hold a reservation "
            "that was made in it",
        )
    if config.bucket_kms_key_arn is not None:
        yield (
            "bucketKey",
            f"{setting('bucket_kms_key_arn', config.bucket_kms_key_arn)} cannot be checked: the "
            "key's policy must let the account's IAM policies grant its use, and who submits needs "
            "kms:Decrypt and kms:GenerateDataKey too",
        )
    elif config.bucket_name is not None:
        yield (
            "existingBucket",
            f"{setting('bucket_name', config.bucket_name)} cannot be checked: where it encrypts "
            f"with a KMS key of its own, add {setting('bucket_kms_key_arn', '<its ARN>')}",
        )
    if config.min_nodes:
        usd = config.min_nodes * config.instance.usd_per_hour_estimate
        yield (
            "minNodes",
            f"{setting('min_nodes', config.min_nodes)} keeps nodes running and billed day and "
            f"night: about {usd:.0f} USD an hour (estimate)",
        )
