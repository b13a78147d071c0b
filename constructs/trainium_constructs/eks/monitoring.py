"""Monitoring of nodes: neuron-monitor on every Trainium node."""

from __future__ import annotations

from trainium_catalogue import kubernetes
from trainium_catalogue.charts import NEURON_MONITOR_IMAGE, NEURON_MONITOR_PORT
from trainium_constructs.eks.manifests import Manifest

MONITOR = "neuron-monitor"
"""Name and namespace of the monitor, which needs privileges that training pods must not have."""


def neuron_monitor(*, instance_type: str) -> list[Manifest]:
    """Build a DaemonSet for Trainium nodes, and a headless Service.

    Prometheus finds the DaemonSet's pods by their annotations. Modeled on AWS's own DaemonSet
    (aws-neuron-sdk, src/k8/k8s-neuron-monitor-daemonset.yml), which tolerates no taint and omits
    Trainium2.
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
                        # Its metrics have the instance's id and type as labels, from the metadata
                        # service, which only the host can reach (Neuron Monitor User Guide,
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
                                # It reads all devices of the host without requesting any.
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
