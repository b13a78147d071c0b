"""The TorchX application of a workload: one role, one replica per node.

Its resources are explicit. TorchX's own ``aws_trn1.32xlarge`` asks for
``aws.amazon.com/neurondevice``, which Neuron's device plugin has not offered since SDK 2.20, so its
pods stay pending for ever (torchx/specs/named_resources_aws.py).
"""

from __future__ import annotations

from typing import Any

from jobs.eks.launch_spec import LaunchSpec
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.contract import RESERVED_PORTS

# A pod that requests no huge pages may have none, whatever the host holds: touching one is SIGBUS
# (kubernetes/kubernetes issue 71233). libfabric takes them by default for a small gain
# (fi_efa(7), FI_EFA_USE_HUGE_PAGE), and AWS's jobs for Trainium request none.
_HUGE_PAGES = {"FI_EFA_USE_HUGE_PAGE": "0"}
_RESERVED = ",".join(str(port) for port in RESERVED_PORTS)
_SHM = "dshm"
"""Name that TorchX gives the volume at /dev/shm."""


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
    """What a Role cannot say of its pod."""
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
