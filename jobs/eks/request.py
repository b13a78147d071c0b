"""Volcano job of a request, built with TorchX: one role, one replica per node.

Resources are explicit: TorchX's own ``aws_trn1.32xlarge`` requests
``aws.amazon.com/neurondevice``, which Neuron's device plugin has not offered since SDK 2.20, so
those pods would stay pending forever (torchx/specs/named_resources_aws.py).

``--compile`` creates two jobs. Volcano's ``dependsOn`` only relates the tasks of one job. Its
JobFlow can make one job depend on another, but recreates every job that it no longer finds, even a
finished one that was cleaned up (pkg/controllers/jobflow/jobflow_controller_action.go, deployJob).
So the second job itself waits: it refers to its compile job, and its launcher blocks until that
job's marker is in the bucket. This needs neither an open terminal nor permissions on the cluster,
and nodes of a cluster cost the same whether they wait or not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.deployment import Deployment, EksTarget
from jobs.errors import Refusal
from jobs.job import COMPILE_TIME_LIMIT_HOURS, JobRequest
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.contract import ATTEMPTS, RESERVED_PORTS
from trainium_catalogue.instances import InstanceType
from trainium_catalogue.node_use import stamp
from trainium_catalogue.workloads import LAUNCH_PARAMETERS

(_STOP_GRACE,) = (item for item in LAUNCH_PARAMETERS if item.name == "stop-grace-s")
MAX_RUN_CHARACTERS = 63
"""Maximum length of a label value (Kubernetes documentation, Labels and Selectors)."""
_GRACE_MARGIN_S = 30
_SPARE_S = 3600
"""Time for pulling an image, rendezvous and a clean exit."""
_MAX_NAME_CHARACTERS = 36
"""Maximum length of a host name (63), less TorchX's suffix of up to 14 and ``-node-999-0``."""
# A pod that requests no huge pages cannot use any, even if the host has some: accessing one raises
# SIGBUS (kubernetes/kubernetes issue 71233). libfabric uses them by default for a small gain
# (fi_efa(7), FI_EFA_USE_HUGE_PAGE), and AWS's Trainium jobs request none.
_HUGE_PAGES = {"FI_EFA_USE_HUGE_PAGE": "0"}
_RESERVED = ",".join(str(port) for port in RESERVED_PORTS)
_SHM = "dshm"
"""TorchX's name for the volume at /dev/shm."""
Json = dict[str, Any]
TTL_AFTER_FINISHED_S = 7 * 24 * 3600
"""TTL of an ended job, the same as on Batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """All settings of the job."""

    run: str
    workload: str
    command: Sequence[str]
    num_nodes: int
    time_limit_s: int
    """Time limit of one attempt, enforced by the launcher."""
    deployment: str
    region: str
    bucket: str
    neuron_release: str
    instance_type: InstanceType
    image: str
    lustre_claim: str | None
    has_zones: bool = False
    """True if nodes can be in several zones."""
    stop_grace_s: float = 90.0
    """Grace period that the launcher gives its workers."""
    after_job: str | None = None
    """Compile job that it waits for."""
    scales: bool = False
    """True to let the node scaler add missing nodes."""
    zone_patience_minutes: int | None = None
    """Minutes without capacity after which it moves to the next zone."""
    not_before: datetime | None = None
    """Start of the reserved capacity, before which the node scaler adds no nodes."""
    stop_at: datetime | None = None
    """Time when the launcher stops the job, before the Capacity Block ends."""

    @property
    def name(self) -> str:
        """Run name as a Kubernetes name.

        The name of the job's Service must begin with a letter (RFC 1035).
        """
        plain = re.sub(r"[^a-z0-9]+", "-", self.run.lower()).strip("-")
        name = plain if plain[:1].isalpha() else f"run-{plain}"
        return name[:_MAX_NAME_CHARACTERS].rstrip("-")

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job and its pods."""
        return {
            kubernetes.LABEL_DEPLOYMENT: self.deployment,
            kubernetes.LABEL_RUN: self.run,
            kubernetes.LABEL_WORKLOAD: self.workload,
        }

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the job."""
        start = {} if self.not_before is None else {kubernetes.NOT_BEFORE: stamp(self.not_before)}
        minutes = self.zone_patience_minutes
        patience = {} if minutes is None else {kubernetes.ZONE_PATIENCE: str(minutes)}
        return {
            **({kubernetes.AFTER: self.after_job} if self.after_job else {}),
            **({kubernetes.SCALE: "true", **start, **patience} if self.scales else {}),
        }

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that a Batch job definition would contain."""
        lustre = {contract.ENV_LUSTRE: contract.LUSTRE_MOUNT} if self.lustre_claim else {}
        after = {contract.ENV_AFTER_JOB: self.after_job} if self.after_job else {}
        return {
            contract.ENV_DEPLOYMENT: self.deployment,
            contract.ENV_BUCKET: self.bucket,
            contract.ENV_REGION: self.region,
            contract.ENV_INSTANCE_TYPE: self.instance_type.name,
            contract.ENV_NEURON_RELEASE: self.neuron_release,
            **lustre,
            contract.ENV_RUN: self.run,
            contract.ENV_NUM_NODES: str(self.num_nodes),
            contract.ENV_TIME_LIMIT: str(self.time_limit_s),
            **({} if self.stop_at is None else {contract.ENV_STOP_AT: stamp(self.stop_at)}),
            **after,
        }


