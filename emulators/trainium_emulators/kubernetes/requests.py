"""Where a request's path leads, and what its body says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import yaml
from aiohttp import web

from trainium_emulators.kubernetes import errors, patches
from trainium_emulators.kubernetes.resources import NAMESPACE, Json, Kind

APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A collection, an object in it, or a part of that."""

    kind: Kind
    namespace: str | None
    """None: all of them. Objects outside namespaces are kept under the empty name."""
    name: str | None = None
    part: str | None = None


def find_target(path: str, kinds: Sequence[Kind]) -> Target:
    """Take ``/api/v1/...`` or ``/apis/<group>/<version>/...`` apart."""
    words = [word for word in path.split("/") if word]
    if words[:1] == ["api"]:
        api_version, rest = words[1], words[2:]
    else:
        api_version, rest = "/".join(words[1:3]), words[3:]
    namespace: str | None = None
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, part = (*rest, None, None, None)[:3]
    for kind in kinds:
        if (kind.api_version, kind.plural) == (api_version, plural):
            if not kind.namespaced or kind == NAMESPACE:
                namespace = ""
            return Target(kind=kind, namespace=namespace, name=name, part=part)
    raise errors.no_such_path()


async def read_body(request: web.Request) -> Json:
    """The manifest, JSON or YAML."""
    text = await request.text()
    try:
        body = yaml.safe_load(text) if "yaml" in request.content_type else json.loads(text or "{}")
    except (ValueError, yaml.YAMLError) as error:
        raise errors.ApiError(400, "BadRequest", f"the body cannot be read: {error}") from None
    return body  # type: ignore[no-any-return]


def patched(content_type: str, base: Json, patch: Json) -> Json:
    """What a patch makes of an object."""
    match content_type:
        case "application/json-patch+json":
            return patches.operated(base, patch)  # type: ignore[arg-type]
        case "application/strategic-merge-patch+json":
            result: Json = patches.strategic(base, patch)
        case _:
            result = patches.merged(base, patch)
    return result
