"""The four ways in which Kubernetes lets an object be patched."""

from __future__ import annotations

import copy
from typing import Any

from trainium_emulators.kubernetes.resources import Json

_MERGE_KEYS = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    # Of a Service, and of a container.
    "ports": ("port", "containerPort"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""patchMergeKey of the lists that are merged (k8s.io/api core/v1 and apps/v1, types.go); every
other list is replaced."""


def merged(base: Any, patch: Any) -> Any:
    """RFC 7396: what a JSON merge patch makes of ``base``."""
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
    """A strategic merge patch, as ``kubectl apply`` sends it for built-in kinds."""
    if not isinstance(patch, dict) or patch.get("$patch") == "replace":
        clean = patch if not isinstance(patch, dict) else _without_directives(patch)
        return copy.deepcopy(clean)
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name, ()) if item not in value]
        elif key.startswith("$"):
            continue  # order and retained keys change nothing that is read here
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
    """RFC 6902, without ``move`` and ``copy``."""
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
