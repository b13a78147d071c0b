"""Changes between the deployed templates and an assembly, as classified by `cdk diff`.

The pinned CDK CLI, which also deploys the stacks, includes AWS's resource schemas and
documentation. A CloudFormation change set would also take parameter values into account, but it
needs uploaded templates and permission to create it in every stack, and this command is read-only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from jobs.deploy_check.assembly import REPOSITORY, Template
from jobs.errors import Refusal

DIFFERENCES = REPOSITORY / "tools" / "cdk" / "differences.cjs"
LAUNCH_TEMPLATE = "AWS::EC2::LaunchTemplate"

# `cdk diff` compares whole properties. In resources of these types, a change of one of these parts
# of a property replaces the resource (CloudFormation template reference); tests/jobs/deploy_check
# compares them with the CLI's data.
REPLACING_PARTS: Mapping[str, frozenset[str]] = {
    "AWS::EKS::Cluster": frozenset(
        {
            "AccessConfig.BootstrapClusterCreatorAdminPermissions",
            "ResourcesVpcConfig.SecurityGroupIds",
            "ResourcesVpcConfig.SubnetIds",
        }
    ),
    "AWS::FSx::FileSystem": frozenset(
        f"LustreConfiguration.{name}"
        for name in (
            "CopyTagsToBackups",
            "DeploymentType",
            "DriveCacheType",
            "ExportPath",
            "ImportPath",
            "ImportedFileChunkSize",
            "PerUnitStorageThroughput",
        )
    ),
}


class Fate(StrEnum):
    """Effect of an update on a resource."""

    ADDED = "added"
    UPDATED = "updated"
    MAYBE_REPLACED = "may be replaced"
    REPLACED = "replaced"
    REMOVED = "removed"


_FATES = {
    "WILL_CREATE": Fate.ADDED,
    "MAY_REPLACE": Fate.MAYBE_REPLACED,
    "WILL_REPLACE": Fate.REPLACED,
    "WILL_DESTROY": Fate.REMOVED,
    "WILL_ORPHAN": Fate.REMOVED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed resource, with reasons."""

    stack: str
    logical_id: str
    resource_type: str
    fate: Fate
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    changed: frozenset[str] = frozenset()
    """Changed properties, as ``Name`` or ``Name.Part``."""
    reasons: tuple[str, ...] = ()
    """Properties that cause its fate."""

    @property
    def changed_properties(self) -> set[str]:
        """Names of the changed properties, without their parts."""
        return {name.partition(".")[0] for name in self.changed}

    @property
    def gone(self) -> bool:
        """True if the update removes the deployed resource."""
        return self.fate in (Fate.REPLACED, Fate.REMOVED)

    @property
    def keeps_old(self) -> bool:
        """True if the old resource is retained outside the stack."""
        policy, entry = ("DeletionPolicy", self.old)
        if self.fate is not Fate.REMOVED:
            policy, entry = ("UpdateReplacePolicy", self.new)
        return str(entry.get(policy, "Delete")).startswith("Retain")

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties in the new template, or in the old one for a removed resource."""
        found: Mapping[str, Any] = (self.new or self.old).get("Properties", {})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The update of those stacks of the assembly that are already deployed."""

    changes: tuple[Change, ...]
    after: Mapping[str, Template]
    """The new templates, with placeholders for references whose values change."""


def compare(deployed: Mapping[str, Template], assembly: Mapping[str, Template]) -> Update:
    """Find all changed resources, including those that refer to changed ones in their stack."""
    after = {name: assembly[name] for name in assembly if name in deployed}
    while True:
        changes = tuple(_changes({name: (deployed[name], after[name]) for name in after}))
        marked = {name: _mark_references(after[name], name, changes) for name in after}
        if marked == after:
            return Update(changes=changes, after=after)
        # `cdk diff` follows references to replaced resources only to find further replacements,
        # and does not follow references to new launch template versions.
        after = marked


