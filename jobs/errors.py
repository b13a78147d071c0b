"""Refusals: the CLI's own, and AWS's errors as one readable message each."""

from __future__ import annotations

import errno
from typing import Any

EXIT_OK = 0
EXIT_JOB_FAILED = 1
EXIT_REFUSED = 2
EXIT_OUTPUT_LOST = 74
"""As EX_IOERR of sysexits.h."""
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
"""As a shell shows the end of a program by SIGPIPE."""
# Error codes differ from service to service; the lists are those of botocore's retry handler and
# of the services' "common errors" pages.
_THROTTLED = frozenset(
    {
        "LimitExceededException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_UNKNOWN_CREDENTIALS = frozenset(
    {
        "AuthFailure",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_DENIED = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedException", "UnauthorizedOperation"}
)

OUTPUTS = ("<stdout>", "<stderr>")
"""Names of the streams that a command writes to, as in an error of theirs."""
_FILE_REMEDIES = {
    errno.EACCES: "set its permissions, or those of its folders, or name another",
    errno.EPERM: "set its permissions, or those of its folders, or name another",
    errno.ENOSPC: "make room on its file system, or name another",
    errno.ENAMETOOLONG: "give a shorter name",
}
_OTHER = "name another"


class Refusal(ValueError):
    """Something that cannot be done: value, reason and remedy in one message, and a stable code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def error_code(error: BaseException) -> str | None:
    """Return the code of an error response, or None for anything else."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    code = response.get("Error", {}).get("Code")
    return str(code) if code is not None else None


def http_status(error: BaseException) -> int:
    """Return the HTTP status of an error response, 0 for anything else."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_throttled(error: BaseException) -> bool:
    """True if the call was throttled: it had no effect and may be repeated."""
    return error_code(error) in _THROTTLED or _status(error) == 429


def is_denied(error: BaseException) -> bool:
    """True if the caller may not make the call, on AWS or on the cluster."""
    return error_code(error) in _DENIED or _status(error) == 403


def is_ambiguous(error: BaseException) -> bool:
    """True if ``error`` leaves open whether AWS carried out the call."""
    from botocore import exceptions as aws

    if isinstance(error, aws.EndpointConnectionError | aws.ConnectTimeoutError):
        return False
    lost = aws.ReadTimeoutError | aws.ConnectionClosedError | aws.HTTPClientError
    return isinstance(error, lost) or http_status(error) >= 500


def is_transient(error: BaseException) -> bool:
    """True if the same call may well succeed in a moment."""
    from botocore import exceptions as aws
    from urllib3.exceptions import HTTPError  # raised by the Kubernetes client

    connection = aws.EndpointConnectionError | aws.ConnectionError | aws.HTTPClientError
    lost = isinstance(error, connection | HTTPError)
    return lost or is_throttled(error) or _status(error) >= 500


def _status(error: BaseException) -> int:
    """Return the HTTP status of an answer from AWS or the Kubernetes API."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else http_status(error)


def as_refusal(error: BaseException, *, region: str | None) -> Refusal | None:
    """Return a refusal unchanged, an AWS error as a refusal, None for anything else."""
    return error if isinstance(error, Refusal) else from_aws(error, region=region)


def from_system(error: OSError) -> Refusal | None:
    """Turn an error about a file into a refusal; None if it names no file."""
    if error.filename is None or error.filename in OUTPUTS:
        return None
    reason = (error.strerror or str(error)).lower()
    return Refusal(
        "file", f"{error.filename}: {reason}; {_FILE_REMEDIES.get(error.errno or 0, _OTHER)}"
    )


def from_aws(error: BaseException, *, region: str | None) -> Refusal | None:
    """Turn a boto3 error into a refusal; None if it does not come from AWS."""
    from botocore import exceptions as aws

    where = f" in {region}" if region else ""
    if isinstance(error, aws.ClientError):
        return _from_response(error, where)
    if isinstance(error, aws.ProfileNotFound):
        return Refusal(
            "unknown-profile",
            f"{_lower(error)}; name one of `aws configure list-profiles`, or unset AWS_PROFILE",
        )
    if isinstance(error, aws.NoCredentialsError | aws.PartialCredentialsError):
        return Refusal(
            "no-credentials",
            f"no AWS credentials: {_lower(error)}; run `aws configure` or `aws sso login`, or set "
            "AWS_PROFILE",
        )
    sso = aws.SSOError, aws.UnauthorizedSSOTokenError, aws.TokenRetrievalError
    if isinstance(error, (*sso, aws.CredentialRetrievalError)):
        return Refusal(
            "expired-credentials",
            f"AWS credentials could not be refreshed: {_lower(error)}; run `aws sso login` (or "
            "renew them the way your organisation does)",
        )
    if isinstance(error, aws.NoRegionError):
        return Refusal(
            "no-region",
            "no AWS region is set; give --region (for example --region us-west-2), or set "
            "AWS_REGION or the region of your profile",
        )
    if isinstance(error, aws.InvalidRegionError):
        return Refusal("invalid-region", f"{_lower(error)}; a region looks like us-west-2")
    connection = aws.EndpointConnectionError | aws.ConnectionError | aws.HTTPClientError
    if isinstance(error, connection):
        return Refusal(
            "unreachable",
            f"AWS does not answer{where}: {_lower(error)}; check the network, the region's name "
            "and AWS_ENDPOINT_URL",
        )
    if isinstance(error, aws.BotoCoreError):
        return Refusal("aws", f"the call to AWS{where} was not possible: {_lower(error)}")
    return None


def _from_response(error: Any, where: str) -> Refusal:
    code = error_code(error) or "Unknown"
    operation = getattr(error, "operation_name", "the call")
    detail = _first_line(error.response.get("Error", {}).get("Message", "")) or code
    if code in _EXPIRED:
        return Refusal(
            "expired-credentials",
            f"AWS credentials have expired ({operation}: {detail}); renew them, for example with "
            "`aws sso login`",
        )
    if code in _UNKNOWN_CREDENTIALS:
        return Refusal(
            "invalid-credentials",
            f"AWS does not accept the credentials ({operation}: {detail}); check AWS_PROFILE, the "
            "access key and the clock of this machine",
        )
    if code in _DENIED:
        return Refusal(
            "access-denied",
            f"access denied to {operation}{where}: {detail}; ask for that permission, or choose "
            "the right account with AWS_PROFILE",
        )
    if is_throttled(error):
        return Refusal(
            "throttled",
            f"AWS throttles {operation}{where} and several attempts did not help: {detail}; try "
            "again in a minute",
        )
    said = f"{detail} ({code})" if not code.lstrip().startswith("<") else detail
    return Refusal("aws", f"AWS refused {operation}{where}: {said}")


def _first_line(message: str) -> str:
    """Return the first line of AWS's message, or say that a web page came instead."""
    if message.lstrip().startswith("<"):
        return "the answer is a web page, so not AWS's; check --region and AWS_ENDPOINT_URL"
    return message.strip().partition("\n")[0].strip()


def _lower(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text[:1].lower() + text[1:]
