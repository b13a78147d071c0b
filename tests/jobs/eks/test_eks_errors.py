"""Errors from the API server and Volcano's admission webhook, as one message with a remedy."""

from __future__ import annotations

import json

import pytest
from kubernetes.client.exceptions import ApiException

from jobs.eks.cluster import from_kubernetes


@pytest.mark.parametrize(
    ("status", "text", "code", "remedy"),
    [
        (
            400,
            'admission webhook "validatejob.volcano.sh" denied the request: unable to find job '
            'queue: queue.scheduling.volcano.sh "trainium" not found;',
            "volcano-denied",
            "unable to find job queue",
        ),
        (
            500,
            'Internal error occurred: failed calling webhook "mutatejob.volcano.sh": no endpoints '
            'available for service "volcano-admission-service"',
            "no-webhook",
            "kubectl -n volcano-system get pods",
        ),
        (
            403,
            'pods "x" is forbidden: exceeded quota: jobs, requested: pods=1, used: pods=4',
            "cluster-quota",
            "kubectl describe resourcequota",
        ),
        (403, 'jobs is forbidden: User "me" cannot list', "cluster-denied", "eks_admin_arns"),
        (401, "Unauthorized", "cluster-credentials", "access entry"),
        (404, "the server could not find the requested resource", "no-volcano", "cdk deploy"),
        (422, "Job.batch.volcano.sh is invalid", "cluster", "is invalid"),
    ],
)
def test_refusal_has_remedy(status: int, text: str, code: str, remedy: str) -> None:
    error = ApiException(status=status)
    error.body = json.dumps({"kind": "Status", "message": text})
    refusal = from_kubernetes(error)

    assert refusal is not None
    assert refusal.code == code
    assert remedy in refusal.message
