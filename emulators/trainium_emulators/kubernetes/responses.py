"""Formats responses as clients request them: kubectl's tables, watches, and streamed logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from trainium_emulators.kubernetes.connections import Runs
from trainium_emulators.kubernetes.requests import Target
from trainium_emulators.kubernetes.resources import (
    DEPLOYMENT,
    NAMESPACE,
    NODE,
    POD,
    VOLCANO_JOB,
    ApiResource,
    Json,
)
from trainium_emulators.kubernetes.store import Store, StoreChange, matches

Column = tuple[str, Callable[[Json], Any]]
_POLL_S = 0.1
_INITIAL_END = {"k8s.io/initial-events-end": "true"}


def _status(*names: str) -> Callable[[Json], Any]:
    def value(entry: Json) -> Any:
        nested: Any = entry.get("status", {})
        for name in names:
            nested = (nested or {}).get(name)
        return nested

    return value


def _pod_status(entry: Json) -> str:
    """Describe a pod's state as kubectl does: its phase, or why it ended (printers, printPod)."""
    if "deletionTimestamp" in entry["metadata"]:
        return "Terminating"
    status = entry.get("status", {})
    reasons = [
        state["reason"]
        for container in status.get("containerStatuses", ())
        for state in (container["state"].get("terminated"), container["state"].get("waiting"))
        if state and state.get("reason")
    ]
    return str(status.get("reason") or (reasons or [status.get("phase", "Unknown")])[0])


def _ready(entry: Json) -> str:
    containers = entry.get("status", {}).get("containerStatuses", ())
    return f"{sum(c['ready'] for c in containers)}/{len(entry['spec']['containers'])}"


def _restarts(entry: Json) -> int:
    return sum(c["restartCount"] for c in entry.get("status", {}).get("containerStatuses", ()))


_COLUMNS: Mapping[ApiResource, Sequence[Column]] = {
    POD: (("Ready", _ready), ("Status", _pod_status), ("Restarts", _restarts)),
    # Volcano's additionalPrinterColumns (config/crd/volcano/bases, 1.15.1).
    VOLCANO_JOB: (
        ("STATUS", _status("state", "phase")),
        ("minAvailable", _status("minAvailable")),
        ("RUNNINGS", _status("running")),
    ),
    NAMESPACE: (("Status", _status("phase")),),
    NODE: (("Status", lambda entry: "Ready"), ("Version", _status("nodeInfo", "kubeletVersion"))),
    DEPLOYMENT: (
        (
            "Ready",
            lambda entry: (
                f"{entry.get('status', {}).get('readyReplicas', 0)}"
                f"/{entry['spec'].get('replicas', 1)}"
            ),
        ),
    ),
}


def table(kind: ApiResource, entries: Sequence[Json], *, version: int) -> Json:
    """Format objects as a table."""
    columns = _COLUMNS.get(kind, ())
    names = ["Name", *(name for name, _ in columns), "Age"]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": 0,
            }
            for name in names
        ],
        "rows": [
            {
                "cells": [
                    entry["metadata"]["name"],
                    *(value(entry) for _, value in columns),
                    _age(entry),
                ],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": entry["metadata"],
                },
            }
            for entry in entries
        ],
    }


