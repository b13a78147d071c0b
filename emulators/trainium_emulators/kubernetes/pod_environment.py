"""Resolves the environment and command of a pod's container, as the kubelet does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainium_emulators.kubernetes import rbac
from trainium_emulators.kubernetes.resources import CONFIG_MAP, POD, Json
from trainium_emulators.kubernetes.store import Store

_ANNOTATED = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]")
_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
_ALL_ADDRESSES = "0.0.0.0"
_HOSTS = re.compile(r"VC_.+_HOSTS")
_API = "https://kubernetes.default.svc"
_CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """Address and credentials of the local API server, for pods."""

    endpoint: str
    folder: Path
    """Parent folder of the service accounts' folders, for pods that mount a token."""

    def credentials(self, pod: Json) -> Path:
        """Return the folder with the token of the pod's service account."""
        namespace = pod["metadata"]["namespace"]
        account = pod["spec"].get("serviceAccountName") or "default"
        own = self.folder / str(namespace) / str(account)
        own.mkdir(parents=True, exist_ok=True)
        token = rbac.service_account(namespace, account)
        (own / "token").write_text(token, encoding="utf-8")
        return own


class CreateContainerConfigError(ValueError):
    """Raised for a container that cannot be created, such as one with a dangling reference."""


def container_environment(store: Store, pod: Json, claims: Path) -> dict[str, str]:
    """Resolve every variable of the first container.

    Values that depend on a pod's network or mount namespace are replaced: the host names that
    Volcano lists become addresses, because this machine's resolver cannot be extended, and the
    mount points of claims become folders in ``claims``, because this machine allows no mounts.

    Raises ``CreateContainerConfigError``.
    """
    mounts = _mounts(pod, claims)
    environment: dict[str, str] = {}
    for entry in pod["spec"]["containers"][0].get("env") or ():
        name = entry["name"]
        if "valueFrom" in entry:
            value = _resolve_value_from(store, pod, entry["valueFrom"])
        else:
            value = expanded(entry.get("value") or "", environment)
        if value is None:
            continue
        value = _replace_mount_points(value, mounts)
        if _HOSTS.fullmatch(name):
            value = ",".join(_address(store, pod, host) for host in value.split(","))
        environment[name] = value
    return environment


def _address(store: Store, pod: Json, host: str) -> str:
    """Resolve a headless service's host name like the cluster's DNS; return any other as is."""
    name, _, domain = host.partition(".")
    for other in store.list(POD, pod["metadata"]["namespace"]):
        spec = other["spec"]
        if (spec.get("hostname"), spec.get("subdomain")) == (name, domain):
            return str(other["status"].get("podIP", host))
    return host


def container_command(
    pod: Json, environment: Mapping[str, str], claims: Path, api: ApiAccess | None = None
) -> list[str]:
    """Return command and arguments; the image's own are unknown.

    In both, the wildcard address becomes the pod's own, and the API server's usual address becomes
    its local one. Raises ``CreateContainerConfigError`` if there is no command.
    """
    container = pod["spec"]["containers"][0]
    command: Sequence[str] = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not command:
        raise CreateContainerConfigError(
            "the container has no command, and the rehearsal has no image"
        )
    mounts = _mounts(pod, claims)
    if api is not None and pod["spec"].get("automountServiceAccountToken", True):
        mounts = {**mounts, _CREDENTIALS: api.credentials(pod)}
    server = _API if api is None else api.endpoint
    own = str(pod["status"].get("podIP", _ALL_ADDRESSES))
    return [
        _replace_mount_points(expanded(argument, environment), mounts)
        .replace(_ALL_ADDRESSES, own)
        .replace(_API, server)
        for argument in command
    ]


def _mounts(pod: Json, claims: Path) -> dict[str, Path]:
    """Return the folders of the claims that the container mounts, by mount point."""
    names = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    }
    mounts = {}
    for mount in pod["spec"]["containers"][0].get("volumeMounts") or ():
        if mount["name"] in names:
            # Without the file system's id at the end of the claim's name: Batch's nodes use the
            # same folder.
            kind = names[mount["name"]].partition("-")[0]
            folder = claims / pod["metadata"]["namespace"] / kind
            folder.mkdir(parents=True, exist_ok=True)
            mounts[mount["mountPath"]] = folder
    return mounts


def _replace_mount_points(text: str, mounts: Mapping[str, Path]) -> str:
    """Replace a mount point at the start of a path with its folder."""
    for point, folder in mounts.items():
        text = re.sub(rf"(?<![^=:,]){re.escape(point)}(?=[/:,]|$)", str(folder), text)
    return text


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Expand ``$(NAME)``; keep unknown variables; ``$$`` is a dollar sign (expansion/expand.go)."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] else environment.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def _resolve_value_from(store: Store, pod: Json, source: Json) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    if "configMapKeyRef" in source:
        reference = source["configMapKeyRef"]
        config_map = store.find(CONFIG_MAP, pod["metadata"]["namespace"], reference["name"])
        value = (config_map or {}).get("data", {}).get(reference["key"])
        if value is None and not reference.get("optional"):
            raise CreateContainerConfigError(
                f"couldn't find key {reference['key']} in ConfigMap "
                f"{pod['metadata']['namespace']}/{reference['name']}"
            )
        return None if value is None else str(value)
    raise CreateContainerConfigError(f"the rehearsal does not support {', '.join(source)}")


def _field(pod: Json, path: str) -> str:
    """Resolve a downward API field (kubernetes.io/docs/concepts/workloads/pods/downward-api)."""
    if match := _ANNOTATED.fullmatch(path):
        # A missing annotation or label is an empty value, not an error.
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    values: dict[str, str] = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": pod.get("status", {}).get("podIP", ""),
        "status.hostIP": pod.get("status", {}).get("hostIP", ""),
    }
    if path not in values:
        raise CreateContainerConfigError(f"the downward API has no {path}")
    return values[path]
