"""A web server on loopback that serves ranges of files, with injected failures."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """A site on loopback, and its failures."""

    files: dict[str, bytes]
    url: str = ""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next answers to GET."""
    breaks: list[int] = field(default_factory=list)
    """Bytes after which the next connections end."""
    ranges: list[str | None] = field(default_factory=list)
    """What was asked for."""
    sent: int = 0
    """Bytes so far."""


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Site]:
    """Serve files by their paths."""
    site = Site(files)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            site.ranges.append(self.headers["Range"])
            if site.statuses:
                self.send_error(site.statuses.pop(0))
                return
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            data = site.files.get(self.path)
            if data is None:
                self.send_error(404)
                return
            etag = f'"{hashlib.md5(data).hexdigest()}"'
            if self.headers["If-Match"] not in (None, etag):
                self.send_error(412)
                return
            first, _, last = (self.headers["Range"] or "bytes=0-")[6:].partition("-")
            part = data[int(first) : int(last) + 1 if last else None]
            self.send_response(206 if self.headers["Range"] else 200)
            self.send_header("Content-Length", str(len(part)))
            self.send_header("ETag", etag)
            self.end_headers()
            if with_body:
                part = part[: site.breaks.pop(0)] if site.breaks else part
                site.sent += len(part)
                self.wfile.write(part)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
