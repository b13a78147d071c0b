"""Refusals: the CLI's own, and AWS errors turned into one readable message each."""

from __future__ import annotations

import errno
from typing import Any

EXIT_OK = 0
EXIT_JOB_FAILED = 1
EXIT_REFUSED = 2
EXIT_OUTPUT_LOST = 74
"""EX_IOERR of sysexits.h."""
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
"""A shell's exit code for a program killed by SIGPIPE."""
# Error codes differ between services; these are from botocore's retry handler and the services'
# "common errors" pages.
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
_INVALID_CREDENTIALS = frozenset(
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
"""File names in errors of the output streams."""
_FILE_REMEDIES = {
    errno.EACCES: "fix its permissions, or those of its parent folders, or specify another file",
    errno.EPERM: "fix its permissions, or those of its parent folders, or specify another file",
    errno.ENOSPC: "free some space on its file system, or specify another file",
    errno.ENAMETOOLONG: "use a shorter name",
}
_OTHER = "specify another file"


class Refusal(ValueError):
    """Error with a stable code, and a message that gives the value, the reason and the remedy."""

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
    """Return the HTTP status of a response from AWS or the Kubernetes API, 0 for other errors."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_throttled(error: BaseException) -> bool:
    """Return whether the call was throttled: it had no effect and may be repeated."""
    return error_code(error) in _THROTTLED or http_status(error) == 429


def is_denied(error: BaseException) -> bool:
    """Return whether the caller lacks permission for the call, on AWS or on the cluster."""
    return error_code(error) in _DENIED or http_status(error) == 403


def is_ambiguous(error: BaseException) -> bool:
    """Return whether AWS may have carried out the call despite the error."""
    from botocore import exceptions as aws

    if isinstance(error, aws.EndpointConnectionError | aws.ConnectTimeoutError):
        return False
    lost = aws.ReadTimeoutError | aws.ConnectionClosedError | aws.HTTPClientError
    return isinstance(error, lost) or http_status(error) >= 500


def is_transient(error: BaseException) -> bool:
    """Return whether the same call is likely to succeed when retried."""
    from botocore import exceptions as aws
    from urllib3.exceptions import HTTPError  # raised by the Kubernetes client

    connection = aws.EndpointConnectionError | aws.ConnectionError | aws.HTTPClientError
    lost = isinstance(error, connection | HTTPError)
    return lost or is_throttled(error) or http_status(error) >= 500


def as_refusal(error: BaseException, *, region: str | None) -> Refusal | None:
    """Return a refusal unchanged, an AWS error as a refusal, None for anything else."""
    return error if isinstance(error, Refusal) else from_aws(error, region=region)


def from_system(error: OSError) -> Refusal | None:
    """Turn an error about a file into a refusal; None if it names no file or an output stream."""
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
            f"{_lower(error)}; select one that `aws configure list-profiles` lists, or unset "
            "AWS_PROFILE",
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
            f"AWS credentials could not be refreshed: {_lower(error)}; run `aws sso login`, or "
            "renew them as your organization requires",
        )
    if isinstance(error, aws.NoRegionError):
        return Refusal(
            "no-region",
            "no AWS region is set; pass --region (for example --region us-west-2), or set "
            "AWS_REGION or the region of your profile",
        )
    if isinstance(error, aws.InvalidRegionError):
        return Refusal("invalid-region", f"{_lower(error)}; specify a region such as us-west-2")
    connection = aws.EndpointConnectionError | aws.ConnectionError | aws.HTTPClientError
    if isinstance(error, connection):
        return Refusal(
            "unreachable",
            f"AWS did not respond{where}: {_lower(error)}; check the network, the region's name "
            "and AWS_ENDPOINT_URL",
        )
    if isinstance(error, aws.BotoCoreError):
        return Refusal("aws", f"the call to AWS{where} failed: {_lower(error)}")
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
    if code in _INVALID_CREDENTIALS:
        return Refusal(
            "invalid-credentials",
            f"AWS rejected the credentials ({operation}: {detail}); check AWS_PROFILE, the access "
            "key and this machine's clock",
        )
    if code in _DENIED:
        return Refusal(
            "access-denied",
            f"access denied to {operation}{where}: {detail}; request that permission, or select "
            "the right account with AWS_PROFILE",
        )
    if is_throttled(error):
        return Refusal(
            "throttled",
            f"AWS throttled {operation}{where}, even after retries: {detail}; try again in "
            "a minute",
        )
    shown = f"{detail} ({code})" if not code.lstrip().startswith("<") else detail
    return Refusal("aws", f"AWS refused {operation}{where}: {shown}")


def _first_line(message: str) -> str:
    """Return the first line of an AWS message, or a note if AWS sent a web page instead."""
    if message.lstrip().startswith("<"):
        return "the response is a web page, not from AWS; check --region and AWS_ENDPOINT_URL"
    return message.strip().partition("\n")[0].strip()


def _lower(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text[:1].lower() + text[1:]
