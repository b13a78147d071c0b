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
        ("InvalidSignatureException", "invalid-credentials", "clock"),
        # JSON services, such as SSM and ECR, add the suffix.
        ("ExpiredTokenException", "expired-credentials", "aws sso login"),
        ("UnrecognizedClientException", "invalid-credentials", "AWS_PROFILE"),
        ("AccessDeniedException", "access-denied", "request that permission"),
        ("AccessDenied", "access-denied", "said AWS; request that permission"),
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


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (aws.SSOTokenLoadError(profile_name="p", error_msg="no"), "expired-credentials"),
        (aws.UnauthorizedSSOTokenError(), "expired-credentials"),
        (aws.CredentialRetrievalError(provider="process", error_msg="no"), "expired-credentials"),
        (aws.TokenRetrievalError(provider="sso", error_msg="no"), "expired-credentials"),
        (aws.EndpointConnectionError(endpoint_url="https://x"), "unreachable"),
        (aws.ConnectTimeoutError(endpoint_url="https://x"), "unreachable"),
        (aws.ReadTimeoutError(endpoint_url="https://x"), "unreachable"),
        (aws.SSLError(endpoint_url="https://x", error="certificate"), "unreachable"),
        (aws.ProxyConnectionError(proxy_url="https://x"), "unreachable"),
        (aws.ParamValidationError(report="bad"), "aws"),
    ],
)
def test_botocore_error_has_code_of_its_kind(error: Exception, code: str) -> None:
    found = errors.from_aws(error, region=None)

    assert found is not None
    assert found.code == code


def test_own_error_is_not_an_aws_error() -> None:
    assert errors.from_aws(KeyError("ours"), region=None) is None


@pytest.mark.parametrize(
    ("error", "ambiguous"),
    [
        (aws.ReadTimeoutError(endpoint_url="https://x"), True),
        (client_error("InternalFailure", status=500), True),
        (aws.EndpointConnectionError(endpoint_url="https://x"), False),
        (aws.ConnectTimeoutError(endpoint_url="https://x"), False),
        (client_error("TooManyRequestsException", status=429), False),
    ],
)
def test_only_lost_response_is_ambiguous(error: Exception, ambiguous: bool) -> None:
    assert errors.is_ambiguous(error) is ambiguous
