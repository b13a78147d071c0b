"""A proxy in front of an emulator that injects S3's faults."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.support.limits import scaled


class Fault(StrEnum):
    SLOW_DOWN = "503 SlowDown"
    INTERNAL_ERROR = "500 InternalError"
    RESET = "reset before the request is carried out"
    LOST_ANSWER = "reset after the request was carried out"
    CUT_BODY = "reset in the middle of the answer"
    SLOW = "late"
    ACCESS_DENIED = "403 AccessDenied"
    """The only one that does not pass."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    number: int
    """How often the same method and path was requested before."""
    host: str = ""
    """The address that the client asked, and its port."""


Plan = Callable[[Request], Fault | None]


@dataclass
class FaultyProxy:
    """Proxy to ``target``; ``plan`` selects requests to fail, and how."""

    target: str
    plan: Plan = lambda request: None
    slow_s: float = 0.1
    injected: list[tuple[Fault, Request]] = field(default_factory=list)
    url: str = ""
    _seen: dict[tuple[str, str], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def decide(self, method: str, path: str, host: str = "") -> Fault | None:
        with self._lock:
            number = self._seen.get((method, path), 0)
            self._seen[method, path] = number + 1
            request = Request(method, path, number, host)
            fault = self.plan(request)
            if fault is not None:
                self.injected.append((fault, request))
            return fault

    def reset(self, plan: Plan) -> None:
        with self._lock:
            self._seen.clear()
            self.injected.clear()
            self.plan = plan


def first_time(*faults: Fault) -> Plan:
    """Plan that fails every request in each of these ways in turn, before it succeeds."""
    return lambda request: faults[request.number] if request.number < len(faults) else None


@contextmanager
def faulty_proxy(target: str, *, address: str = "127.0.0.1") -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(target)
    # moto checks and writes in two steps, S3 in one.
    conditions = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.decide(self.command, self.path, self.headers.get("Host", ""))
            match fault:
                case Fault.SLOW_DOWN:
                    return self.refuse(503, "SlowDown")
                case Fault.INTERNAL_ERROR:
                    return self.refuse(500, "InternalError")
                case Fault.ACCESS_DENIED:
                    return self.refuse(403, "AccessDenied")
                case Fault.RESET:
                    return self.hang_up()
                case Fault.SLOW:
                    time.sleep(proxy.slow_s)
                case _:
                    pass
            conditional = "If-Match" in self.headers or "If-None-Match" in self.headers
            with conditions if conditional else nullcontext():
                return self.forward(body, fault)

        def forward(self, body: bytes, fault: Fault | None) -> None:
            upstream = http.client.HTTPConnection(urlsplit(target).netloc, timeout=scaled(30))
            headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            data = answer.read()
            upstream.close()
            if fault is Fault.LOST_ANSWER:
                return self.hang_up()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                    self.send_header(name, value)
            if answer.getheader("Content-Length") is None:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return None
            if fault is Fault.CUT_BODY and data:
                self.wfile.write(data[: len(data) // 2])
                return self.hang_up()
            self.wfile.write(data)
            return None

        def refuse(self, status: int, code: str) -> None:
            data = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/xml")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def hang_up(self) -> None:
            # Closing with unsent data discarded resets the connection.
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, address: object) -> None:
            """Ignore a disconnected client."""

    server = Server((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield proxy
    server.shutdown()
    server.server_close()
