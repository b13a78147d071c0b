"""Any context gives either a configuration or a refusal."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stacks.config import AppConfig, ConfigError
from stacks.config.keys import keys_of
from stacks.config.names import LOG_RETENTION_DAYS
from trainium_catalogue.eks import KUBERNETES_VERSIONS
from trainium_catalogue.instances import CPU_INSTANCE_TYPES, INSTANCE_TYPES, EfaLayout
from trainium_catalogue.releases import NEURON_RELEASES

# On a busy laptop with two workers, a slow example is not a failure.
unhurried = settings(deadline=None)

KEYS = sorted(keys_of(AppConfig))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
# Text that passes the first checks more often than arbitrary text.
NEARLY = st.from_regex(
    r"(\[.*|-?\d+|\d+\.\d+\.\d+\.\d+/\d+|[a-z]{2,6}-[0-9a-f]{8}|[a-z0-9-]{1,12}|[a-z./:@-]{1,20})",
    fullmatch=True,
)
NAMES = st.sampled_from([f"trainium:{key}" for key in KEYS]) | st.text() | st.sampled_from(KEYS)


def hexadecimal(prefix: str) -> st.SearchStrategy[str]:
    return st.from_regex(rf"{prefix}-([0-9a-f]{{8}}|[0-9a-f]{{17}})", fullmatch=True)


IMAGES = st.sampled_from(["me/base:1", "localhost:5000/me/it@sha256:" + "0" * 64])
CIDRS = st.builds("10.{}.0.0/{}".format, st.integers(0, 255), st.integers(16, 26))

PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "deployment": st.from_regex(r"[a-z][a-z0-9]{0,20}", fullmatch=True),
    "orchestrators": st.sampled_from([["batch"], ["eks"], ["batch", "eks"]]),
    "region": st.sampled_from(sorted({r for t in INSTANCE_TYPES.values() for r in t.zone_ids})),
    "instance_type": st.sampled_from(sorted(INSTANCE_TYPES)),
    "max_nodes": st.integers(1, 40),
    "min_nodes": st.integers(0, 3),
    "max_vcpus": st.integers(1, 20_000),
    "efa_layout": st.sampled_from([layout.value for layout in EfaLayout]),
    "vpc_id": hexadecimal("vpc"),
    "subnet_id": hexadecimal("subnet"),
    "subnet_cidr": CIDRS,
    "security_group_id": hexadecimal("sg"),
    "default_security_group_id": hexadecimal("sg"),
    "availability_zone_id": st.sampled_from(["usw2-az1", "use2-az3", "us-west-2a"]),
    "zone_ids": st.sampled_from(["usw2-az4", "usw2-az1,usw2-az4", "use2-az3,use2-az1"]),
    "vpc_cidr": CIDRS,
    "nat_gateways": st.integers(0, 1),
    "interface_endpoints": st.booleans(),
    "neuron_release": st.sampled_from(sorted(NEURON_RELEASES)),
    "base_image": IMAGES,
    "image_uri": IMAGES,
    "ami_id": hexadecimal("ami"),
    "root_volume_gib": st.integers(100, 16_384),
    "capacity_reservation_id": hexadecimal("cr"),
    "capacity_block_id": hexadecimal("cr"),
    "placement_group": st.just("near"),
    "bucket_kms_key_arn": st.just("arn:aws:kms:us-west-2:111122223333:key/1234abcd"),
    "scale_down_delay_minutes": st.integers(20, 10_080),
    "runnable_time_limit_minutes": st.integers(10, 1440),
    "job_time_limit_hours": st.integers(1, 720),
    "max_cost_per_job_usd": st.integers(1, 10**8),
    "monthly_budget_usd": st.integers(1, 10**8),
    "notify_email": st.just("team@example.com"),
    "log_retention_days": st.sampled_from(sorted(LOG_RETENTION_DAYS)),
    "cpu_instance_types": st.lists(
        st.sampled_from(sorted(CPU_INSTANCE_TYPES)), min_size=1, max_size=3, unique=True
    ),
    "cpu_spot": st.booleans(),
    "cpu_max_vcpus": st.integers(1, 512),
    "lustre_zone_id": st.sampled_from(["usw2-az1", "usw2-az4", "us-west-2a"]),
    "lustre_gib": st.sampled_from([0, 1200, 2400, 3600, 4800]),
    "lustre_mbps_per_tib": st.sampled_from([125, 250, 500, 1000]),
    "lustre_dns_name": st.just("fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"),
    "lustre_security_group_id": hexadecimal("sg"),
    "lustre_mount_name": st.from_regex(r"[a-z0-9]{8}", fullmatch=True),
    "data_uris": st.lists(st.just("s3://a-bucket/a/prefix"), max_size=1),
    "kubernetes_version": st.sampled_from(sorted(KUBERNETES_VERSIONS)),
    "eks_submitter_arns": st.just(["arn:aws:iam::111122223333:role/submitter"]),
    "eks_admin_arns": st.just(["arn:aws:iam::111122223333:role/admin"]),
    "eks_endpoint_cidrs": st.just(["203.0.113.7/32"]),
    "eks_private": st.booleans(),
    "eks_nodes": st.integers(0, 4),
    "eks_idle_minutes": st.integers(0, 1440),
    "eks_subnet_ids": st.lists(hexadecimal("subnet"), min_size=1, max_size=2, unique=True),
    "eks_system_instance_types": st.just(["m6i.xlarge"]),
    "cdk_preflight": st.booleans(),
    "eks_node_image": st.just("1.35.6-20260625"),
    "eks_system_image": st.just("1.35.7-20260903"),
    "eks_add_on_versions": st.just(["vpc-cni=v1.22.4-eksbuild.3"]),
    "eks_image_registry": st.just("registry.example.com/mirror"),
    "eks_chart_versions": st.just(["efa=v0.5.29"]),
    "node_shell": st.booleans(),
    "notify_topic_arn": st.just("arn:aws:sns:us-west-2:111122223333:runs"),
    "notify_wait_minutes": st.integers(10, 1440),
    "bucket_name": st.from_regex(r"[a-z][a-z0-9-]{1,20}[a-z0-9]", fullmatch=True),
    "retain_data": st.booleans(),
}
CONTEXTS = st.sets(st.sampled_from(KEYS), max_size=6).flatmap(
    lambda names: st.fixed_dictionaries({name: PLAUSIBLE[name] for name in sorted(names)})
)


def outcome(context: dict[str, Any]) -> AppConfig | str:
    try:
        return AppConfig.from_mapping({f"trainium:{key}": value for key, value in context.items()})
    except ConfigError as refusal:
        return str(refusal)


def as_typed_after_c(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def test_every_key_has_plausible_values_here() -> None:
    assert sorted(PLAUSIBLE) == KEYS


@unhurried
@given(st.dictionaries(NAMES, JSON | NEARLY, max_size=5))
def test_any_mapping_is_configured_or_refused(context: dict[str, Any]) -> None:
    try:
        config = AppConfig.from_mapping(context)
    except ConfigError as refusal:
        assert str(refusal).isprintable()
    else:
        assert config.warnings is not None


@unhurried
@given(CONTEXTS)
def test_plausible_values_equal_their_text_and_are_runnable_or_refused(
    context: dict[str, Any],
) -> None:
    config = outcome(context)

    assert outcome({key: as_typed_after_c(value) for key, value in context.items()}) == config
    if isinstance(config, AppConfig):
        assert config.addresses_needed(config.efa_layout) <= config.usable_addresses
        assert config.instance.vcpus_for(config.max_nodes) <= config.max_vcpus
        assert config.instance.family in config.release.families
        assert config.region in config.instance.zone_ids
