"""JSON access to the Kubernetes API, with the caller's own AWS credentials.

No kubeconfig is read, so that a command only reaches the deployment it names. A token is a
presigned STS call, as from `aws eks get-token` (kubernetes-sigs/aws-iam-authenticator, README,
"API Authorization from Outside a Cluster").
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.aws import Aws
from jobs.errors import Refusal, error_code, http_status
from trainium_catalogue import kubernetes

Json = dict[str, Any]
_TOKEN_AGE_S = 600.0
"""Age at which a token, valid for 15 minutes, is renewed: following logs can take longer."""
_TIMEOUT_S = (5, 30)
MERGE_PATCH = "application/merge-patch+json"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"
COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/{namespace}/commands"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
POD_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
PODS = "/api/v1/namespaces/{namespace}/pods"
EVENTS = "/api/v1/namespaces/{namespace}/events"
NODES = "/api/v1/nodes"
NODE_REQUEST = "/api/v1/namespaces/{namespace}/configmaps/" + kubernetes.NODE_REQUEST
LIFETIME = timedelta(minutes=14)
"""Lifetime reported to kubectl: EKS accepts a token for 15 minutes, regardless of when
its signature expires."""
_SIGNATURE_S = 60
_CLUSTER_HEADER = "x-k8s-aws-id"
_PREFIX = "k8s-aws-v1."


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """URL and CA certificate of the API server."""

    name: str
    url: str
    certificate: str
    """CA certificate, as base64-encoded PEM, as returned by EKS."""


def read_endpoint(aws: Aws, cluster: str) -> Endpoint:
    """Read the cluster's endpoint from EKS; refuse a cluster that is missing or has none yet."""
    try:
        description = aws.eks().describe_cluster(name=cluster)["cluster"]
    except Exception as error:
        if error_code(error) != "ResourceNotFoundException":
            raise
        raise Refusal(
            "no-cluster",
            f"cluster {cluster} does not exist; deploy again with `cdk deploy --all`",
        ) from None
    if not description.get("endpoint"):
        raise Refusal(
            "no-cluster",
            f"cluster {cluster} is {description.get('status')}; wait until it is ACTIVE",
        )
    return Endpoint(
        name=cluster,
        url=description["endpoint"],
        certificate=(description.get("certificateAuthority") or {}).get("data", ""),
    )


