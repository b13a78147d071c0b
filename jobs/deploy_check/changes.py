"""Differences between two sets of templates, and the changes that follow from them.

Templates refer to each other's resources, so changes propagate: replacing a subnet changes its id
for everything that refers to it, in the same stack or, through an export or an SSM parameter, in
another one. The rules are applied until nothing more follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jobs.deploy_check.assembly import Template
from jobs.deploy_check.replacements import Certainty, Path, Replacements

_SUB = re.compile(r"\$\{([^!}][^}]*)\}")
_SSM = re.compile(r"\{\{resolve:ssm:([^:}]+)")
_SSM_PARAMETER = "AWS::SSM::Parameter"
_NEW_WITH_EACH_UPDATE = {
    ("AWS::EC2::LaunchTemplate", "LatestVersionNumber"): "LaunchTemplateData",
    # Every update makes a new revision, whose number is part of the ARN.
    ("AWS::Batch::JobDefinition", None): None,
}
"""Attributes (None: what Ref returns) that also change on an update in place, and the property that
triggers it (None: any property)."""


class Fate(StrEnum):
    """The outcome of an update for one resource."""

    ADDED = "added"
    UPDATED = "updated"
    MAYBE_REPLACED = "may be replaced"
    REPLACED = "replaced"
    REMOVED = "removed"


@dataclass(slots=True)
class Change:
    """One resource that changes, and the reasons."""

    stack: str
    logical_id: str
    resource_type: str
    fate: Fate
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    paths: dict[Path, Certainty] = field(default_factory=dict)
    """Properties that change, and how certainly."""
    replaces: set[Path] = field(default_factory=set)
    """The subset that forces replacement."""

    @property
    def reasons(self) -> list[str]:
        """Names of the properties that decide its fate."""
        return sorted({".".join(part for part in path if part != "*") for path in self._deciding})

    @property
    def keeps_old(self) -> bool:
        """True if the old resource stays in the account after the stack drops it."""
        policy, entry = ("DeletionPolicy", self.old)
        if self.fate is not Fate.REMOVED:
            policy, entry = ("UpdateReplacePolicy", self.new)
        return str(entry.get(policy, "Delete")).startswith("Retain")

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties in the new template; for a removed resource, in the old one."""
        entry = self.old if self.fate is Fate.REMOVED else self.new
        found: Mapping[str, Any] = entry.get("Properties", {})
        return found

    @property
    def _deciding(self) -> set[Path]:
        return self.replaces or set(self.paths)


@dataclass(frozen=True, slots=True)
class ExportChange:
    """An export that is removed or changes its value, and the stacks that import it."""

    stack: str
    name: str
    removed: bool
    importers: tuple[str, ...]
    still_imported: bool
    """True if any of them still imports it after the update."""


