"""Which failures of S3 may pass, and what to tell a person about those that do not."""

from __future__ import annotations

from typing import Any

from training.storage.interface import (
    ObjectMissing,
    PreconditionFailed,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)

# docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; a conditional request that meets
# another one answers 409 ConditionalRequestConflict, to be repeated.
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

# By name, so that nothing has to be imported. The last two: credentials come from the ECS agent,
# which 32 processes ask at the same moment.
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


def code_of(error: Exception) -> str | None:
    """S3's error code."""
    response: Any = getattr(error, "response", None)
    return str(response["Error"].get("Code", "")) if isinstance(response, dict) else None


def status_of(error: Exception) -> int | None:
    """The HTTP status of an answer."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None if status is None else int(status)


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if {kind.__name__ for kind in type(error).__mro__} & _TRANSIENT_TYPES:
        return True
    status = status_of(error)
    return code_of(error) in _TRANSIENT_CODES or (
        status is not None and (status >= 500 or status == 429)
    )


def explained(error: Exception, *, verb: str, name: str, bucket: str) -> Exception:
    """What to raise instead of ``error``: one message with object, reason and remedy."""
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
        return PreconditionFailed(f"{name} was written anew while it was being read")
    if code is not None:
        return StorageRefused(f"cannot {verb} {name}: {error}; the request itself is refused")
    return error
