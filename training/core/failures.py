"""Classifies a worker's exception as the fault of the workload or of host and network."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from trainium_catalogue.exit_codes import ExitCode

_HOST_ERRNOS = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)

# By name, so that torch.distributed and botocore need not be imported.
_HOST_TYPES = frozenset(
    {
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "ReadTimeoutError",
        "ResponseStreamingError",
    }
)

# torch raises these both for its own failures and for its users' mistakes; the text tells which.
_UNSPECIFIC_TYPES = frozenset({"RuntimeError", "XlaRuntimeError", "JaxRuntimeError"})

_HOST_TEXT = re.compile(
    r"gloo/transport|connection (closed|reset|refused|aborted)|broken pipe|socket timeout"
    r"|timed out (waiting|after)|wait timeout|\bNRT_[A-Z]|\bnrt_|\bNERR|\blibfabric|\bEFA\b",
    re.IGNORECASE,
)

# Neuron runtime status codes (nrt_status.h) that the same program gets on every host.
_WORKLOAD_STATUS = re.compile(
    r"\bNRT_(INVALID|INVALID_HANDLE|RESOURCE|UNSUPPORTED_NEFF_VERSION|FAIL_HOST_MEM_ALLOC"
    r"|EXEC_BAD_INPUT|EXEC_OOB|EXEC_COMPLETED_WITH_NUM_ERR)\b"
)


class Explained(Exception):
    """An error whose message says all that its user needs; the log shows no traceback of it."""


def classify(error: BaseException) -> ExitCode:
    """Choose the exit code for a worker that ends with ``error``."""
    if any(_is_host_trouble(link) for link in _causes(error)):
        return ExitCode.HOST
    return ExitCode.WORKLOAD


def describe(error: BaseException) -> str:
    """Format type and message as one line."""
    text = " ".join(str(error).split())
    shortened = text if len(text) <= 300 else f"{text[:297]}..."
    return f"{type(error).__name__}: {shortened}" if shortened else type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its explicit causes."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _is_host_trouble(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _HOST_ERRNOS:
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _HOST_TYPES:
        return True
    if type(error).__name__ not in _UNSPECIFIC_TYPES:
        return False
    text = str(error)
    return _HOST_TEXT.search(text) is not None and _WORKLOAD_STATUS.search(text) is None
