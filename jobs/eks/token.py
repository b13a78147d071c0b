"""Who calls, for the Kubernetes API: a presigned call of STS, which is what EKS takes as a token.

The form is that of `aws eks get-token` (kubernetes-sigs/aws-iam-authenticator, README, "API
Authorization from Outside a Cluster").
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.aws import Aws

LIFETIME = timedelta(minutes=14)
"""EKS takes a token for 15 minutes, whatever its signature says."""
_SIGNATURE_S = 60
_CLUSTER_HEADER = "x-k8s-aws-id"
_PREFIX = "k8s-aws-v1."


def make_token(aws: Aws, cluster: str) -> str:
    """Sign a token for one cluster; nothing is sent."""
    client = aws.sts()
    events = client.meta.events

    def keep_cluster(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        # boto3 knows no such parameter of the call; it goes into the signed headers below.
        context[_CLUSTER_HEADER] = params.pop(_CLUSTER_HEADER)

    def sign_cluster(request: Any, **_: Any) -> None:
        request.headers[_CLUSTER_HEADER] = request.context[_CLUSTER_HEADER]

    events.register("provide-client-params.sts.GetCallerIdentity", keep_cluster)
    events.register("before-sign.sts.GetCallerIdentity", sign_cluster)
    url = client.generate_presigned_url(
        "get_caller_identity",
        Params={_CLUSTER_HEADER: cluster},
        ExpiresIn=_SIGNATURE_S,
        HttpMethod="GET",
    )
    return _PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def exec_credential(token: str, *, now: datetime) -> dict[str, Any]:
    """What kubectl expects of a program that gives credentials."""
    expires = (now.astimezone(UTC) + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "spec": {},
        "status": {"expirationTimestamp": expires, "token": token},
    }
