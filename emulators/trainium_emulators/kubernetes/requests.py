"""Parses requests: the target of the path, the manifest in the body, and patches."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.resources import NAMESPACE, ApiResource, Json

APPLY_PATCH = "application/apply-patch+yaml"
_MERGE_KEYS = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    # ports of a Service and of a container
    "ports": ("port", "containerPort"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""patchMergeKey of the lists that are merged (k8s.io/api core/v1 and apps/v1, types.go); every
other list is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a request: a collection, an object in it, or a subresource."""

    kind: ApiResource
    namespace: str | None
    """None: all namespaces. Cluster-scoped objects are stored under the empty name."""
    name: str | None = None
    part: str | None = None


def find_target(path: str, kinds: Sequence[ApiResource]) -> Target:
    """Parse ``/api/v1/...`` or ``/apis/<group>/<version>/...``."""
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
    """Parse the manifest, which is JSON or YAML."""
    text = await request.text()
    try:
        body = yaml.safe_load(text) if "yaml" in request.content_type else json.loads(text or "{}")
    except (ValueError, yaml.YAMLError) as error:
        raise errors.ApiError(400, "BadRequest", f"the body cannot be read: {error}") from None
    return body  # type: ignore[no-any-return]


def patched(content_type: str, base: Json, patch: Json) -> Json:
    """Apply a patch to an object according to the patch's content type."""
    match content_type:
        case "application/json-patch+json":
            return operated(base, patch)  # type: ignore[arg-type]
        case "application/strategic-merge-patch+json":
            result: Json = strategic(base, patch)
        case _:
            result = merged(base, patch)
    return result


def merged(base: Any, patch: Any) -> Any:
    """Apply a JSON merge patch to ``base`` (RFC 7396)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategic(base: Any, patch: Any) -> Any:
    """Apply a strategic merge patch, which ``kubectl apply`` sends for built-in kinds."""
    if not isinstance(patch, dict) or patch.get("$patch") == "replace":
        clean = patch if not isinstance(patch, dict) else _without_directives(patch)
        return copy.deepcopy(clean)
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name, ()) if item not in value]
        elif key.startswith("$"):
            continue  # order and retained keys do not matter to any reader here
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            result[key] = _merged_list(result.get(key) or [], value, _MERGE_KEYS[key])
        else:
            result[key] = strategic(result.get(key), value)
    return result


def _without_directives(patch: Json) -> Json:
    return {key: value for key, value in patch.items() if not key.startswith("$")}


def _merged_list(base: list[Any], patch: list[Any], keys: tuple[str, ...]) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [_without_directives(item) for item in patch if "$patch" not in item]
    result = list(base)
    for item in patch:
        key = next((name for name in keys if name in item), keys[0])
        places = [i for i, old in enumerate(result) if old.get(key) == item.get(key)]
        if item.get("$patch") == "delete":
            result = [old for i, old in enumerate(result) if i not in places]
        elif places:
            result[places[0]] = strategic(result[places[0]], item)
        else:
            result.append(strategic(None, item))
    return result


def operated(base: Json, operations: list[Json]) -> Json:
    """Apply a JSON patch (RFC 6902), without ``move`` and ``copy``."""
    root: Any = {"": copy.deepcopy(base)}
    for operation in operations:
        *way, last = ("" + operation["path"]).split("/")
        place: Any = root
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[_unescaped(step)]
        kind, value = operation["op"], operation.get("value")
        name = _unescaped(last)
        if kind == "test":
            continue
        if isinstance(place, list):
            index = len(place) if name == "-" else int(name)
            if kind != "add":
                del place[index]
            if kind != "remove":
                place.insert(index, value)
        elif kind == "remove":
            del place[name]
        else:
            place[name] = value
    result: Json = root[""]
    return result


def _unescaped(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")
