"""Messages for AWS's errors."""

from __future__ import annotations

import pytest
from botocore import exceptions as aws

from jobs import errors
from tests.jobs.fakes import client_error


@pytest.mark.parametrize(
    ("code", "refusal", "remedy"),
    [
        ("ExpiredToken", "expired-credentials", "aws sso login"),
        ("ExpiredTokenException", "expired-credentials", "aws sso login"),
        ("UnrecognizedClientException", "invalid-credentials", "AWS_PROFILE"),
        ("InvalidSignatureException", "invalid-credentials", "clock"),
        ("AccessDeniedException", "access-denied", "request that permission"),
        ("AccessDenied", "access-denied", "right account"),
        ("TooManyRequestsException", "throttled", "in a minute"),
        ("ThrottlingException", "throttled", "in a minute"),
        ("ClientException", "aws", "said AWS (ClientException)"),
    ],
)
def test_error_response_becomes_one_message(code: str, refusal: str, remedy: str) -> None:
    found = errors.from_aws(client_error(code, operation="SubmitJob"), region="us-west-2")

    assert found is not None
    assert found.code == refusal
    assert "SubmitJob" in found.message
    assert remedy in found.message
    assert "\n" not in found.message


def test_refusal_quotes_aws_message() -> None:
    found = errors.from_aws(client_error("AccessDeniedException"), region="us-west-2")

    assert found is not None
    assert "said AWS" in found.message


@pytest.mark.parametrize(
    "error",
    [
        aws.UnauthorizedSSOTokenError(),
        aws.TokenRetrievalError(provider="sso", error_msg="no"),
        aws.CredentialRetrievalError(provider="process", error_msg="no"),
        aws.SSOTokenLoadError(profile_name="p", error_msg="no"),
    ],
)
def test_expired_credentials_ask_for_login(error: Exception) -> None:
    found = errors.from_aws(error, region=None)

    assert found is not None
    assert found.code == "expired-credentials"


@pytest.mark.parametrize(
    "error",
    [
        aws.EndpointConnectionError(endpoint_url="https://x"),
        aws.ConnectTimeoutError(endpoint_url="https://x"),
        aws.ReadTimeoutError(endpoint_url="https://x"),
        aws.SSLError(endpoint_url="https://x", error="certificate"),
        aws.ProxyConnectionError(proxy_url="https://x"),
    ],
)
def test_network_error_suggests_checking_network(error: Exception) -> None:
    found = errors.from_aws(error, region="us-west-2")

    assert found is not None
    assert found.code == "unreachable"


def test_own_error_is_not_an_aws_error() -> None:
    assert errors.from_aws(KeyError("ours"), region=None) is None


def test_other_botocore_error_becomes_message() -> None:
    found = errors.from_aws(aws.ParamValidationError(report="bad"), region=None)

    assert found is not None
    assert found.code == "aws"


@pytest.mark.parametrize(
    ("error", "ambiguous"),
    [
        (aws.ReadTimeoutError(endpoint_url="https://x"), True),
        (aws.ConnectionClosedError(endpoint_url="https://x"), True),
        (client_error("InternalFailure", status=500), True),
        (client_error("ServiceUnavailable", status=503), True),
        (aws.EndpointConnectionError(endpoint_url="https://x"), False),
        (aws.ConnectTimeoutError(endpoint_url="https://x"), False),
        (client_error("AccessDeniedException", status=403), False),
        (client_error("TooManyRequestsException", status=429), False),
    ],
)
def test_only_lost_response_is_ambiguous(error: Exception, ambiguous: bool) -> None:
    assert errors.is_ambiguous(error) is ambiguous
