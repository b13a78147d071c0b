"""Parses requests: the target of the path, the manifest in the body, and patches."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.resources import BUILT_IN, ApiResource, Json

_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_MANIFESTS = ("application/json", "application/yaml")
"""Types of a body that is not a patch; protobuf, which a real server accepts, is unsupported."""
_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    _STRATEGIC_PATCH,
)
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
"""patchMergeKey of the lists that are merged (k8s.io/api core/v1 and apps/v1, types.go); all other
lists are replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a request: a collection, an object in it, or a subresource."""

    kind: ApiResource
    namespace: str | None
    """None: all namespaces. Cluster-scoped objects have the empty namespace."""
    name: str | None = None
    subresource: str | None = None


def find_target(path: str) -> Target:
    """Parse ``/api/v1/...`` or ``/apis/<group>/<version>/...``.

    For a namespaced resource, only the collection has a path without a namespace; cluster-scoped
    resources never have a namespace.
    """
    segments = [segment for segment in path.split("/") if segment]
    if segments[:1] == ["api"]:
        api_version, rest = segments[1], segments[2:]
    else:
        api_version, rest = "/".join(segments[1:3]), segments[3:]
    namespace: str | None = None
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, None, None, None)[:3]
    for kind in BUILT_IN:
        if (kind.api_version, kind.plural) == (api_version, plural):
            if namespace is None and name is not None and kind.namespaced:
                break
            if not kind.namespaced:
                if namespace is not None:
                    break
                namespace = ""
            return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
    raise errors.no_such_path()


async def read_body(request: web.Request, kind: ApiResource) -> Json:
    """Parse the manifest or patch; refuse unsupported content types.

    A manifest without a content type is read as JSON; a patch must have one (apiserver,
    endpoints/handlers: patch.go and negotiation/negotiate.go). Custom resources do not
    support strategic merge patches.
    """
    given = request.headers.get("Content-Type", "").partition(";")[0]
    accepted: tuple[str, ...] = _MANIFESTS
    if request.method == "PATCH":
        accepted = tuple(each for each in _PATCHES if not (kind.is_custom and "strategic" in each))
    text = await request.text()
    is_bare = request.method != "PATCH" and not (text and given)
    if not is_bare and given not in accepted:
        raise errors.ApiError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(accepted),
        )
    try:
        body = yaml.safe_load(text) if "yaml" in given else json.loads(text or "{}")
    except (ValueError, yaml.YAMLError) as error:
        raise errors.ApiError(400, "BadRequest", f"the body cannot be read: {error}") from None
    return body  # type: ignore[no-any-return]


def check_name_and_namespace(target: Target, body: Json) -> None:
    """Refuse an object whose name or namespace differs from the request's.

    Source: the API server (registry/rest, meta.go, and endpoints/handlers/rest.go, checkName).
    """
    metadata = body.get("metadata") or {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if target.name is not None and name != target.name:
        raise errors.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    if target.kind.namespaced and namespace not in (None, "", target.namespace):
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def patched(content_type: str, base: Json, patch: Json) -> Json:
    """Apply a patch to an object according to the patch's content type."""
    if content_type == "application/json-patch+json":
        raise errors.ApiError(501, "NotImplemented", "the rehearsal does not support JSON patches")
    make = strategic_merged if content_type == _STRATEGIC_PATCH else merged
    result: Json = make(base, patch)
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


def strategic_merged(base: Any, patch: Any) -> Any:
    """Apply a strategic merge patch, which ``kubectl apply`` sends for built-in kinds."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if key.startswith("$"):
            continue  # directives for the order or retained keys, which nothing here depends on
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            result[key] = _merged_list(result.get(key) or [], value, _MERGE_KEYS[key])
        else:
            result[key] = strategic_merged(result.get(key), value)
    return result


def _merged_list(base: list[Any], patch: list[Any], keys: tuple[str, ...]) -> list[Any]:
    result = list(base)
    for item in patch:
        key = next((name for name in keys if name in item), keys[0])
        places = [i for i, old in enumerate(result) if old.get(key) == item.get(key)]
        if item.get("$patch") == "delete":
            result = [old for i, old in enumerate(result) if i not in places]
        elif places:
            result[places[0]] = strategic_merged(result[places[0]], item)
        else:
            result.append(strategic_merged(None, item))
    return result
