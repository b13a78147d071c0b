"""Which properties CloudFormation replaces a resource for, as the CDK CLI itself knows it.

The pinned CLI carries AWS's resource schemas and documentation as one database, which its own
`cdk diff` judges by (github.com/cdklabs/awscdk-service-spec): the judge is the program that will
deploy, and a new version of it brings newer rules. A change set of CloudFormation would know the
values of parameters too, but needs the rights to create one in every stack and the templates
uploaded, and this command changes nothing.
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
"""Names of properties from the outermost on; an element of a list is ``*``."""
_LISTS = ("array", "map")


class Certainty(IntEnum):
    """How sure something is."""

    NO = 0
    MAYBE = 1
    YES = 2


_ANSWERS = {"no": Certainty.NO, "maybe": Certainty.MAYBE, "yes": Certainty.YES}


@dataclass(slots=True)
class Replacements:
    """The database."""

    resources: Mapping[str, Mapping[str, Any]]
    """Resource types by name."""
    definitions: Mapping[str, Mapping[str, Any]]
    """Types of properties, by id."""
    _cache: dict[tuple[str, Path], Certainty] = field(default_factory=dict)

    def of(self, resource_type: str, path: Path) -> Certainty:
        """Whether a change at ``path`` replaces the resource; NO for types that it lacks."""
        key = (resource_type, path)
        if key not in self._cache:
            entity = self.resources.get(resource_type)
            self._cache[key] = Certainty.NO if entity is None else self._walk(entity, path)
        return self._cache[key]

    def names(self, resource_type: str) -> tuple[str, ...]:
        """Properties by which a resource is known: two of them cannot have the same."""
        entity = self.resources.get(resource_type, {})
        properties = entity.get("properties", {})
        return tuple(name for name in entity.get("primaryIdentifier", ()) if name in properties)

    def conditional(self, resource_type: str) -> set[Path]:
        """Every path of which the answer is MAYBE."""
        entity = self.resources[resource_type]
        return {path for path, found in self._below(entity) if found is Certainty.MAYBE}

    def _walk(self, entity: Mapping[str, Any], path: Path) -> Certainty:
        current: Mapping[str, Any] | None = entity
        found = Certainty.NO
        for name in path:
            if name == "*" or current is None:
                continue  # an element has its list's type; what has no properties ends here
            known = current.get("properties", {}).get(name)
            if known is None:
                return found
            found = max(found, _ANSWERS[known.get("causesReplacement") or "no"])
            current = self._type(known["type"])
        # Changed as a whole: something below it may be what matters.
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