class Cluster:
    """The Kubernetes API of one cluster, in one namespace."""

    def __init__(self, aws: Aws, cluster: str, namespace: str) -> None:
        self._aws = aws
        self._name = cluster
        self.namespace = namespace
        self._api: Any = None

    def api(self) -> Any:
        """Return the Kubernetes client's ApiClient, created on first use."""
        if self._api is None:
            endpoint = read_endpoint(self._aws, self._name)
            from kubernetes.client import ApiClient, Configuration

            configuration: Any = Configuration(host=endpoint.url, retries=0)
            if endpoint.url.startswith("https:"):
                configuration.ca_cert_data = base64.b64decode(endpoint.certificate).decode()
            signed_at = 0.0

            def renew(config: Any) -> None:
                nonlocal signed_at
                if signed_at and time.monotonic() - signed_at < _TOKEN_AGE_S:
                    return
                signed_at = time.monotonic()
                config.api_key["authorization"] = f"Bearer {make_token(self._aws, self._name)}"

            configuration.refresh_api_key_hook = renew
            renew(configuration)
            self._api = ApiClient(configuration)
        return self._api

    def get(self, path: str, **query: str) -> Json:
        """Get an object or a list."""
        return self.call("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[Json]:
        """Return the objects of a list."""
        return list(self.get(path, **query).get("items") or ())

    def pods_of(self, job_id: str) -> list[Json]:
        """List the pods of a Volcano job."""
        return self.items(PODS, labelSelector=f"volcano.sh/job-name={job_id}")

    def call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send a request and parse the response; raise ApiException, or urllib3's errors."""
        with self.open(method, path, query=query, body=body, content_type=content_type) as response:
            document: Json = json.loads(response.read())
        return document

    def open(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        timeout: tuple[float, float | None] = _TIMEOUT_S,
    ) -> Any:
        """Send a request; return the unread response, or raise ApiException or urllib3's errors."""
        from kubernetes.client.exceptions import ApiException

        api = self.api()
        headers = {"Accept": "application/json, */*", "Content-Type": content_type}
        arguments = api.param_serialize(
            method=method,
            resource_path=path.format(namespace=self.namespace),
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        response = api.call_api(*arguments, _request_timeout=timeout).response
        if not 200 <= response.status < 300:
            error = ApiException(status=response.status, reason=response.reason)
            error.body = response.read().decode(errors="replace")
            raise error
        return response


class refusing:
    """Context manager that turns errors from the cluster into refusals."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, Refusal):
            return
        refusal = from_kubernetes(error) if isinstance(error, Exception) else None
        if refusal is not None:
            raise refusal from None


def is_missing(error: BaseException) -> bool:
    """Return whether the cluster has no such object; a response of AWS says nothing about it."""
    return getattr(error, "status", None) == 404


def from_kubernetes(error: BaseException) -> Refusal | None:
    """Turn an error of the Kubernetes client into a refusal; None if it is not one."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    if isinstance(error, HTTPError):
        return Refusal(
            "cluster-unreachable",
            f"the cluster's API server does not respond: {_first_line(str(error))}; it allows only "
            "the ranges in trainium:eks_endpoint_cidrs (deploy again with this network's address "
            "among them), or, with trainium:eks_private=true, only the VPC; if the cluster was "
            "destroyed, its runs' files are still in the bucket (`python -m jobs status <run>`)",
        )
    if not isinstance(error, ApiException):
        return None
    message = _message(error)
    match http_status(error):
        case 401:
            return Refusal(
                "cluster-credentials",
                f"the cluster does not recognize the caller: {message}; create an access entry for "
                "this principal (deploy again with its ARN in trainium:eks_submitter_arns), or "
                "select another one with AWS_PROFILE",
            )
        case 403 if "exceeded quota" in message:
            return Refusal(
                "cluster-quota",
                f"the namespace's quota is exhausted: {message}; wait for runs to end, or check "
                "with: kubectl describe resourcequota",
            )
        case 400 if "with state `Open`" in message:
            return Refusal(
                "queue-closed",
                f"the cluster's queue does not accept jobs: {message}; check whether `python -m "
                "jobs down` is destroying the deployment; it reopens the queue if interrupted",
            )
        case 400 if "denied the request" in message:
            return Refusal("volcano-denied", f"Volcano rejected the job: {message}")
        case 500 if "failed calling webhook" in message:
            return Refusal(
                "no-webhook",
                f"Volcano's admission webhook does not respond: {message}; check with: kubectl -n "
                "volcano-system get pods, and submit again when they are running",
            )
        case 403:
            return Refusal(
                "cluster-denied",
                f"the cluster denied the request: {message}; deploy again with the principal's ARN "
                "in trainium:eks_submitter_arns, which grants the permissions that these commands "
                "need, or in trainium:eks_admin_arns",
            )
        case 404 if "could not find the requested resource" in message:
            return Refusal(
                "no-volcano",
                "the cluster has no Volcano jobs API: its chart is not installed; deploy again "
                "with `cdk deploy --all`",
            )
    return Refusal("cluster", f"the cluster refused the request: {message}")


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (KeyError, TypeError, ValueError):
        return _first_line(str(error.reason or error))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def make_token(aws: Aws, cluster: str) -> str:
    """Sign a token for a cluster, without sending anything."""
    client = aws.sts()
    events = client.meta.events

    def keep_cluster(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        # Not a parameter of boto3; it becomes a signed header below.
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
    """Build the document that kubectl expects from a credential plugin."""
    expires = (now.astimezone(UTC) + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "spec": {},
        "status": {"expirationTimestamp": expires, "token": token},
    }
