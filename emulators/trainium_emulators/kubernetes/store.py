"""Stores the cluster's objects, with versions, selectors, watches and cascading deletion."""

from __future__ import annotations

import copy
import re
import secrets
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.resources import (
    BUILT_IN,
    NAMESPACE,
    POD,
    ApiResource,
    Json,
)

_SET = re.compile(r"(?P<key>\S+)\s+(?P<word>in|notin)\s+\((?P<values>[^)]*)\)")
_EQUAL = re.compile(r"(?P<key>[^=!\s]+)\s*(?P<sign>==|=|!=)\s*(?P<value>.*)")
Admission = Callable[["Store", Json], Json]
"""Completes an object that is about to be created, or raises."""


def matches(entry: Json, *, labels: str = "", fields: str = "") -> bool:
    """Return whether both selectors match an object; an empty one matches everything."""
    own = entry["metadata"].get("labels") or {}
    return all(_holds(term, own) for term in _terms(labels)) and all(
        _holds_field(term, entry) for term in _terms(fields)
    )


def _terms(selector: str) -> list[str]:
    """Split a selector at commas outside parentheses."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _holds(term: str, labels: dict[str, str]) -> bool:
    if match := _SET.fullmatch(term):
        values = [value.strip() for value in match["values"].split(",")]
        return (labels.get(match["key"]) in values) == (match["word"] == "in")
    if match := _EQUAL.fullmatch(term):
        return (labels.get(match["key"]) == match["value"]) == (match["sign"] != "!=")
    return term[1:].strip() not in labels if term.startswith("!") else term in labels


def _holds_field(term: str, entry: Json) -> bool:
    match = _EQUAL.fullmatch(term)
    assert match is not None, term
    value: Any = entry
    for step in match["key"].split("."):
        value = (value or {}).get(step)
    return (("" if value is None else str(value)) == match["value"]) == (match["sign"] != "!=")


def now(*, in_s: int = 0) -> str:
    """Return the time, ``in_s`` seconds from now, in Kubernetes' format."""
    return (datetime.now(UTC) + timedelta(seconds=in_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChange:
    """One change, as reported by a watch."""

    version: int
    type: str
    """``ADDED``, ``MODIFIED`` or ``DELETED``."""
    kind: ApiResource
    entry: Json


Listener = Callable[[StoreChange], None]


class Store:
    """Objects by kind, namespace and name; every method may be called from any thread."""

    def __init__(self, admissions: dict[ApiResource, Admission] | None = None) -> None:
        self._admissions = admissions or {}
        self._lock = threading.RLock()
        self._objects: dict[tuple[ApiResource, str, str], Json] = {}
        self._version = 1
        self._history: list[StoreChange] = []
        self._listeners: list[Listener] = []

    @property
    def version(self) -> int:
        """Version of the latest change."""
        return self._version

    def find_kind(self, api_version: str, kind: str) -> ApiResource:
        """Return the kind of a manifest."""
        for known in BUILT_IN:
            if (known.api_version, known.kind) == (api_version, kind):
                return known
        message = f'no matches for kind "{kind}" in version "{api_version}"'
        raise errors.ApiError(404, "NotFound", message)

    def get(self, kind: ApiResource, namespace: str, name: str) -> Json:
        """Return a copy of one object; raise ``ApiError`` if it does not exist."""
        with self._lock:
            entry = self._objects.get((kind, namespace, name))
            if entry is None:
                raise errors.not_found(kind, name)
            return copy.deepcopy(entry)

    def find(self, kind: ApiResource, namespace: str, name: str) -> Json | None:
        """Return a copy of one object, or None."""
        try:
            return self.get(kind, namespace, name)
        except errors.ApiError:
            return None

    def list(
        self,
        kind: ApiResource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        owner: str | None = None,
    ) -> list[Json]:
        """Return copies of matching objects, sorted by namespace and name.

        ``namespace=None`` means all namespaces; ``owner`` is their owner's uid.
        """
        with self._lock:
            selected = {
                (its_namespace, name): entry
                for (its_kind, its_namespace, name), entry in self._objects.items()
                if its_kind == kind
                and namespace in (None, its_namespace)
                and (owner is None or _is_owned(entry, owner))
                and matches(entry, labels=labels, fields=fields)
            }
            # Copies take most of the time of a list, so only requested objects are copied.
            return [copy.deepcopy(selected[place]) for place in sorted(selected)]

    def create(
        self, kind: ApiResource, namespace: str, entry: Json, *, dry_run: bool = False
    ) -> Json:
        """Add an object; return it as stored."""
        entry = copy.deepcopy(entry)
        metadata = entry.setdefault("metadata", {})
        if "name" not in metadata and "generateName" in metadata:
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        if not metadata.get("name"):
            cause = errors.StatusCause(
                field="metadata.name",
                reason="FieldValueRequired",
                message="Required value: name or generateName is required",
            )
            raise errors.invalid(kind, "", cause)
        entry |= {"apiVersion": kind.api_version, "kind": kind.kind}
        if kind.namespaced:
            metadata["namespace"] = namespace
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        with self._lock:
            self._refuse_create(kind, namespace, metadata)
            if kind in self._admissions:
                entry = self._admissions[kind](self, entry)
            if dry_run:
                return entry
            return self._keep("ADDED", kind, entry)

    def _refuse_create(self, kind: ApiResource, namespace: str, metadata: Json) -> None:
        if (kind, namespace, metadata["name"]) in self._objects:
            raise errors.already_exists(kind, metadata["name"])
        if kind.namespaced and (NAMESPACE, "", namespace) not in self._objects:
            raise errors.not_found(NAMESPACE, namespace)
        owners = {owner["uid"] for owner in metadata.get("ownerReferences", ())}
        present = {entry["metadata"]["uid"] for entry in self._objects.values()} if owners else ()
        if owners.difference(present):
            # The garbage collector would delete it immediately.
            raise errors.ApiError(
                404, "NotFound", f"the owner of {metadata['name']} does not exist"
            )

    def update(
        self, kind: ApiResource, namespace: str, name: str, change: Callable[[Json], Json | None]
    ) -> Json:
        """Replace an object with the result of ``change``, which may modify it in place."""
        with self._lock:
            old = self.get(kind, namespace, name)
            new = copy.deepcopy(old)
            new = change(new) or new
            metadata, fixed = new["metadata"], old["metadata"]
            expected = metadata.get("resourceVersion")
            if expected not in (None, "", fixed["resourceVersion"]):
                raise errors.conflict(kind, name)
            for key in ("name", "namespace", "uid", "creationTimestamp", "generation",
                        "deletionTimestamp", "deletionGracePeriodSeconds"):  # fmt: skip
                if key in fixed:
                    metadata[key] = fixed[key]
            metadata["resourceVersion"] = fixed["resourceVersion"]
            if new == old:
                return old
            if new.get("spec") != old.get("spec"):
                metadata["generation"] = fixed["generation"] + 1
            return self._keep("MODIFIED", kind, new)

    def set_status(self, kind: ApiResource, namespace: str, name: str, status: Json) -> None:
        """Set parts of an object's status; ignore an object that is gone."""

        def change(entry: Json) -> None:
            entry["status"] = {**entry.get("status", {}), **status}

        try:
            self.update(kind, namespace, name, change)
        except errors.ApiError as error:
            if error.code != 404:
                raise

    def delete(
        self, kind: ApiResource, namespace: str, name: str, *, grace_s: int | None = None
    ) -> Json:
        """Remove an object and its dependents.

        An unfinished pod that has a node is only marked as terminating; its kubelet then stops it
        and calls ``remove``. ``grace_s=0`` removes it immediately. Its deletion time is when the
        grace period ends; another request can only shorten it (Kubernetes API reference,
        ObjectMeta: deletionTimestamp).
        """
        with self._lock:
            entry = self.get(kind, namespace, name)
            ended = entry.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if kind == POD and "nodeName" in entry["spec"] and not ended and grace_s != 0:
                if grace_s is None:
                    grace_s = int(entry["spec"].get("terminationGracePeriodSeconds", 30))
                metadata, ends = entry["metadata"], now(in_s=grace_s)
                if metadata.get("deletionTimestamp", ends) < ends:
                    return entry
                metadata["deletionTimestamp"] = ends
                metadata["deletionGracePeriodSeconds"] = grace_s
                return self._keep("MODIFIED", kind, entry)
            return self.remove(kind, namespace, name)

    def remove(self, kind: ApiResource, namespace: str, name: str) -> Json:
        """Remove an object immediately; its dependents are deleted as by ``delete``."""
        with self._lock:
            entry = self._objects.pop((kind, namespace, name), None)
            if entry is None:
                raise errors.not_found(kind, name)
            self._announce("DELETED", kind, entry)
            uid = entry["metadata"]["uid"]
            for key, other in list(self._objects.items()):
                owners = other["metadata"].get("ownerReferences", ())
                inside = kind == NAMESPACE and key[1] == name
                if key in self._objects and (inside or any(o["uid"] == uid for o in owners)):
                    self.delete(*key)
            return entry

    def listen(self, listener: Listener, *, since: int | None = None) -> Callable[[], None]:
        """Call ``listener`` on every change after version ``since``; return a function to stop.

        The listener is called under the store's lock and must return quickly.
        """
        with self._lock:
            for change in self._history if since is not None else ():
                if since is not None and change.version > since:
                    listener(change)
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    def _keep(self, type_: str, kind: ApiResource, entry: Json) -> Json:
        """Store an object and notify the listeners."""
        metadata = entry["metadata"]
        self._objects[kind, metadata.get("namespace", ""), metadata["name"]] = entry
        self._announce(type_, kind, entry)
        return copy.deepcopy(entry)

    def _announce(self, type_: str, kind: ApiResource, entry: Json) -> None:
        self._version += 1
        entry["metadata"]["resourceVersion"] = str(self._version)
        change = StoreChange(
            version=self._version, type=type_, kind=kind, entry=copy.deepcopy(entry)
        )
        self._history.append(change)
        for listener in list(self._listeners):
            listener(change)


def _is_owned(entry: Json, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in entry["metadata"].get("ownerReferences", ()))
