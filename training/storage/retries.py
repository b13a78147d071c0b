"""Retry transient S3 errors, and explain all others."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from training.storage.interface import (
    ObjectMissing,
    PreconditionFailed,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)

# docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; racing conditional requests get 409
# ConditionalRequestConflict and should be retried.
_TRANSIENT_CODES = frozenset(
    {
        "BadDigest",
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)

# By name, to avoid imports. The last two occur when 32 processes request credentials from the ECS
# agent at the same moment.
_TRANSIENT_TYPES = frozenset(
    {
        "HTTPClientError",
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "FlexibleChecksumError",
        "IncompleteReadError",
        "ProxyConnectionError",
        "ReadTimeoutError",
        "ResponseParserError",
        "ResponseStreamingError",
        "RetriesExceededError",
        "CredentialRetrievalError",
        "MetadataRetrievalError",
    }
)
REFUSED_CONDITION = ("NoSuchKey", "PreconditionFailed", "412")
"""Error codes of a failed condition; the last one is for responses without a body."""
T = TypeVar("T")


def code_of(error: Exception) -> str | None:
    """Return S3's error code, if any."""
    response: Any = getattr(error, "response", None)
    return str(response["Error"].get("Code", "")) if isinstance(response, dict) else None


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of the response, if any."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None if status is None else int(status)


def is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    if {kind.__name__ for kind in type(error).__mro__} & _TRANSIENT_TYPES:
        return True
    status = status_of(error)
    return code_of(error) in _TRANSIENT_CODES or (
        status is not None and (status >= 500 or status == 429)
    )


def explained(error: Exception, *, verb: str, name: str, bucket: str) -> Exception:
    """Return the error to raise instead, with object, reason and remedy in one message."""
    if isinstance(error, StorageError | OSError):
        return error
    code = code_of(error)
    if code == "NoSuchBucket":
        return StorageRefused(f"cannot {verb} {name}: there is no bucket {bucket}; deploy it first")
    if code in ("NoSuchKey", "404"):
        return ObjectMissing(f"there is no {name}")
    if code in ("AccessDenied", "403", "AllAccessDisabled"):
        return StorageRefused(
            f"cannot {verb} {name}: {code}; allow the job's role to do it (a bucket other than the "
            "deployment's needs its own policy)"
        )
    if type(error).__name__ == "NoCredentialsError":
        return StorageRefused(
            f"cannot {verb} {name}: no AWS credentials were found; sign in, or assign the job a "
            "role"
        )
    if is_transient(error):
        reason = " ".join(str(error).split())
        return StorageUnavailable(
            f"cannot {verb} {name}: {reason}; S3 kept failing, but a later attempt may succeed"
        )
    if code in ("412", "PreconditionFailed"):
        return PreconditionFailed(f"{name} has since been written by another job")
    if code is not None:
        return StorageRefused(f"cannot {verb} {name}: {error}; the request itself is refused")
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Total time and backoff of one request's retries.

    botocore's own retries end within seconds, but S3 may respond with SlowDown for minutes while it
    splits a bucket's partitions
    (docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html).
    """

    total_s: float = 300.0
    """Total time for retries; below the hang limit, so that the error names storage."""
    first_delay_s: float = 0.5
    longest_delay_s: float = 20.0

    def delay_s(self, attempt: int) -> float:
        """Return the delay after failure ``attempt`` (0-based), with jitter to spread out ranks."""
        return random.uniform(
            0.0, min(self.longest_delay_s, self.first_delay_s * 2 ** min(attempt, 16))
        )


def retrying(
    action: Callable[[int], T],
    *,
    is_transient: Callable[[Exception], bool],
    retry_policy: RetryPolicy,
) -> T:
    """Call ``action(attempt)`` until it succeeds, fails permanently, or times out.

    Raises the last exception unchanged.
    """
    deadline = time.monotonic() + retry_policy.total_s
    attempt = 0
    while True:
        try:
            return action(attempt)
        except Exception as error:
            delay = retry_policy.delay_s(attempt)
            if not is_transient(error) or time.monotonic() + delay > deadline:
                raise
        time.sleep(delay)
        attempt += 1
