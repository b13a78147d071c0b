"""Fluent Bit on every Trainium node, which streams the logs of pods to CloudWatch.

A pod's log is lost with its node, and Volcano deletes an attempt's pods before the next attempt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trainium_catalogue import kubernetes
from trainium_catalogue.charts import FLUENT_BIT_IMAGE
from trainium_catalogue.contract import ENV_REGION
from trainium_constructs.eks.manifests import Manifest

AGENT = "node-logs"
"""Name, namespace and service account; the namespace of training pods forbids hostPath volumes."""

_PODS = "/var/log/pods"
"""Where the kubelet keeps ``<namespace>_<pod>_<uid>/<container>/<restart>.log``."""
_STATE = "/var/lib/node-logs"
_CONFIG = "/config"
_FILE = "fluent-bit.yaml"
_ENV_GROUP = "LOG_GROUP"

CONFIG: Mapping[str, Any] = {
    "service": {
        # In seconds: output of up to this duration is lost with a node.
        "flush": 1,
        # Maximum back-off between retries; by default 2000 s.
        "scheduler.cap": 30,
    },
    "pipeline": {
        "inputs": [
            {
                "name": "tail",
                "path": f"{_PODS}/{kubernetes.NAMESPACE}_*/*/*.log",
                "tag": "<pod>/<uid>",
                "tag_regex": rf"^{_PODS}/[^_/]+_(?<pod>[^_/]+)_(?<uid>[^_/]+)/",
                "multiline.parser": "cri",
                # In seconds, by default 60: by then a pod that failed immediately may be deleted,
                # with its log.
                "refresh_interval": 1,
                "read_from_head": True,
                # Offsets, so that a restarted agent sends nothing twice.
                "db": f"{_STATE}/tail.db",
                # If CloudWatch is slow, the backlog stays in the files, not in memory.
                "mem_buf_limit": "32M",
            }
        ],
        "outputs": [
            {
                "name": "cloudwatch_logs",
                "match": "*",
                "region": f"${{{ENV_REGION}}}",
                "log_group_name": f"${{{_ENV_GROUP}}}",
                "log_stream_prefix": kubernetes.LOG_STREAM_PREFIX,
                # Otherwise each line would be a JSON document.
                "log_key": "log",
                # By default a chunk is dropped after its second failure.
                "retry_limit": "no_limits",
            }
        ],
    },
}
"""The configuration of Fluent Bit, which reads JSON as YAML.

A stream's name is derived from the log file's path, not from the API server, so it is correct even
if the pod is already deleted when its log is read.
"""


def node_logs(*, instance_type: str, log_group: str, region: str) -> list[Manifest]:
    """Build the agent's service account, configuration and DaemonSet."""
    text = json.dumps(CONFIG, indent=1)
    metadata = {"name": AGENT, "namespace": AGENT}
    labels = {"app.kubernetes.io/name": AGENT}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {_FILE: text},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {**metadata, "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {
                        "labels": labels,
                        # Changing a ConfigMap does not restart pods.
                        "annotations": {
                            "trainium/config": hashlib.sha256(text.encode()).hexdigest()
                        },
                    },
                    "spec": {
                        "serviceAccountName": AGENT,
                        "nodeSelector": {kubernetes.NODE_LABEL: instance_type},
                        "tolerations": [
                            {
                                "key": kubernetes.TAINT,
                                "operator": "Exists",
                                "effect": "NoSchedule",
                            }
                        ],
                        # The node's resolver: logs arrive even if the cluster's DNS fails.
                        "dnsPolicy": "Default",
                        "containers": [
                            {
                                "name": AGENT,
                                "image": FLUENT_BIT_IMAGE,
                                # Without the image's Go plugins, which its entrypoint loads.
                                "command": ["/fluent-bit/bin/fluent-bit"],
                                "args": ["--config", f"{_CONFIG}/{_FILE}"],
                                "env": [
                                    {"name": ENV_REGION, "value": region},
                                    {"name": _ENV_GROUP, "value": log_group},
                                ],
                                "resources": {
                                    "requests": {"cpu": "50m", "memory": "64Mi"},
                                    "limits": {"memory": "256Mi"},
                                },
                                "securityContext": {
                                    # The logs are owned by root.
                                    "runAsUser": 0,
                                    "allowPrivilegeEscalation": False,
                                    "readOnlyRootFilesystem": True,
                                    "capabilities": {"drop": ["ALL"]},
                                    "seccompProfile": {"type": "RuntimeDefault"},
                                },
                                "volumeMounts": [
                                    {"name": "config", "mountPath": _CONFIG, "readOnly": True},
                                    {"name": "pods", "mountPath": _PODS, "readOnly": True},
                                    {"name": "state", "mountPath": _STATE},
                                ],
                            }
                        ],
                        "volumes": [
                            {"name": "config", "configMap": {"name": AGENT}},
                            {"name": "pods", "hostPath": {"path": _PODS}},
                            {
                                "name": "state",
                                "hostPath": {"path": _STATE, "type": "DirectoryOrCreate"},
                            },
                        ],
                    },
                },
            },
        },
    ]
