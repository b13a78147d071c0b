"""Fluent Bit on every Trainium node: sends the logs of pods to CloudWatch as they are written.

A pod's log goes with its node, and Volcano deletes the pods of an attempt before the next one.
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
"""Name, namespace and service account; reading files of the host is denied to training pods."""

_PODS = "/var/log/pods"
"""Where the kubelet keeps ``<namespace>_<pod>_<uid>/<container>/<restart>.log``."""
_STATE = "/var/lib/node-logs"
_CONFIG = "/config"
_FILE = "fluent-bit.yaml"
_ENV_GROUP = "LOG_GROUP"

CONFIG: Mapping[str, Any] = {
    "service": {
        # Seconds of output that are lost if the node is.
        "flush": 1,
        # Pause before sending is tried again, at most; by default it grows to 2000 s.
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
                # New files are found by listing, by default once a minute. A pod that fails at once
                # may be gone by then, and its log with it.
                "refresh_interval": 1,
                "read_from_head": True,
                # A new process of the agent sends nothing twice.
                "db": f"{_STATE}/tail.db",
                # If CloudWatch is slow the rest waits in the files, not in memory.
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
                # By default a batch is dropped when its second attempt fails.
                "retry_limit": "no_limits",
            }
        ],
    },
}
"""The configuration of Fluent Bit, which reads JSON as YAML.

Everything in a stream's name is in the path of the log file. So nobody asks the API server, and the
name is right even if the pod is gone when its log is read.
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
                        # A changed ConfigMap restarts nothing.
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
                        # The node's resolver: logs arrive even if the cluster's DNS does not work.
                        "dnsPolicy": "Default",
                        "containers": [
                            {
                                "name": AGENT,
                                "image": FLUENT_BIT_IMAGE,
                                # Without the image's plugins in Go, which its own script loads.
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
                                    # The logs are root's.
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