def _age(entry: Json) -> str:
    created = datetime.fromisoformat(entry["metadata"]["creationTimestamp"])
    seconds = int((datetime.now(UTC) - created).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def wants_table(request: web.Request) -> bool:
    """Return whether the client requests a table to print."""
    return "as=Table" in request.headers.get("Accept", "")


def wants_watch(request: web.Request) -> bool:
    """Return whether the client requests a watch."""
    return request.query.get("watch", "").lower() in ("1", "true")


async def watch(request: web.Request, store: Store, target: Target) -> web.StreamResponse:
    """Send changes as they happen; without a resource version, send existing objects first."""
    changes: asyncio.Queue[StoreChange] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    given = request.query.get("resourceVersion", "")
    initial = given in ("", "0") or request.query.get("sendInitialEvents") == "true"
    since = 0 if initial else int(given)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    selection = _WatchFilter(request, target)
    if initial:
        since = store.version
        for entry in store.list(target.kind, target.namespace):
            await _send(response, request, target, selection.event("ADDED", entry))
        if request.query.get("sendInitialEvents") == "true":
            metadata = {"resourceVersion": str(since), "annotations": _INITIAL_END}
            bookmark = {
                "kind": target.kind.kind,
                "apiVersion": target.kind.api_version,
                "metadata": metadata,
            }
            await _line(response, {"type": "BOOKMARK", "object": bookmark})

    def on_change(change: StoreChange) -> None:
        loop.call_soon_threadsafe(changes.put_nowait, change)

    stop = store.listen(on_change, since=since)
    timeout = request.query.get("timeoutSeconds")
    try:
        async with asyncio.timeout(float(timeout) if timeout else None):
            while True:
                change = await changes.get()
                if change.kind == target.kind:
                    event = selection.event(change.type, change.entry)
                    await _send(response, request, target, event)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        stop()
    with contextlib.suppress(ConnectionError):
        await response.write_eof()
    return response


class _WatchFilter:
    """Filter of a watch with selectors, which also determines the event type."""

    def __init__(self, request: web.Request, target: Target) -> None:
        self._labels = request.query.get("labelSelector", "")
        self._fields = request.query.get("fieldSelector", "")
        self._namespace = target.namespace
        self._known: set[str] = set()

    def event(self, type_: str, entry: Json) -> tuple[str, Json] | None:
        """Return the event, if any; an object that is no longer selected appears as deleted."""
        uid = entry["metadata"]["uid"]
        inside = self._namespace in (None, entry["metadata"].get("namespace", ""))
        if not inside:
            return None
        selected = matches(entry, labels=self._labels, fields=self._fields)
        if not selected:
            type_ = "DELETED"
            if uid not in self._known:
                return None
        elif type_ == "MODIFIED" and uid not in self._known and (self._labels or self._fields):
            type_ = "ADDED"
        if type_ == "DELETED":
            self._known.discard(uid)
        else:
            self._known.add(uid)
        return type_, entry


async def _send(
    response: web.StreamResponse,
    request: web.Request,
    target: Target,
    event: tuple[str, Json] | None,
) -> None:
    if event is None:
        return
    type_, entry = event
    if wants_table(request):
        version = int(entry["metadata"]["resourceVersion"])
        entry = table(target.kind, [entry], version=version)
    await _line(response, {"type": type_, "object": entry})


async def _line(response: web.StreamResponse, document: Json) -> None:
    await response.write(json.dumps(document).encode() + b"\n")


async def log(request: web.Request, pod: Json, runs: Runs) -> web.StreamResponse:
    """Return a container's output; with ``follow``, stream future output too."""
    lines = runs.lines(pod["metadata"]["uid"])
    query = request.query
    follow = query.get("follow", "").lower() in ("1", "true")
    render = _renderer(stamped=query.get("timestamps", "").lower() in ("1", "true"))
    begin = 0
    if "sinceSeconds" in query:
        earliest = datetime.now(UTC).timestamp() - float(query["sinceSeconds"])
        begin = sum(time_s < earliest for time_s, _ in list(lines))
    if "tailLines" in query:
        begin = max(begin, len(lines) - int(query["tailLines"]))
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            ended = runs.has_ended(pod["metadata"]["uid"])
            new_lines = lines[begin:]
            begin += len(new_lines)
            if new_lines:
                await response.write("".join(map(render, new_lines)).encode())
            if ended or not follow:
                break
            await asyncio.sleep(_POLL_S)
        await response.write_eof()
    return response


def _renderer(*, stamped: bool) -> Callable[[tuple[float, str]], str]:
    def render(line: tuple[float, str]) -> str:
        time_s, text = line
        if not stamped:
            return f"{text}\n"
        moment = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        return f"{moment} {text}\n"

    return render