def grace_s(stop_grace_s: float) -> int:
    """Return the pod's grace period in seconds, longer than the launcher's."""
    return math.ceil(stop_grace_s) + _GRACE_MARGIN_S


def deadline_s(time_limit_s: int, *, waits: bool) -> int:
    """Return the pod's deadline in seconds, in case its launcher does not exit.

    Unlike the launcher's time limit, it includes pulling the image and, if the job ``waits``,
    waiting for a compile job.
    """
    wait_s = ATTEMPTS * COMPILE_TIME_LIMIT_HOURS * 3600 if waits else 0
    return time_limit_s + round(wait_s) + _SPARE_S


def launch_spec(request: JobRequest, deployment: Deployment) -> LaunchSpec:
    """Build the spec of a job for this deployment's cluster."""
    assert deployment.eks is not None
    return LaunchSpec(
        run=request.run,
        workload=request.workload,
        command=request.command(),
        num_nodes=request.num_nodes,
        time_limit_s=request.time_limit_seconds,
        deployment=deployment.name,
        region=deployment.region,
        bucket=deployment.bucket,
        neuron_release=deployment.neuron_release,
        instance_type=deployment.instance_type,
        image=deployment.eks.image,
        lustre_claim=deployment.eks.lustre_claim,
        has_zones=deployment.eks.has_zones,
        stop_grace_s=float(request.parameters.get(_STOP_GRACE.name, _STOP_GRACE.default)),
        after_job=next(iter(request.depends_on), None),
        scales=request.scales,
        zone_patience_minutes=request.zone_patience_minutes,
        not_before=None if request.window is None else request.window.starts,
        stop_at=None if request.window is None else request.window.stop_at,
    )


def check_run_label(run: str) -> None:
    """Refuse a run name that cannot be a label value."""
    if len(run) <= MAX_RUN_CHARACTERS and run[-1].isalnum():
        return
    nearest = run[:MAX_RUN_CHARACTERS].rstrip("-_")
    raise Refusal(
        "run-name",
        f"{run!r} cannot be a run name on the cluster, where it becomes a label: use at most "
        f"{MAX_RUN_CHARACTERS} characters ending with a letter or digit; for example {nearest!r}",
    )


def app_def(spec: LaunchSpec, *, max_retries: int = 0) -> Any:
    """Build the torchx.specs.AppDef.

    ``max_retries`` is TorchX's own and also retries failures caused by bugs in a script. `jobs
    submit` omits it and sets policies for the launcher's exit codes instead.
    """
    from torchx.specs import AppDef, Resource, Role, VolumeMount, macros
    from torchx.specs.overlays import set_overlay

    resources = kubernetes.pod_resources(spec.instance_type)
    program, *arguments = spec.command
    role = Role(
        name=kubernetes.TASK,
        image=spec.image,
        entrypoint=program,
        args=[_literal(word) for word in arguments],
        num_replicas=spec.num_nodes,
        min_replicas=None,  # all nodes: the job's minAvailable
        max_retries=max_retries,
        env={
            **spec.environment,
            **_HUGE_PAGES,
            contract.ENV_JOB_ID: macros.app_id,
            contract.ENV_ATTEMPT: f"[FIELD_PATH]{kubernetes.RETRY_COUNT_FIELD}",
            contract.ENV_NODE_INDEX: macros.replica_id,
            # The variable's name. Volcano's svc plugin sets it on every node except the first;
            # Volcano's index is the rank, so there is no need to look for rank 0.
            contract.ENV_MAIN_HOST_FROM: macros.rank0_env,
        },
        resource=Resource(
            cpu=int(resources["cpu"]),
            gpu=0,
            memMB=int(resources["memory"].removesuffix("Mi")),
            devices={
                name: int(count)
                for name, count in resources.items()
                if name in (kubernetes.NEURON_RESOURCE, kubernetes.EFA_RESOURCE)
            },
            capabilities={kubernetes.NODE_LABEL: spec.instance_type.name},
        ),
        mounts=(
            [VolumeMount(src=spec.lustre_claim, dst_path=contract.LUSTRE_MOUNT)]
            if spec.lustre_claim
            else []
        ),
    )
    set_overlay(role, "kubernetes", "V1Pod", _overlay(spec))
    return AppDef(name=spec.name, roles=[role])


