"""A request as a Volcano job built with TorchX: one role, one replica per node.

Its resources are explicit: TorchX's own ``aws_trn1.32xlarge`` requests
``aws.amazon.com/neurondevice``, which Neuron's device plugin has not offered since SDK 2.20, so
those pods would stay pending forever (torchx/specs/named_resources_aws.py).

``--compile`` makes two jobs. Volcano's ``dependsOn`` only relates the tasks of one job. Its JobFlow
can make one job depend on another, but recreates every job that it no longer finds, even a finished
one that was cleaned up (pkg/controllers/jobflow/jobflow_controller_action.go, deployJob). So the
second job does the waiting: it is told which job compiles for it, and its launcher holds back until
that job's marker is in the bucket. This needs no open terminal and no rights on the cluster, and
the nodes of a cluster cost the same whether they wait or not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs.deployment import Deployment, EksTarget
from jobs.errors import Refusal
from jobs.job import COMPILE_TIME_LIMIT_HOURS, JobRequest
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.contract import ATTEMPTS, RESERVED_PORTS
from trainium_catalogue.instances import InstanceType
from trainium_catalogue.workloads import LAUNCH_PARAMETERS

(_STOP_GRACE,) = (item for item in LAUNCH_PARAMETERS if item.name == "stop-grace-s")
MAX_RUN_CHARACTERS = 63
"""Limit of a label's value (Kubernetes documentation, Labels and Selectors)."""
_CLOSING_S = 30
_SPARE_S = 3600
"""Time for pulling an image, rendezvous and a clean end."""
_MAX_NAME_CHARACTERS = 36
"""Limit of a host name, 63, minus TorchX's suffix of up to 14 characters and ``-node-999-0``."""
# A pod that requests no huge pages may use none, even if the host has some: touching one raises
# SIGBUS (kubernetes/kubernetes issue 71233). libfabric uses them by default for a small gain
# (fi_efa(7), FI_EFA_USE_HUGE_PAGE), and AWS's Trainium jobs request none.
_HUGE_PAGES = {"FI_EFA_USE_HUGE_PAGE": "0"}
_RESERVED = ",".join(str(port) for port in RESERVED_PORTS)
_SHM = "dshm"
"""TorchX's name for the volume at /dev/shm."""
Json = dict[str, Any]
KEPT_S = 7 * 24 * 3600
"""Time for which an ended job is kept: the same as on Batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Everything that goes into the job."""

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
    stop_grace_s: float = 90.0
    """Grace period that the launcher gives its workers."""
    after_job: str | None = None
    """Job that compiles for this one."""
    scales: bool = False
    """Let the node scaler get the nodes that are missing."""

    @property
    def name(self) -> str:
        """Run name as a cluster name: the job's Service must begin with a letter (RFC 1035)."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.run.lower()).strip("-")
        begun = plain if plain[:1].isalpha() else f"run-{plain}"
        return begun[:_MAX_NAME_CHARACTERS].rstrip("-")

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job and of its pods."""
        return {
            kubernetes.LABEL_DEPLOYMENT: self.deployment,
            kubernetes.LABEL_RUN: self.run,
            kubernetes.LABEL_WORKLOAD: self.workload,
        }

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the job."""
        after = {kubernetes.AFTER: self.after_job} if self.after_job else {}
        return {**after, **({kubernetes.SCALE: "true"} if self.scales else {})}

    @property
    def grace_s(self) -> int:
        """Seconds until the kubelet kills a pod told to stop; longer than the launcher's grace."""
        return math.ceil(self.stop_grace_s) + _CLOSING_S

    @property
    def deadline_s(self) -> int:
        """Seconds until the kubelet ends a pod whose launcher has not ended it.

        Unlike the launcher's limit, the kubelet's includes pulling the image and waiting for a
        compile job.
        """
        waits_s = ATTEMPTS * COMPILE_TIME_LIMIT_HOURS * 3600 if self.after_job else 0
        return self.time_limit_s + round(waits_s) + _SPARE_S

    @property
    def environment(self) -> dict[str, str]:
        """Environment that a Batch job definition would contain."""
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
            **after,
        }


