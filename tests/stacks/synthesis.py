"""Templates of whole deployments, each synthesized once per test session."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aws_cdk as cdk

from app import add_validations, build
from stacks.config import AppConfig
from trainium_catalogue.instances import INSTANCE_TYPES, EfaLayout

ROOT = Path(__file__).resolve().parents[2]
FLAGS = {
    key: value
    for key, value in json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"].items()
    if not key.startswith("trainium:")
}
EXISTING_NETWORK: dict[str, object] = {
    "vpc_id": "vpc-12345678",
    "subnet_id": "subnet-12345678",
    "subnet_cidr": "10.0.0.0/20",
}
DNS_NAME = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
EXISTING_LUSTRE: dict[str, object] = {
    **EXISTING_NETWORK,
    "lustre_dns_name": DNS_NAME,
    "lustre_mount_name": "fqgwbbmv",
    "lustre_security_group_id": "sg-87654321",
}
PARTS = ("network", "storage", "lustre", "image", "data", "batch", "eks")

Template = dict[str, Any]

# Removed when the interpreter ends.
_OUTPUT = tempfile.TemporaryDirectory(prefix="trainium-synth-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Output of ``cdk synth`` for one configuration."""

    config: AppConfig
    folder: Path
    templates: dict[str, Template]
    """Templates by part, one of ``PARTS``; absent if the configuration has no such stack."""

    def resources(self, part: str, resource_type: str) -> list[dict[str, Any]]:
        """Properties of every resource of a type."""
        return [
            resource.get("Properties", {})
            for resource in self.templates[part]["Resources"].values()
            if resource["Type"] == resource_type
        ]

    def only(self, part: str, resource_type: str, start: str = "") -> dict[str, Any]:
        """Properties of the one resource of a type whose logical id begins with ``start``."""
        (logical_id,) = self.logical_ids(part, resource_type, start)
        properties: dict[str, Any] = self.templates[part]["Resources"][logical_id]["Properties"]
        return properties

    def logical_ids(self, part: str, resource_type: str, start: str = "") -> list[str]:
        """Logical ids of every resource of a type that begin with ``start``."""
        return [
            logical_id
            for logical_id, resource in self.templates[part]["Resources"].items()
            if resource["Type"] == resource_type and logical_id.startswith(start)
        ]

    def text(self, part: str) -> str:
        """The template as it is deployed."""
        return json.dumps(self.templates[part], indent=1, sort_keys=True)


def deployment(**keys: object) -> Deployment:
    """Synthesize ``-c trainium:<key>=<value>``; callers may change the result.

    Without the CDK's own rules, which take longer than the rest: ``test_matrix`` has them.
    """
    return _read(*_synthesize(tuple(sorted(keys.items())), checks=False))


def checked(**keys: object) -> Deployment:
    """Synthesize as a user does, with the CDK's and third-party rules; raise on findings."""
    return _read(*_synthesize(tuple(sorted(keys.items())), checks=True))


@functools.cache
def _synthesize(keys: tuple[tuple[str, object], ...], *, checks: bool) -> tuple[AppConfig, Path]:
    folder = Path(tempfile.mkdtemp(dir=_OUTPUT.name))
    # Templates name an asset by its hash, and copying the image's context takes a fifth of a
    # synthesis.
    context = FLAGS if checks else {**FLAGS, "aws:cdk:disable-asset-staging": True}
    app = cdk.App(context=context, outdir=str(folder), builtin_cloud_formation_validation=checks)
    config = AppConfig.from_mapping({f"trainium:{name}": value for name, value in keys})
    build(app, config)
    if checks:
        add_validations(app, cdk_preflight=True)
    app.synth()
    return config, folder


def _read(config: AppConfig, folder: Path) -> Deployment:
    templates = {
        part: json.loads(path.read_text(encoding="utf-8"))
        for part in PARTS
        if (path := folder / f"{config.stack_name(part)}.template.json").exists()
    }
    return Deployment(config=config, folder=folder, templates=templates)


def matrix() -> list[dict[str, object]]:
    """Combine every instance type with every layout, in a region that offers it."""
    return [
        {
            "instance_type": instance_type.name,
            "region": next(iter(instance_type.zone_ids)),
            "efa_layout": layout.value,
        }
        for instance_type in INSTANCE_TYPES.values()
        for layout in EfaLayout
    ]


def name_of(keys: dict[str, object]) -> str:
    """Format a readable id of a parametrized configuration."""
    return "-".join(str(value) for value in keys.values())
