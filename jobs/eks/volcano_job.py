"""The Volcano job that TorchX makes, and what the helper adds to it as a whole.

``--compile`` makes two of them. Volcano's ``dependsOn`` is between the tasks of one job; its
JobFlow would make one job depend on another, but makes every job again that it no longer finds,
also a finished one that was cleaned up (pkg/controllers/jobflow/jobflow_controller_action.go,
deployJob). So the second job waits by itself: it is told which job compiles for it, and its
launcher holds back until that has left its marker in the bucket. That needs no desk and no rights
on the cluster, and nodes of a cluster are paid for whether they wait or not.
"""

from __future__ import annotations

from typing import Any

from jobs.deployment import EksTarget
from jobs.eks.app import app_def
from jobs.eks.launch_spec import LaunchSpec
from trainium_catalogue import kubernetes

Json = dict[str, Any]

KEPT_S = 7 * 24 * 3600
"""A job that has ended stays as long as Batch remembers one."""


def dry_run(spec: LaunchSpec, target: EksTarget) -> Any:
    """TorchX's dry run, completed: ``request.resource`` is the job, ``schedule`` would send it."""
    from torchx.schedulers.kubernetes_scheduler import Opts, create_scheduler

    scheduler = create_scheduler("jobs")
    # The API server validates what is sent to it; asking it beforehand would need the cluster.
    options = Opts(queue=target.queue, namespace=target.namespace, validate_spec=False)
    info = scheduler.submit_dryrun(app_def(spec), options)
    info.request.resource = complete(_plain(info.request.resource), spec, target)
    return info


def complete(job: Json, spec: LaunchSpec, target: EksTarget) -> Json:
    """Add what concerns the gang."""
    metadata = {
        **job["metadata"],
        "namespace": target.namespace,
        "labels": spec.labels,
        **({"annotations": spec.annotations} if spec.annotations else {}),
    }
    gang = {
        "minAvailable": spec.num_nodes,
        "policies": [dict(policy) for policy in kubernetes.JOB_POLICIES],
        "maxRetry": kubernetes.MAX_RETRY,
        "ttlSecondsAfterFinished": KEPT_S,
    }
    return {**job, "metadata": metadata, "spec": {**job["spec"], **gang}}


def _plain(resource: Any) -> Json:
    """The Kubernetes client's models as JSON."""
    from torchx.schedulers.kubernetes_scheduler import sanitize_for_serialization

    plain = sanitize_for_serialization(resource)
    assert isinstance(plain, dict)
    return plain
