"""Tells which S3 failures are transient, retries those, and explains the rest."""

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

# docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; a conditional request that races with
# another gets 409 ConditionalRequestConflict and is to be repeated.
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

# By name, so that nothing has to be imported. The last two: 32 processes ask the ECS agent for
# credentials at the same moment.
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
"""Error codes of a failed condition; the last one occurs if the response has no body."""
T = TypeVar("T")


def code_of(error: Exception) -> str | None:
    """S3's error code."""
    response: Any = getattr(error, "response", None)
    return str(response["Error"].get("Code", "")) if isinstance(response, dict) else None


def status_of(error: Exception) -> int | None:
    """The HTTP status of the response."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None if status is None else int(status)


def is_transient(error: Exception) -> bool:
    """Tell whether the same request may succeed later."""
    if {kind.__name__ for kind in type(error).__mro__} & _TRANSIENT_TYPES:
        return True
    status = status_of(error)
    return code_of(error) in _TRANSIENT_CODES or (
        status is not None and (status >= 500 or status == 429)
    )


def explained(error: Exception, *, verb: str, name: str, bucket: str) -> Exception:
    """Build the error to raise instead: one message with object, reason and remedy."""
    if isinstance(error, StorageError | OSError):
        return error
    code = code_of(error)
    if code == "NoSuchBucket":
        return StorageRefused(f"cannot {verb} {name}: there is no bucket {bucket}; deploy it first")
    if code in ("NoSuchKey", "404"):
        return ObjectMissing(f"there is no {name}")
    if code in ("AccessDenied", "403", "AllAccessDisabled"):
        return StorageRefused(
            f"cannot {verb} {name}: {code}; let the job's role do it (a bucket other than the "
            "deployment's needs a policy of its own)"
        )
    if type(error).__name__ == "NoCredentialsError":
        return StorageRefused(
            f"cannot {verb} {name}: no AWS credentials were found; log in, or give the job a role"
        )
    if is_transient(error):
        reason = " ".join(str(error).split())
        return StorageUnavailable(
            f"cannot {verb} {name}: {reason}; S3 kept failing, a later attempt may succeed"
        )
    if code in ("412", "PreconditionFailed"):
        return PreconditionFailed(f"{name} was written by another job meanwhile")
    if code is not None:
        return StorageRefused(f"cannot {verb} {name}: {error}; the request itself is refused")
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds on the duration and pace of one request's retries.

    botocore's own retries end within seconds, too soon for a bucket that answers SlowDown while S3
    splits its partitions, which takes minutes
    (docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html).
    """

    total_s: float = 300.0
    """Seconds of retries, below the launcher's hang limit, so that storage gets the blame."""
    first_delay_s: float = 0.5
    longest_delay_s: float = 20.0

    def delay_s(self, attempt: int) -> float:
        """Delay after failure number ``attempt`` (from 0): random, so that ranks do not collide."""
        return random.uniform(
            0.0, min(self.longest_delay_s, self.first_delay_s * 2 ** min(attempt, 16))
        )


def retrying(
    action: Callable[[int], T],
    *,
    is_transient: Callable[[Exception], bool],
    retry_policy: RetryPolicy,
) -> T:
    """Call ``action(attempt)`` until it succeeds, fails for good, or its time is up.

    The last exception is raised unchanged.
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