def _mark_references(template: Template, stack: str, changes: tuple[Change, ...]) -> Template:
    """Return the template with placeholders for references whose values change."""
    mine = [change for change in changes if change.stack == stack]
    replaced = {change.logical_id for change in mine if change.fate is Fate.REPLACED}
    versions = {
        change.logical_id
        for change in mine
        if change.resource_type == LAUNCH_TEMPLATE
        and "LaunchTemplateData" in change.changed_properties
    }

    def mark(value: Any) -> Any:
        if isinstance(value, list):
            return [mark(inner) for inner in value]
        if not isinstance(value, Mapping):
            return value
        for name, attribute in _references(value):
            if name in replaced or (name in versions and attribute == "LatestVersionNumber"):
                return f"new {name}.{attribute}"
        return {key: mark(inner) for key, inner in value.items()}

    marked: Template = mark(template)
    return marked


def _references(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the resource and attribute of a reference, in the two forms used by the CDK."""
    if isinstance(value.get("Ref"), str):
        yield value["Ref"], "Ref"
    elif isinstance(value.get("Fn::GetAtt"), list):
        name, *attribute = value["Fn::GetAtt"]
        yield name, ".".join(map(str, attribute))


def _changes(templates: Mapping[str, tuple[Template, Template]]) -> Iterator[Change]:
    for stack, resources in _impacts(templates).items():
        old, new = (template.get("Resources", {}) for template in templates[stack])
        for logical_id, resource in resources.items():
            was, will_be = old.get(logical_id, {}), new.get(logical_id, {})
            kind = (will_be or was)["Type"]
            impacts: Mapping[str, str] = resource["properties"]
            fate = _FATES.get(resource["impact"], Fate.UPDATED)
            if kind == "AWS::CDK::Metadata" or (fate is Fate.UPDATED and not impacts):
                continue  # only a template attribute, such as metadata
            changed = (
                frozenset(part for name in impacts for part in _parts(name, was, will_be))
                if was and will_be
                else frozenset()
            )
            replacing = {name for name, impact in impacts.items() if _FATES.get(impact) is fate}
            if fate in (Fate.UPDATED, Fate.MAYBE_REPLACED) and (
                parts := changed & REPLACING_PARTS.get(kind, frozenset())
            ):
                fate, replacing = Fate.REPLACED, set(parts)
            yield Change(
                stack=stack,
                logical_id=logical_id,
                resource_type=kind,
                fate=fate,
                old=was,
                new=will_be,
                changed=changed,
                reasons=tuple(sorted(replacing or changed)),
            )


def _parts(name: str, was: Mapping[str, Any], will_be: Mapping[str, Any]) -> Iterator[str]:
    """Yield the changed parts of a property, or its name if it has no parts."""
    old, new = (entry.get("Properties", {}).get(name) for entry in (was, will_be))
    if not all(isinstance(value, Mapping) and not _is_intrinsic(value) for value in (old, new)):
        yield name
        return
    yield from (
        f"{name}.{part}" for part in {**old, **new} if _differ(old.get(part), new.get(part))
    )


def _is_intrinsic(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and all(key == "Ref" or key.startswith("Fn::") for key in value)


def _differ(old: Any, new: Any) -> bool:
    """Return whether values differ for CloudFormation, which treats "true" as true and "5" as 5."""
    old, new = (json.dumps(value, sort_keys=True).replace('"', "") for value in (old, new))
    return bool(old != new)


def _impacts(templates: Mapping[str, tuple[Template, Template]]) -> Mapping[str, Any]:
    """Get the impact on each changed resource of each stack from the CDK CLI."""
    search_path = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
    try:
        completed = subprocess.run(
            [shutil.which("node", path=search_path) or "node", str(DIFFERENCES)],
            input=json.dumps(templates),
            capture_output=True,
            text=True,
            check=True,
        )
        found: Mapping[str, Any] = json.loads(completed.stdout)
        return found
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        reason = next((line for line in lines if "Error" in line), lines[-1])
        raise Refusal(
            "no-database",
            f"{DIFFERENCES} failed ({reason}); it needs the pinned CDK CLI, which "
            "`make setup` installs",
        ) from None
