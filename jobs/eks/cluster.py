"""Access to the cluster: JSON in, JSON out, with the caller's own AWS credentials.

No kubeconfig is read, so a command reaches the deployment it names and no other. A token is a
presigned STS call, made the way `aws eks get-token` does (kubernetes-sigs/aws-iam-authenticator,
README, "API Authorization from Outside a Cluster").
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.aws import Aws
from jobs.errors import Refusal, error_code
from trainium_catalogue import kubernetes

Json = dict[str, Any]
_TOKEN_AGE_S = 600.0
"""Age at which a token is renewed: it is valid for 15 minutes, and following takes longer."""
_TIMEOUT_S = (5, 30)
MERGE_PATCH = "application/merge-patch+json"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"
COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/{namespace}/commands"
POD_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
PODS = "/api/v1/namespaces/{namespace}/pods"
EVENTS = "/api/v1/namespaces/{namespace}/events"
NODES = "/api/v1/nodes"
NODE_REQUEST = "/api/v1/namespaces/{namespace}/configmaps/" + kubernetes.NODE_REQUEST
LIFETIME = timedelta(minutes=14)
"""EKS accepts a token for 15 minutes, regardless of its signature's expiry."""
_SIGNATURE_S = 60
_CLUSTER_HEADER = "x-k8s-aws-id"
_PREFIX = "k8s-aws-v1."


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address of the API server, and the certificate that identifies it."""

    name: str
    url: str
    certificate: str
    """The authority's certificate: base64 of PEM, as EKS returns it."""


def read_endpoint(aws: Aws, cluster: str) -> Endpoint:
    """Ask EKS for the cluster; refuse if there is none, or none yet."""
    try:
        found = aws.eks().describe_cluster(name=cluster)["cluster"]
    except Exception as error:
        if error_code(error) != "ResourceNotFoundException":
            raise
        raise Refusal(
            "no-cluster",
            f"there is no cluster {cluster} (any more); deploy again with `cdk deploy --all`",
        ) from None
    if not found.get("endpoint"):
        raise Refusal(
            "no-cluster", f"cluster {cluster} is {found.get('status')}; wait until it is ACTIVE"
        )
    return Endpoint(
        name=cluster,
        url=found["endpoint"],
        certificate=(found.get("certificateAuthority") or {}).get("data", ""),
    )


class Cluster:
    """The Kubernetes API of one cluster, in one namespace."""

    def __init__(self, aws: Aws, cluster: str, namespace: str) -> None:
        self._aws = aws
        self._name = cluster
        self.namespace = namespace
        self._api: Any = None

    def api(self) -> Any:
        """The Kubernetes client's ApiClient, created on first use."""
        if self._api is None:
            endpoint = read_endpoint(self._aws, self._name)
            from kubernetes.client import ApiClient, Configuration

            configuration: Any = Configuration(host=endpoint.url, retries=0)
            if endpoint.url.startswith("https:"):
                configuration.ca_cert_data = base64.b64decode(endpoint.certificate).decode()
            made_at = 0.0

            def renew(of: Any) -> None:
                nonlocal made_at
                if made_at and time.monotonic() - made_at < _TOKEN_AGE_S:
                    return
                made_at = time.monotonic()
                of.api_key["authorization"] = f"Bearer {make_token(self._aws, self._name)}"

            configuration.refresh_api_key_hook = renew
            renew(configuration)
            self._api = ApiClient(configuration)
        return self._api

    def get(self, path: str, **query: str) -> Json:
        """Read an object or a list."""
        return self.call("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[Json]:
        """List every object of a list."""
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
        """Make one request; raises the client's ApiException, or urllib3's errors."""
        with self.open(method, path, query=query, body=body, content_type=content_type) as answer:
            found: Json = json.loads(answer.read())
        return found

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
        """Make one request and leave reading the answer to the caller."""
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
        answer = api.call_api(*arguments, _request_timeout=timeout).response
        if not 200 <= answer.status < 300:
            error = ApiException(status=answer.status, reason=answer.reason)
            error.body = answer.read().decode(errors="replace")
            raise error
        return answer


class refusing:
    """Turns errors of the cluster inside the block into refusals."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, Refusal):
            return
        refusal = from_kubernetes(error) if isinstance(error, Exception) else None
        if refusal is not None:
            raise refusal from None


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the API server's answer, 0 for any other error."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else 0


def is_missing(error: BaseException) -> bool:
    """True if the object does not exist."""
    return status_of(error) == 404


def from_kubernetes(error: BaseException) -> Refusal | None:
    """Turn an error of the Kubernetes client into a refusal; None if it is not one."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    if isinstance(error, HTTPError):
        return Refusal(
            "cluster-unreachable",
            f"the cluster's API server does not answer: {_first_line(str(error))}; it is open to "
            "trainium:eks_endpoint_cidrs only (deploy again with this network's address in it), "
            "and with trainium:eks_private=true to the VPC only; if it was destroyed, what its "
            "runs have kept is in the bucket (`python -m jobs status <run>`)",
        )
    if not isinstance(error, ApiException):
        return None
    said = _message(error)
    match status_of(error):
        case 401:
            return Refusal(
                "cluster-credentials",
                f"the cluster does not know who calls: {said}; give the principal an access entry "
                "(deploy again with its ARN in trainium:eks_submitter_arns), or choose another "
                "with AWS_PROFILE",
            )
        case 403 if "exceeded quota" in said:
            return Refusal(
                "cluster-quota",
                f"the namespace's quota is used up: {said}; wait for runs to end, or look with: "
                "kubectl describe resourcequota",
            )
        case 400 if "denied the request" in said:
            return Refusal("volcano-denied", f"Volcano does not take the job: {said}")
        case 500 if "failed calling webhook" in said:
            return Refusal(
                "no-webhook",
                f"Volcano's admission does not answer: {said}; look with: kubectl -n "
                "volcano-system get pods, and submit again when they run",
            )
        case 403:
            return Refusal(
                "cluster-denied",
                f"the cluster denies it: {said}; deploy again with the principal's ARN in "
                "trainium:eks_submitter_arns, which allows what the commands need, or in "
                "trainium:eks_admin_arns",
            )
        case 404 if "could not find the requested resource" in said:
            return Refusal(
                "no-volcano",
                "the cluster knows no Volcano jobs: its chart is not installed (any more); deploy "
                "again with `cdk deploy --all`",
            )
    return Refusal("cluster", f"the cluster refuses: {said}")


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (KeyError, TypeError, ValueError):
        return _first_line(str(error.reason or error))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def make_token(aws: Aws, cluster: str) -> str:
    """Sign a token for one cluster; sends nothing."""
    client = aws.sts()
    events = client.meta.events

    def keep_cluster(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        # boto3 does not know this parameter of the call; it becomes a signed header below.
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
    """Make the document that kubectl expects from a credential plugin."""
    expires = (now.astimezone(UTC) + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "spec": {},
        "status": {"expirationTimestamp": expires, "token": token},
    }
