"""Classify a worker's exception as a workload error or a host or network failure."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.neuron_faults import UNSPECIFIC_FAULT, NeuronFault, find_neuron_fault

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

# By name, to avoid importing torch.distributed and botocore.
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

# torch raises these for internal failures and user errors alike; only the text distinguishes them.
_UNSPECIFIC_TYPES = frozenset(
    {"RuntimeError", "AcceleratorError", "XlaRuntimeError", "JaxRuntimeError"}
)

_HOST_TEXT = re.compile(
    r"gloo/transport|connection (closed|reset|refused|aborted)|broken pipe|socket timeout"
    r"|timed out (waiting|after)|wait timeout|\bNRT_[A-Z]|\bnrt_|\bNERR|\blibfabric|\bEFA\b"
    rf"|{UNSPECIFIC_FAULT}",
    re.IGNORECASE,
)


class ExplainedError(Exception):
    """An error with a self-explanatory message, logged without a traceback."""


def classify(error: BaseException) -> ExitCode:
    """Choose the exit code for a worker that ends with ``error``."""
    if any(_is_host_failure(link) for link in _causes(error)):
        return ExitCode.HOST
    return ExitCode.WORKLOAD


def shows_unfit_host(error: BaseException) -> bool:
    """Return whether a worker's error shows that its host is broken and must be replaced."""
    faults = [_neuron_fault(link) for link in _causes(error)]
    return any(fault.unfit_host for fault in faults if fault is not None)


def describe(error: BaseException) -> str:
    """Format the type and message on one line."""
    text = " ".join(str(error).split())
    shortened = text if len(text) <= 300 else f"{text[:297]}..."
    return f"{type(error).__name__}: {shortened}" if shortened else type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its chain of explicit causes."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _is_host_failure(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _HOST_ERRNOS:
        return True
    if not _is_unspecific(error):
        return False
    fault = _neuron_fault(error)
    if fault is not None:
        return fault.retry
    return _is_host_type(error) or _HOST_TEXT.search(str(error)) is not None


def _neuron_fault(error: BaseException) -> NeuronFault | None:
    return find_neuron_fault(str(error)) if _is_unspecific(error) else None


def _is_unspecific(error: BaseException) -> bool:
    return _is_host_type(error) or type(error).__name__ in _UNSPECIFIC_TYPES


def _is_host_type(error: BaseException) -> bool:
    return bool({kind.__name__ for kind in type(error).__mro__} & _HOST_TYPES)
