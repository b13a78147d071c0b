"""Answers that go on: watches, and logs that are followed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime

from aiohttp import web

from trainium_emulators.kubernetes import selectors, tables
from trainium_emulators.kubernetes.requests import Target
from trainium_emulators.kubernetes.resources import Json
from trainium_emulators.kubernetes.shell import Runs
from trainium_emulators.kubernetes.store import Change, Store

_POLL_S = 0.1
_INITIAL_END = {"k8s.io/initial-events-end": "true"}


def wants_table(request: web.Request) -> bool:
    """Whether the client would print the answer."""
    return "as=Table" in request.headers.get("Accept", "")


def wants_watch(request: web.Request) -> bool:
    """Whether the client wants changes as they happen."""
    return request.query.get("watch", "").lower() in ("1", "true")


async def watch(request: web.Request, store: Store, target: Target) -> web.StreamResponse:
    """Send changes as they happen; without a resource version, what there is comes first."""
    changes: asyncio.Queue[Change] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    given = request.query.get("resourceVersion", "")
    initial = given in ("", "0") or request.query.get("sendInitialEvents") == "true"
    since = 0 if initial else int(given)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    chosen = _Chosen(request, target)
    if initial:
        since = store.version
        for entry in store.list(target.kind, target.namespace):
            await _send(response, request, target, chosen.event("ADDED", entry))
        if request.query.get("sendInitialEvents") == "true":
            metadata = {"resourceVersion": str(since), "annotations": _INITIAL_END}
            bookmark = {
                "kind": target.kind.kind,
                "apiVersion": target.kind.api_version,
                "metadata": metadata,
            }
            await _line(response, {"type": "BOOKMARK", "object": bookmark})

    def on_change(change: Change) -> None:
        loop.call_soon_threadsafe(changes.put_nowait, change)

    stop = store.listen(on_change, since=since)
    timeout = request.query.get("timeoutSeconds")
    try:
        async with asyncio.timeout(float(timeout) if timeout else None):
            while True:
                change = await changes.get()
                if change.kind == target.kind:
                    event = chosen.event(change.type, change.entry)
                    await _send(response, request, target, event)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        stop()
    with contextlib.suppress(ConnectionError):
        await response.write_eof()
    return response


class _Chosen:
    """Which changes a watch with selectors sees, and as what."""

    def __init__(self, request: web.Request, target: Target) -> None:
        self._labels = request.query.get("labelSelector", "")
        self._fields = request.query.get("fieldSelector", "")
        self._namespace = target.namespace
        self._known: set[str] = set()

    def event(self, type_: str, entry: Json) -> tuple[str, Json] | None:
        """An object that is selected no more is deleted to the watcher."""
        uid = entry["metadata"]["uid"]
        inside = self._namespace in (None, entry["metadata"].get("namespace", ""))
        if not inside:
            return None
        selected = selectors.matches(entry, labels=self._labels, fields=self._fields)
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
        entry = tables.table(target.kind, [entry], version=version)
    await _line(response, {"type": type_, "object": entry})


async def _line(response: web.StreamResponse, document: Json) -> None:
    await response.write(json.dumps(document).encode() + b"\n")


async def log(request: web.Request, pod: Json, runs: Runs) -> web.StreamResponse:
    """A container's output, and what it goes on to write when ``follow`` is asked for."""
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
            news = lines[begin:]
            begin += len(news)
            if news:
                await response.write("".join(map(render, news)).encode())
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
