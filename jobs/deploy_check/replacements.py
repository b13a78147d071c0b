"""Properties whose change makes CloudFormation replace a resource, as the CDK CLI knows them.

The pinned CLI carries AWS's resource schemas and documentation as one database, which `cdk diff`
uses (github.com/cdklabs/awscdk-service-spec): the program that will deploy is also the judge, and
a newer version brings newer rules. A CloudFormation change set would also know parameter values,
but it needs uploaded templates and the right to create one in every stack, while this command
changes nothing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path as File
from typing import Any

from jobs.deploy_check.assembly import REPOSITORY
from jobs.errors import Refusal

DATABASE = REPOSITORY / "tools" / "cdk" / "node_modules" / "aws-cdk" / "db.json.gz"
Path = tuple[str, ...]
"""Property names, outermost first; a list element is ``*``."""
_LISTS = ("array", "map")


class Certainty(IntEnum):
    """Degree of certainty."""

    NO = 0
    MAYBE = 1
    YES = 2


_ANSWERS = {"no": Certainty.NO, "maybe": Certainty.MAYBE, "yes": Certainty.YES}


@dataclass(slots=True)
class Replacements:
    """The replacement rules in the CLI's database."""

    resources: Mapping[str, Mapping[str, Any]]
    """Resource types by name."""
    definitions: Mapping[str, Mapping[str, Any]]
    """Types of properties, by id."""
    _cache: dict[tuple[str, Path], Certainty] = field(default_factory=dict)

    def of(self, resource_type: str, path: Path) -> Certainty:
        """Tell whether a change at ``path`` replaces the resource; NO for unknown types."""
        key = (resource_type, path)
        if key not in self._cache:
            entity = self.resources.get(resource_type)
            self._cache[key] = Certainty.NO if entity is None else self._walk(entity, path)
        return self._cache[key]

    def names(self, resource_type: str) -> tuple[str, ...]:
        """Properties that identify a resource: no two resources can share their values."""
        entity = self.resources.get(resource_type, {})
        properties = entity.get("properties", {})
        return tuple(name for name in entity.get("primaryIdentifier", ()) if name in properties)

    def conditional(self, resource_type: str) -> set[Path]:
        """Every path whose answer is MAYBE."""
        entity = self.resources[resource_type]
        return {path for path, found in self._below(entity) if found is Certainty.MAYBE}

    def _walk(self, entity: Mapping[str, Any], path: Path) -> Certainty:
        current: Mapping[str, Any] | None = entity
        found = Certainty.NO
        for name in path:
            if name == "*" or current is None:
                continue  # an element has its list's type; untyped parts end here
            known = current.get("properties", {}).get(name)
            if known is None:
                return found
            found = max(found, _ANSWERS[known.get("causesReplacement") or "no"])
            current = self._type(known["type"])
        # The path changes as a whole: something below it may force replacement.
        below = max((answer for _, answer in self._below(current or {})), default=Certainty.NO)
        return max(found, min(below, Certainty.MAYBE))

    def _below(
        self, entity: Mapping[str, Any], path: Path = (), seen: frozenset[int] = frozenset()
    ) -> Iterator[tuple[Path, Certainty]]:
        if id(entity) in seen:
            return
        for name, known in entity.get("properties", {}).items():
            answer = _ANSWERS[known.get("causesReplacement") or "no"]
            yield (*path, name), answer
            inner = self._type(known["type"])
            if inner is not None:
                yield from self._below(inner, (*path, name), seen | {id(entity)})

    def _type(self, kind: Mapping[str, Any]) -> Mapping[str, Any] | None:
        while kind.get("type") in _LISTS:
            kind = kind["element"]
        if kind.get("type") != "ref":
            return None
        return self.definitions.get(kind["reference"]["$ref"])


def read_replacements(database: File = DATABASE) -> Replacements:
    """Read the CLI's database."""
    try:
        with gzip.open(database) as file:
            schema = json.load(file)["schema"]
        return Replacements(
            resources={item["cloudFormationType"]: item for item in schema["resource"]["entities"]},
            definitions={item["$id"]: item for item in schema["typeDefinition"]["entities"]},
        )
    except (OSError, ValueError, KeyError) as error:
        raise Refusal(
            "no-database",
            f"{database} cannot be read ({type(error).__name__}), which says what CloudFormation "
            "replaces; install the pinned CDK CLI with `make setup`",
        ) from None