def launch_spec(request: JobRequest, deployment: Deployment) -> LaunchSpec:
    """Build the spec of a job that this deployment's cluster can run."""
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
        stop_grace_s=float(request.parameters.get(_STOP_GRACE.name, _STOP_GRACE.default)),
        after_job=next(iter(request.depends_on), None),
        scales=request.scales,
    )


def check_run_label(run: str) -> None:
    """Refuse a run name that cannot be a label's value."""
    if len(run) <= MAX_RUN_CHARACTERS and run[-1].isalnum():
        return
    nearest = run[:MAX_RUN_CHARACTERS].rstrip("-_")
    raise Refusal(
        "run-name",
        f"{run!r} cannot be a run on the cluster, where it is a label: it takes at most "
        f"{MAX_RUN_CHARACTERS} characters and ends with a letter or digit; {nearest!r} would do",
    )


def app_def(spec: LaunchSpec, *, max_retries: int = 0) -> Any:
    """Build the torchx.specs.AppDef.

    ``max_retries`` is TorchX's and also restarts after a bug in a script. `jobs submit` leaves it
    out and gives the job policies that know the launcher's exit codes.
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
            # The variable's name. Volcano's svc plugin sets it on every node but the first;
            # Volcano's index is the rank, so nobody has to look for rank 0.
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
    """Protect a word that a program must get as it was typed, say ``$(id)`` or ``$$``.

    TorchX reads ``$$`` as one (string.Template), and the kubelet what is left of it again
    (kubernetes.io/docs/tasks/inject-data-application, $$ in command and args).
    """
    return word.replace("$", "$$$$")


def _overlay(spec: LaunchSpec) -> dict[str, Any]:
    """Build the parts of a pod that a Role cannot express."""
    from torchx.specs.overlays import JOIN

    resources = dict(kubernetes.pod_resources(spec.instance_type))
    container = {
        "image": spec.image,
        # TorchX writes MB where the catalogue has MiB, and requests less than its limits.
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
            # There is one container, named differently in each replica, so the image is the key.
            JOIN("containers", on="image"): [container],
            JOIN("volumes", on="name"): [shm],
            "tolerations": [
                {"key": kubernetes.TAINT, "operator": "Exists", "effect": "NoSchedule"}
            ],
            "serviceAccountName": kubernetes.service_account(spec.workload),
            # Credentials come from EKS Pod Identity, which mounts its own token.
            "automountServiceAccountToken": False,
            # Only ends a frozen launcher. A pod ended by the kubelet exits as on a drained node, so
            # Volcano would start another attempt; the launcher enforces the time limit itself and
            # exits with a code that ends the job.
            "activeDeadlineSeconds": spec.deadline_s,
            "terminationGracePeriodSeconds": spec.grace_s,
            # The launcher must not be process 1, which is immune to signals from its own container:
            # process 1 is the pod's pause, as it is Docker's init on Batch.
            "shareProcessNamespace": True,
            "securityContext": {
                "seccompProfile": {"type": "RuntimeDefault"},
                # Applies to the pod's own network; Kubernetes counts it among the safe sysctls.
                "sysctls": [{"name": "net.ipv4.ip_local_reserved_ports", "value": _RESERVED}],
            },
        },
    }


def dry_run(spec: LaunchSpec, target: EksTarget) -> Any:
    """Complete TorchX's dry run: ``request.resource`` is the job, ``schedule`` would send it."""
    from torchx.schedulers.kubernetes_scheduler import Opts, create_scheduler

    scheduler = create_scheduler("jobs")
    # The API server validates the job on submission; doing so beforehand needs the cluster.
    options = Opts(queue=target.queue, namespace=target.namespace, validate_spec=False)
    info = scheduler.submit_dryrun(app_def(spec), options)
    info.request.resource = complete(_plain(info.request.resource), spec, target)
    return info


def complete(job: Json, spec: LaunchSpec, target: EksTarget) -> Json:
    """Add the settings of the gang."""
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
    """Convert the Kubernetes client's models to JSON."""
    from torchx.schedulers.kubernetes_scheduler import sanitize_for_serialization

    plain = sanitize_for_serialization(resource)
    assert isinstance(plain, dict)
    return plain
