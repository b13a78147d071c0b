"""``port-forward``: connections to a pod's ports through the API server.

The websocket protocol is ``v4.channel.k8s.io``: for port number i of the query, channel 2i carries
its bytes and channel 2i + 1 what went wrong; each begins with the port as two bytes, the low one
first (kubernetes, pkg/kubelet/portforward/websocket.go).
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import WSMsgType, web

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.resources import Json

_PROTOCOLS = ("v4.channel.k8s.io", "portforward.k8s.io")
_LOOPBACK = "127.0.0.1"


async def forward_ports(request: web.Request, pod: Json) -> web.StreamResponse:
    """Connect to each port of the query and pass on what both sides say."""
    phase = pod["status"]["phase"]
    if phase != "Running":
        why = f"unable to forward port because pod is not running. Current status={phase}"
        raise errors.ApiError(400, "BadRequest", why)
    if "websocket" not in request.headers.get("Upgrade", "").lower():
        raise errors.ApiError(400, "BadRequest", "ports are forwarded over websockets only")
    ports = [int(port) for text in request.query.getall("ports") for port in text.split(",")]
    socket = web.WebSocketResponse(protocols=_PROTOCOLS)
    await socket.prepare(request)
    tasks: list[asyncio.Task[None]] = []
    writers: dict[int, asyncio.StreamWriter] = {}
    for number, port in enumerate(ports):
        for channel in (2 * number, 2 * number + 1):
            await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        try:
            reader, writer = await _connect(pod["status"]["podIP"], port)
        except OSError as error:
            await socket.send_bytes(bytes([2 * number + 1]) + str(error).encode())
            continue
        writers[2 * number] = writer
        tasks.append(asyncio.create_task(_pass_on(socket, reader, 2 * number)))
    closing = asyncio.create_task(_close_after(socket, tasks))
    async for message in socket:
        if message.type != WSMsgType.BINARY or message.data[0] not in writers:
            continue
        writers[message.data[0]].write(message.data[1:])
    for task in (*tasks, closing):
        task.cancel()
    for writer in writers.values():
        writer.close()
    return socket


async def _connect(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To what the pod listens on: its own address, or the loopback it would have to itself."""
    try:
        return await asyncio.open_connection(address, port)
    except OSError:
        return await asyncio.open_connection(_LOOPBACK, port)


async def _pass_on(
    socket: web.WebSocketResponse, reader: asyncio.StreamReader, channel: int
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            await socket.send_bytes(bytes([channel]) + data)


async def _close_after(socket: web.WebSocketResponse, tasks: list[asyncio.Task[None]]) -> None:
    """A client waits for the end of the connection, which is the pod's to decide."""
    await asyncio.gather(*tasks)
    await socket.close()
