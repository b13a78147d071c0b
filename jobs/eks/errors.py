"""What the cluster refuses, as one readable message each."""

from __future__ import annotations

import json
from typing import Any

from jobs.errors import Refusal


def status_of(error: BaseException) -> int:
    """HTTP status of an answer of the API server, 0 for anything else."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else 0


def is_missing(error: BaseException) -> bool:
    """There is no such object."""
    return status_of(error) == 404


def from_kubernetes(error: BaseException) -> Refusal | None:
    """Turn an error of the Kubernetes client into a refusal; None when it is not one."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    if isinstance(error, HTTPError):
        return Refusal(
            "cluster-unreachable",
            f"the cluster's API server does not answer: {_first_line(str(error))}; it is open to "
            "trainium:eks_endpoint_cidrs only (deploy again with this network's address in it), "
            "and with trainium:eks_private=true to the VPC only",
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