class Update:
    """The update from the deployed stacks to those of the assembly."""

    def __init__(
        self,
        deployed: Mapping[str, Template],
        assembly: Mapping[str, Template],
        replacements: Replacements,
    ) -> None:
        self._deployed = deployed
        self._both = {name: assembly[name] for name in assembly if name in deployed}
        self._replacements = replacements
        self._changes: dict[tuple[str, str], Change] = {}
        self._exports: dict[str, Certainty] = {}
        self._ssm: dict[str, Certainty] = {}
        for stack, new in self._both.items():
            self._compare(stack, deployed[stack], new)
        while self._follow():
            continue

    def changes(self) -> list[Change]:
        """Return every resource that changes."""
        return list(self._changes.values())

    def exports(self) -> list[ExportChange]:
        """Return the exports in use that would change, which CloudFormation refuses."""
        found = []
        for stack, new in self._both.items():
            kept = _exports(new)
            for name in _exports(self._deployed[stack]):
                removed = name not in kept
                importers = _importers(self._deployed, name)
                if importers and (removed or self._exports.get(name)):
                    # Stacks missing from the assembly stay as they are.
                    after = _importers({**self._deployed, **self._both}, name)
                    found.append(
                        ExportChange(
                            stack, name, removed, tuple(sorted(importers)), bool(importers & after)
                        )
                    )
        return found

    def _compare(self, stack: str, old: Template, new: Template) -> None:
        before, after = old.get("Resources", {}), new.get("Resources", {})
        for logical_id in {**before, **after}:
            was, will_be = before.get(logical_id), after.get(logical_id)
            kind = (will_be or was)["Type"]
            if kind == "AWS::CDK::Metadata":
                continue
            change = Change(stack, logical_id, kind, Fate.UPDATED, was or {}, will_be or {})
            if was is None:
                change.fate = Fate.ADDED
            elif will_be is None:
                change.fate = Fate.REMOVED
            elif was["Type"] != kind:
                change.fate = Fate.REPLACED
            else:
                for path in _differences(was.get("Properties", {}), will_be.get("Properties", {})):
                    self._mark(change, path, Certainty.YES)
                if not change.paths:
                    continue
            self._changes[stack, logical_id] = change
        kept = _exports(new)
        for name, value in _exports(old).items():
            if name in kept and kept[name] != value:
                self._exports[name] = Certainty.YES

    def _mark(self, change: Change, path: Path, certainty: Certainty) -> bool:
        """Note a changed property; return True if that is news."""
        if change.paths.get(path, Certainty.NO) >= certainty:
            return False
        change.paths[path] = certainty
        answer = self._answer(change, path)
        found = min(certainty, answer)
        if found is not Certainty.NO:
            change.replaces.add(path)
        if change.fate in (Fate.UPDATED, Fate.MAYBE_REPLACED):
            fates = (change.fate, Fate.MAYBE_REPLACED, Fate.REPLACED)
            change.fate = fates[found]
        return True

    def _answer(self, change: Change, path: Path) -> Certainty:
        answer = self._replacements.of(change.resource_type, path)
        if change.resource_type == "AWS::Batch::ComputeEnvironment" and answer is Certainty.MAYBE:
            # CloudFormation documents this condition; it is true by default.
            replace = change.new.get("Properties", {}).get("ReplaceComputeEnvironment", True)
            return Certainty.YES if replace in (True, "true") else Certainty.NO
        return answer

    def _follow(self) -> bool:
        """Apply the rules once; return True if anything new followed."""
        news = False
        for stack, new in self._both.items():
            for logical_id, entry in new.get("Resources", {}).items():
                for path, certainty in self._affected(stack, entry.get("Properties", {})):
                    change = self._changes.get((stack, logical_id))
                    if change is None:
                        old = self._deployed[stack]["Resources"][logical_id]
                        change = Change(stack, logical_id, entry["Type"], Fate.UPDATED, old, entry)
                        self._changes[stack, logical_id] = change
                    if change.fate is not Fate.ADDED:
                        news |= self._mark(change, path, certainty)
                news |= self._note_changed_parameter(stack, logical_id, entry)
            for name, value in _exports(new).items():
                news |= _raise(self._exports, name, self._certainty(stack, value))
        return news

    def _note_changed_parameter(
        self, stack: str, logical_id: str, entry: Mapping[str, Any]
    ) -> bool:
        """Note an SSM parameter whose value changes; return True if that is news."""
        change = self._changes.get((stack, logical_id))
        properties = entry.get("Properties", {})
        if entry["Type"] != _SSM_PARAMETER or not isinstance(properties.get("Name"), str):
            return False
        certainty = change.paths.get(("Value",), Certainty.NO) if change else Certainty.NO
        return _raise(self._ssm, properties["Name"], certainty)

    def _affected(
        self, stack: str, value: Any, path: Path = ()
    ) -> Iterator[tuple[Path, Certainty]]:
        """Yield the properties that change because of what they refer to."""
        if isinstance(value, Mapping) and not _is_intrinsic(value):
            for name, inner in value.items():
                yield from self._affected(stack, inner, (*path, name))
        elif isinstance(value, list):
            for inner in value:
                yield from self._affected(stack, inner, (*path, "*"))
        elif certainty := self._certainty(stack, value):
            yield path, certainty

    def _certainty(self, stack: str, value: Any) -> Certainty:
        """Return how certainly the value of an expression changes."""
        return max(
            (self._of_reference(stack, reference) for reference in _references(value)),
            default=Certainty.NO,
        )

    def _of_reference(self, stack: str, reference: tuple[str, ...]) -> Certainty:
        kind, name, *rest = reference
        if kind == "import":
            return self._exports.get(name, Certainty.NO)
        if kind == "ssm":
            return self._ssm.get(name, Certainty.NO)
        parameter = self._both[stack].get("Parameters", {}).get(name)
        if parameter is not None:
            before = self._deployed[stack].get("Parameters", {}).get(name, {})
            if before.get("Default") != parameter.get("Default"):
                return Certainty.YES
            return self._ssm.get(str(parameter.get("Default")), Certainty.NO)
        change = self._changes.get((stack, name))
        if change is None:
            return Certainty.NO
        if change.fate is Fate.REPLACED:
            return Certainty.YES
        found = Certainty.MAYBE if change.fate is Fate.MAYBE_REPLACED else Certainty.NO
        attribute = (change.resource_type, rest[0] if rest else None)
        if attribute in _NEW_WITH_EACH_UPDATE:
            of = _NEW_WITH_EACH_UPDATE[attribute]
            changed = (c for path, c in change.paths.items() if of in (None, path[0]))
            return max((found, *changed))
        return found


