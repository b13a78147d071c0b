"""A request as the Volcano job that TorchX makes of it: one role, one replica per node.

Its resources are explicit. TorchX's own ``aws_trn1.32xlarge`` asks for
``aws.amazon.com/neurondevice``, which Neuron's device plugin has not offered since SDK 2.20, so its
pods stay pending for ever (torchx/specs/named_resources_aws.py).

``--compile`` makes two jobs. Volcano's ``dependsOn`` is between the tasks of one job; its
JobFlow would make one job depend on another, but makes every job again that it no longer finds,
also a finished one that was cleaned up (pkg/controllers/jobflow/jobflow_controller_action.go,
deployJob). So the second job waits by itself: it is told which job compiles for it, and its
launcher holds back until that has left its marker in the bucket. That needs no desk and no rights
on the cluster, and nodes of a cluster are paid for whether they wait or not.
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
"""To pull an image, to meet, and to end cleanly."""
_MAX_NAME_CHARACTERS = 36
"""A host name of 63, less TorchX's suffix of up to 14 characters and ``-node-999-0``."""
# A pod that requests no huge pages may have none, whatever the host holds: touching one is SIGBUS
# (kubernetes/kubernetes issue 71233). libfabric takes them by default for a small gain
# (fi_efa(7), FI_EFA_USE_HUGE_PAGE), and AWS's jobs for Trainium request none.
_HUGE_PAGES = {"FI_EFA_USE_HUGE_PAGE": "0"}
_RESERVED = ",".join(str(port) for port in RESERVED_PORTS)
_SHM = "dshm"
"""Name that TorchX gives the volume at /dev/shm."""
Json = dict[str, Any]
KEPT_S = 7 * 24 * 3600
"""A job that has ended stays as long as Batch remembers one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Everything that goes into the job."""

    run: str
    workload: str
    command: Sequence[str]
    num_nodes: int
    time_limit_s: int
    """Time limit of one attempt; the launcher ends the job with it."""
    deployment: str
    region: str
    bucket: str
    neuron_release: str
    instance_type: InstanceType
    image: str
    lustre_claim: str | None
    stop_grace_s: float = 90.0
    """That the launcher gives its workers."""
    after_job: str | None = None
    """Job that compiles for this one."""
    scales: bool = False
    """Let the node scaler get the nodes that are missing."""

    @property
    def name(self) -> str:
        """The run as a name in the cluster: the job's Service begins with a letter (RFC 1035)."""
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
        """Seconds until the kubelet kills a pod that was told to end: later than the launcher."""
        return math.ceil(self.stop_grace_s) + _CLOSING_S

    @property
    def deadline_s(self) -> int:
        """Seconds until the kubelet ends a pod whose launcher has not ended it.

        The kubelet counts from before the image is pulled, and while a job that compiles is waited
        for; the launcher does not.
        """
        waits_s = ATTEMPTS * COMPILE_TIME_LIMIT_HOURS * 3600 if self.after_job else 0
        return self.time_limit_s + round(waits_s) + _SPARE_S

    @property
    def environment(self) -> dict[str, str]:
        """The environment that a job definition of Batch would hold."""
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
    """The job of a request that this deployment's cluster can run."""
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

    ``max_retries`` is TorchX's: it restarts after a mistake in a script as well. `jobs submit`
    leaves it out and gives the job policies that know the launcher's exit codes.
    """
    from torchx.specs import AppDef, Resource, Role, VolumeMount, macros
    from torchx.specs.overlays import set_overlay

    resources = kubernetes.pod_resources(spec.instance_type)
    program, *arguments = spec.command
    role = Role(
        name=kubernetes.TASK,
        image=spec.image,
        entrypoint=program,
        args=arguments,
        num_replicas=spec.num_nodes,
        min_replicas=None,  # all of them: the job's minAvailable
        max_retries=max_retries,
        env={
            **spec.environment,
            **_HUGE_PAGES,
            contract.ENV_JOB_ID: macros.app_id,
            contract.ENV_ATTEMPT: f"[FIELD_PATH]{kubernetes.RETRY_COUNT_FIELD}",
            contract.ENV_NODE_INDEX: macros.replica_id,
            # The name of the variable, which Volcano's svc plugin fills on every node but the
            # first: Volcano's index is the rank, and nobody has to look for rank 0.
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


def _overlay(spec: LaunchSpec) -> dict[str, Any]:
    """The parts of a pod that a Role cannot express."""
    from torchx.specs.overlays import JOIN

    resources = dict(kubernetes.pod_resources(spec.instance_type))
    container = {
        "image": spec.image,
        # TorchX writes MB where the catalogue has MiB, and requests less than it limits.
        "resources": {"limits": resources, "requests": resources},
        "securityContext": {"allowPrivilegeEscalation": False},
        # `jobs status` shows the last line of a container that failed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    shm = {
        "name": _SHM,
        "emptyDir": {"medium": "Memory", "sizeLimit": f"{spec.instance_type.shared_memory_mib}Mi"},
    }
    return {
        "metadata": {"labels": spec.labels},
        "spec": {
            # One container, whose name differs from replica to replica: the image is the key.
            JOIN("containers", on="image"): [container],
            JOIN("volumes", on="name"): [shm],
            "tolerations": [
                {"key": kubernetes.TAINT, "operator": "Exists", "effect": "NoSchedule"}
            ],
            "serviceAccountName": kubernetes.service_account(spec.workload),
            # Credentials come from EKS Pod Identity, which mounts a token of its own.
            "automountServiceAccountToken": False,
            # Of a frozen launcher only. A pod that the kubelet ends exits as on a drained node, and
            # Volcano would make another attempt: the time limit itself is the launcher's, which
            # exits with a code that ends the job.
            "activeDeadlineSeconds": spec.deadline_s,
            "terminationGracePeriodSeconds": spec.grace_s,
            # The launcher must not be process 1, which is immune to its own container's signals:
            # here that is the pod's pause, as Docker's init is on Batch.
            "shareProcessNamespace": True,
            "securityContext": {
                "seccompProfile": {"type": "RuntimeDefault"},
                # Of the pod's own network; one of the sysctls that Kubernetes calls safe.
                "sysctls": [{"name": "net.ipv4.ip_local_reserved_ports", "value": _RESERVED}],
            },
        },
    }


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