def _literal(word: str) -> str:
    """Escape a word so that the program receives it literally, for example ``$(id)`` or ``$$``.

    Both TorchX (string.Template) and the kubelet (kubernetes.io/docs/tasks/inject-data-application,
    $$ in command and args) unescape ``$$``.
    """
    return word.replace("$", "$$$$")


def _overlay(spec: LaunchSpec) -> dict[str, Any]:
    """Build the parts of a pod that a Role cannot express."""
    from torchx.specs.overlays import JOIN

    resources = dict(kubernetes.pod_resources(spec.instance_type))
    container = {
        "image": spec.image,
        # TorchX uses MB instead of MiB, and requests less than its limits.
        "resources": {"limits": resources, "requests": resources},
        "securityContext": {"allowPrivilegeEscalation": False},
        # `jobs status` shows the last line of a failed container.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    shm = {
        "name": _SHM,
        "emptyDir": {"medium": "Memory", "sizeLimit": f"{spec.instance_type.shared_memory_mib}Mi"},
    }
    return {
        "metadata": {"labels": spec.labels},
        "spec": {
            # The key is the image: the only container has a different name in each replica.
            JOIN("containers", on="image"): [container],
            JOIN("volumes", on="name"): [shm],
            "tolerations": [
                {"key": kubernetes.TAINT, "operator": "Exists", "effect": "NoSchedule"}
            ],
            # The node scaler labels nodes of one zone (node_scaler/zones.py).
            **({"nodeSelector": {kubernetes.LABEL_RUN: spec.run}} if spec.has_zones else {}),
            "serviceAccountName": kubernetes.service_account(spec.workload),
            # Credentials come from EKS Pod Identity, which mounts its own token.
            "automountServiceAccountToken": False,
            # Only for a hung launcher. A pod ended by the kubelet exits as on a drained node, so
            # Volcano would start another attempt; the launcher enforces the time limit itself and
            # exits with a code that ends the job.
            "activeDeadlineSeconds": deadline_s(spec.time_limit_s, waits=bool(spec.after_job)),
            "terminationGracePeriodSeconds": grace_s(spec.stop_grace_s),
            # The launcher must not be PID 1, which ignores signals from its own container: PID 1
            # is the pause process here, and Docker's init on Batch.
            "shareProcessNamespace": True,
            "securityContext": {
                "seccompProfile": {"type": "RuntimeDefault"},
                # Applies to the pod's network namespace, and is a safe sysctl in Kubernetes.
                "sysctls": [{"name": "net.ipv4.ip_local_reserved_ports", "value": _RESERVED}],
            },
        },
    }


def dry_run(spec: LaunchSpec, target: EksTarget) -> Any:
    """Return TorchX's dry run with the gang's settings added; ``request.resource`` is the job."""
    from torchx.schedulers.kubernetes_scheduler import Opts, create_scheduler

    scheduler = create_scheduler("jobs")
    # The API server validates the job on submission; validating here would need the cluster.
    options = Opts(queue=target.queue, namespace=target.namespace, validate_spec=False)
    info = scheduler.submit_dryrun(app_def(spec), options)
    info.request.resource = add_gang_settings(_plain(info.request.resource), spec, target)
    return info


def add_gang_settings(job: Json, spec: LaunchSpec, target: EksTarget) -> Json:
    """Add the gang's settings to a job."""
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
        "ttlSecondsAfterFinished": TTL_AFTER_FINISHED_S,
    }
    return {**job, "metadata": metadata, "spec": {**job["spec"], **gang}}


def _plain(resource: Any) -> Json:
    """Convert the Kubernetes client's models to JSON."""
    from torchx.schedulers.kubernetes_scheduler import sanitize_for_serialization

    plain = sanitize_for_serialization(resource)
    assert isinstance(plain, dict)
    return plain