def _raise(values: dict[str, Certainty], name: str, certainty: Certainty) -> bool:
    if certainty <= values.get(name, Certainty.NO):
        return False
    values[name] = certainty
    return True


def _importers(templates: Mapping[str, Template], export: str) -> set[str]:
    """Find the stacks that import an export."""
    return {
        stack
        for stack, template in templates.items()
        if ("import", export) in _references(template.get("Resources", {}))
    }


def _exports(template: Template) -> dict[str, Any]:
    """Collect the values of a template's exports by name."""
    outputs = template.get("Outputs", {}).values()
    return {
        output["Export"]["Name"]: output["Value"]
        for output in outputs
        if isinstance(output.get("Export", {}).get("Name"), str)
    }


def _is_intrinsic(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and all(key == "Ref" or key.startswith("Fn::") for key in value)


def _differences(old: Any, new: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths at which two values differ; an expression counts as one value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if not (_is_intrinsic(old) or _is_intrinsic(new)):
            for name in {**old, **new}:
                if name not in old or name not in new:
                    yield (*path, name)
                else:
                    yield from _differences(old[name], new[name], (*path, name))
            return
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from _differences(before, after, (*path, "*"))
        return
    # JSON distinguishes "true" from true and "1" from 1; CloudFormation does not.
    if json.dumps(old, sort_keys=True).strip('"') != json.dumps(new, sort_keys=True).strip('"'):
        yield path


def _references(value: Any) -> Iterator[tuple[str, ...]]:
    """Yield the references in an expression: resources, exports, SSM parameters."""
    if isinstance(value, str):
        yield from (("ssm", name) for name in _SSM.findall(value))
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "Ref":
                yield "resource", inner
            elif key == "Fn::GetAtt":
                name, _, attribute = inner.partition(".") if isinstance(inner, str) else (
                    inner[0], "", ".".join(map(str, inner[1:]))
                )  # fmt: skip
                yield "resource", name, attribute
            elif key == "Fn::ImportValue" and isinstance(inner, str):
                yield "import", inner
            elif key == "Fn::Sub":
                yield from _of_sub(inner)
            else:
                yield from _references(inner)


def _of_sub(value: Any) -> Iterator[tuple[str, ...]]:
    text, names = (value, {}) if isinstance(value, str) else value
    for word in _SUB.findall(text):
        if word in names:
            continue
        name, _, attribute = word.partition(".")
        yield ("resource", name, attribute) if attribute else ("resource", name)
    yield from _references(names)
    yield from _references(text)
