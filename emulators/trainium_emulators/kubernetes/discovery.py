"""What clients ask first: versions, groups, kinds, and OpenAPI as far as kubectl reads it."""

from __future__ import annotations

from collections.abc import Sequence

from trainium_emulators.kubernetes.resources import DEPLOYMENT, POD, SERVICE, Json, Kind

_ALL = (POD, SERVICE, DEPLOYMENT)
"""What ``kubectl get all`` shows."""
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def version() -> Json:
    """``/version``: the one that the stack asks EKS for."""
    return {
        "major": "1",
        "minor": "35",
        "gitVersion": "v1.35.0-rehearsal",
        "gitCommit": "rehearsal",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    }


def core_versions() -> Json:
    """``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(kinds: Sequence[Kind]) -> Json:
    """``/apis``."""
    names = dict.fromkeys((kind.group, kind.version) for kind in kinds if kind.group)
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(group, version) for group, version in names],
    }


def _group(group: str, version: str) -> Json:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def resources(kinds: Sequence[Kind], api_version: str) -> Json | None:
    """``/api/v1`` and ``/apis/<group>/<version>``; None when nothing is there."""
    rows = []
    for kind in kinds:
        if kind.api_version != api_version:
            continue
        common = {"namespaced": kind.namespaced, "kind": kind.kind}
        rows.append(
            {
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "verbs": VERBS,
                "shortNames": list(kind.short),
                "categories": ["all"] if kind in _ALL else [],
                **common,
            }
        )
        subresources = ["status"] + (["log", "exec"] if kind.plural == "pods" else [])
        rows += [
            {"name": f"{kind.plural}/{name}", "singularName": "", "verbs": ["get"], **common}
            for name in subresources
        ]
    if not rows:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version,
        "resources": rows,
    }


def openapi_paths(kinds: Sequence[Kind]) -> Json:
    """``/openapi/v3``."""
    places = dict.fromkeys(_place(kind) for kind in kinds)
    return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}


def openapi(kinds: Sequence[Kind], place: str) -> Json:
    """``/openapi/v3/<place>``: enough for kubectl to leave the validation of fields to the server.

    It looks for a PATCH with the parameter ``fieldValidation`` on the kind it is about to send.
    """
    paths = {}
    for kind in kinds:
        if _place(kind) != place:
            continue
        known = {"group": kind.group, "kind": kind.kind, "version": kind.version}
        paths[f"/{place}/{kind.plural}/{{name}}"] = {
            "patch": {
                "x-kubernetes-group-version-kind": known,
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
            }
        }
    info = {"title": "Kubernetes", "version": "v1.35.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths}


def _place(kind: Kind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"
