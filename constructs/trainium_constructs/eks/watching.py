"""Monitoring of runs and nodes: TensorBoard as a service, neuron-monitor on every node."""

from __future__ import annotations

from trainium_catalogue import kubernetes
from trainium_catalogue.charts import NEURON_MONITOR_IMAGE, NEURON_MONITOR_PORT
from trainium_catalogue.contract import ENV_REGION, LUSTRE_MOUNT, RUNS_PREFIX
from trainium_constructs.eks.manifests import Manifest, lustre_mounts
from trainium_constructs.eks.node_groups import SYSTEM_LABEL
from trainium_constructs.lustre import LustreMount

TENSORBOARD = "tensorboard"
TENSORBOARD_PORT = 6006
MONITOR = "neuron-monitor"
"""Name and namespace of the monitor, which needs privileges that no training pod may have."""

_NOBODY = 65534


def tensorboard(
    *, image: str, bucket: str, region: str, lustre: LustreMount | None
) -> list[Manifest]:
    """TensorBoard for all runs, and the service to which ``jobs tensorboard`` forwards a port."""
    labels = {"app.kubernetes.io/name": TENSORBOARD}
    # Training writes to Lustre what it also uploads; in the bucket every refresh is a listing.
    logs = f"{LUSTRE_MOUNT}/{RUNS_PREFIX}" if lustre else f"s3://{bucket}/{RUNS_PREFIX}"
    volumes, mounts = ([each] for each in lustre_mounts(lustre)) if lustre else ([], [])
    scratch = {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": TENSORBOARD,
                "namespace": kubernetes.NAMESPACE,
                "labels": labels,
            },
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "serviceAccountName": TENSORBOARD,
                        "nodeSelector": SYSTEM_LABEL,
                        "securityContext": {
                            "runAsNonRoot": True,
                            "runAsUser": _NOBODY,
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "containers": [
                            {
                                "name": TENSORBOARD,
                                # The training image contains it: one image to pin and to scan.
                                "image": image,
                                "command": ["python", "-m", "tensorboard.main"],
                                "args": [
                                    f"--logdir={logs}",
                                    "--host=0.0.0.0",
                                    f"--port={TENSORBOARD_PORT}",
                                    "--reload_interval=30",
                                ],
                                "env": [
                                    {"name": ENV_REGION, "value": region},
                                    {"name": "HOME", "value": "/tmp"},
                                ],
                                "ports": [{"name": "http", "containerPort": TENSORBOARD_PORT}],
                                "readinessProbe": {
                                    "httpGet": {"path": "/", "port": "http"},
                                    "initialDelaySeconds": 10,
                                },
                                "resources": {
                                    "requests": {"cpu": "250m", "memory": "1Gi"},
                                    "limits": {"memory": "4Gi"},
                                },
                                "securityContext": {
                                    "allowPrivilegeEscalation": False,
                                    "readOnlyRootFilesystem": True,
                                    "capabilities": {"drop": ["ALL"]},
                                },
                                "volumeMounts": [
                                    {"name": "scratch", "mountPath": "/tmp"},
                                    *mounts,
                                ],
                            }
                        ],
                        "volumes": [scratch, *volumes],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": TENSORBOARD,
                "namespace": kubernetes.NAMESPACE,
                "labels": labels,
            },
            "spec": {
                "type": "ClusterIP",
                "selector": labels,
                "ports": [{"name": "http", "port": TENSORBOARD_PORT, "targetPort": "http"}],
            },
        },
    ]


def neuron_monitor(*, instance_type: str) -> list[Manifest]:
    """A pod on each Trainium node, which Prometheus finds by its annotations.

    Modelled on AWS's own DaemonSet (aws-neuron-sdk, src/k8/k8s-neuron-monitor-daemonset.yml), which
    tolerates no taint and lists no Trainium2.
    """
    labels = {"app.kubernetes.io/name": MONITOR}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": MONITOR, "namespace": MONITOR, "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {
                        "labels": labels,
                        "annotations": {
                            "prometheus.io/scrape": "true",
                            "prometheus.io/port": str(NEURON_MONITOR_PORT),
                            "prometheus.io/path": "/metrics",
                        },
                    },
                    "spec": {
                        # It labels its metrics with the instance's id and type, which only the
                        # host can get from the metadata service (Neuron Monitor User Guide,
                        # instance_info).
                        "hostNetwork": True,
                        "automountServiceAccountToken": False,
                        "nodeSelector": {kubernetes.NODE_LABEL: instance_type},
                        "tolerations": [
                            {
                                "key": kubernetes.TAINT,
                                "operator": "Exists",
                                "effect": "NoSchedule",
                            }
                        ],
                        "containers": [
                            {
                                "name": MONITOR,
                                "image": NEURON_MONITOR_IMAGE,
                                "command": ["/opt/bin/entrypoint.sh"],
                                "args": ["--port", str(NEURON_MONITOR_PORT)],
                                "env": [{"name": "GOMEMLIMIT", "value": "160MiB"}],
                                "ports": [
                                    {"name": "metrics", "containerPort": NEURON_MONITOR_PORT}
                                ],
                                "resources": {
                                    "requests": {"cpu": "256m", "memory": "128Mi"},
                                    "limits": {"cpu": "500m", "memory": "256Mi"},
                                },
                                # It reads every device of the host without requesting any.
                                "securityContext": {"privileged": True},
                            }
                        ],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": MONITOR, "namespace": MONITOR, "labels": labels},
            "spec": {
                "clusterIP": "None",
                "selector": labels,
                "ports": [
                    {"name": "metrics", "port": NEURON_MONITOR_PORT, "targetPort": "metrics"}
                ],
            },
        },
    ]
