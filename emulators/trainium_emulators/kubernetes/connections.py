"""Serves ``kubectl exec`` over WebSockets.

It implements ``v5.channel.k8s.io``: the first byte of a message is its channel
(kubernetes/enhancements, KEP 4006).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from aiohttp import WSMsgType, web

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.resources import Json

_EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255


class Runs(Protocol):
    """The kubelet's view of pods that run or have run, by uid."""

    def lines(self, uid: str) -> list[tuple[float, str]]:
        """Return time (seconds since the epoch) and text of every line written so far."""

    def has_ended(self, uid: str) -> bool:
        """Return whether a pod's output is complete."""

    def environment(self, uid: str) -> tuple[Mapping[str, str], Path] | None:
        """Return the environment and folder of a running container."""


async def run_in_pod(request: web.Request, pod: Json, runs: Runs) -> web.StreamResponse:
    """Run the command in the query; send its exit code on the error channel."""
    container = runs.environment(pod["metadata"]["uid"])
    if container is None:
        message = f"container not found in pod {pod['metadata']['name']}: it is not running"
        raise errors.ApiError(500, "InternalError", message)
    if "websocket" not in request.headers.get("Upgrade", "").lower():
        raise errors.ApiError(400, "BadRequest", "exec is served over websockets only")
    environment, folder = container
    socket = web.WebSocketResponse(protocols=_EXEC_PROTOCOLS)
    await socket.prepare(request)
    await socket.send_bytes(bytes([_STDOUT]))
    command = request.query.getall("command")
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(environment),
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        await _finish(socket, 126, f"exec of {command[0]} failed: {error}")
        return socket
    input_task = asyncio.create_task(_forward_input(socket, process))
    await asyncio.gather(
        _forward(socket, process.stdout, _STDOUT), _forward(socket, process.stderr, _STDERR)
    )
    code = await process.wait()
    input_task.cancel()
    code = code if code >= 0 else 128 - code
    await _finish(socket, code, f"command terminated with non-zero exit code: exit status {code}")
    return socket


async def _forward(
    socket: web.WebSocketResponse, source: asyncio.StreamReader | None, channel: int
) -> None:
    assert source is not None
    while data := await source.read(4096):
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(bytes([channel]) + data)


async def _forward_input(
    socket: web.WebSocketResponse, process: asyncio.subprocess.Process
) -> None:
    """Forward the client's input; kill the command when the client disconnects."""
    assert process.stdin is not None
    async for message in socket:
        if message.type != WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == _STDIN:
            process.stdin.write(data)
        elif channel == _CLOSE:
            process.stdin.close()
    if process.returncode is None:
        process.kill()


async def _finish(socket: web.WebSocketResponse, code: int, message: str) -> None:
    """Send the exit code in the form that kubectl and the Python client expect."""
    status: Json = {"metadata": {}, "status": "Success"}
    if code != 0:
        causes: Sequence[Json] = [{"reason": "ExitCode", "message": str(code)}]
        status = {
            "metadata": {},
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": message,
            "details": {"causes": causes},
        }
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([_ERROR]) + json.dumps(status).encode())
        await socket.close()
