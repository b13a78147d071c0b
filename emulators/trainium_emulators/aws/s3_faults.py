"""Makes moto's S3 fail on request: errors, throttling and slow responses.

Armed over HTTP at ``/rehearsal/s3-faults``: POST adds one fault, GET lists all with their hits,
DELETE removes all. A fault is JSON: ``{"kind": "slow-down", "share": 0.3, "seconds": 20,
"keys": "runs/*/checkpoints/*"}``.
"""

import fnmatch
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import unquote

PATH = "/rehearsal/s3-faults"
Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

# docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_ERRORS = {
    "slow-down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "internal-error": (
        "500 Internal Server Error",
        "InternalError",
        "We encountered an internal error. Please try again.",
    ),
}
SLOW = "slow"
KINDS = (*_ERRORS, SLOW)
_BODY = 1 << 20


@dataclass(slots=True, kw_only=True)
class S3Fault:
    """A fault that affects a share of the requests for some keys, for a limited time."""

    kind: str
    share: float = 1.0
    seconds: float = 60.0
    keys: str = "*"
    """Pattern for keys, in which ``*`` matches any text."""
    methods: str = "GET PUT POST HEAD DELETE"
    delay_s: float = 1.0
    """Delay of a slow response."""
    limit: int = 0
    """Maximum number of requests to hit (0: no limit)."""
    hits: int = 0
    ends_s: float = 0.0

    @classmethod
    def parse(cls, given: Mapping[str, Any], *, now_s: float) -> "S3Fault":
        """Read the JSON that arms a fault; ``ValueError`` says what is wrong with it."""
        known = {entry.name for entry in fields(cls)} - {"hits", "ends_s"}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{', '.join(unknown)} is unknown; a fault has {sorted(known)}")
        if given.get("kind") not in KINDS:
            raise ValueError(f"kind {given.get('kind')!r} is unknown; use one of {KINDS}")
        fault = cls(**given)
        if not 0 <= fault.share <= 1:
            raise ValueError(f"share {fault.share} is not between 0 and 1")
        fault.ends_s = now_s + fault.seconds
        return fault

    def concerns(self, method: str, key: str, *, now_s: float) -> bool:
        """Tell whether the fault applies to a request."""
        return (
            now_s < self.ends_s
            and (not self.limit or self.hits < self.limit)
            and method in self.methods.split()
            and fnmatch.fnmatchcase(key, self.keys)
        )


class S3Faults:
    """WSGI middleware in front of moto's application."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._faults: list[S3Fault] = []
        self._lock = threading.Lock()
        self._conditions = threading.Lock()
        # Seeded: every rehearsal makes the same draws, in the order of its requests.
        self._random = random.Random(0)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == PATH:
            return self._arm(environ, start_response)
        fault = self._draw(environ) if _is_s3(environ) else None
        if fault is not None and fault.kind == SLOW:
            time.sleep(fault.delay_s)
        elif fault is not None:
            return _refuse(fault, environ, start_response)
        if environ.get("HTTP_IF_NONE_MATCH") or environ.get("HTTP_IF_MATCH"):
            # moto checks and writes in two steps, S3 in one.
            with self._conditions:
                return self._application(environ, start_response)
        return self._application(environ, start_response)

    def _draw(self, environ: Environ) -> S3Fault | None:
        method, key, now_s = environ["REQUEST_METHOD"], _key(environ), time.monotonic()
        with self._lock:
            for fault in self._faults:
                if fault.concerns(method, key, now_s=now_s) and self._random.random() < fault.share:
                    fault.hits += 1
                    return fault
        return None

    def _arm(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        status = "200 OK"
        try:
            with self._lock:
                if environ["REQUEST_METHOD"] == "POST":
                    given = json.loads(_body(environ))
                    self._faults.append(S3Fault.parse(given, now_s=time.monotonic()))
                elif environ["REQUEST_METHOD"] == "DELETE":
                    self._faults.clear()
                answer: Any = [
                    {
                        entry.name: getattr(fault, entry.name)
                        for entry in fields(fault)
                        if entry.name != "ends_s"
                    }
                    for fault in self._faults
                ]
        except (TypeError, ValueError) as error:
            status, answer = "400 Bad Request", {"message": str(error)}
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


def _is_s3(environ: Environ) -> bool:
    """Tell by its signature whether a request is for S3; S3 also allows it in the query."""
    signature = environ.get("HTTP_AUTHORIZATION", "") + environ.get("QUERY_STRING", "")
    return "/s3/aws4_request" in unquote(signature)


def _key(environ: Environ) -> str:
    """Return the object's key: the path, minus the bucket if the host name does not contain it."""
    path = str(environ["PATH_INFO"]).lstrip("/")
    host = environ.get("HTTP_HOST", "").partition(":")[0]
    has_bucket = host.endswith(".localhost")
    return path if has_bucket else path.partition("/")[2]


def _body(environ: Environ) -> bytes:
    return bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))


def _refuse(fault: S3Fault, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    status, code, message = _ERRORS[fault.kind]
    # A client that is still sending would see a broken connection instead of the response.
    left = int(environ.get("CONTENT_LENGTH") or 0)
    while left > 0 and (read := environ["wsgi.input"].read(min(left, _BODY))):
        left -= len(read)
    text = f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>R</RequestId></Error>"
    body = b"" if environ["REQUEST_METHOD"] == "HEAD" else text.encode()
    start_response(status, [("Content-Type", "application/xml")])
    return [body]
