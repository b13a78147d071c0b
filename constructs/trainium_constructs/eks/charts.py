"""The values of the Helm charts: only what differs from a chart's own defaults, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from trainium_catalogue.charts import CHARTS, VOLCANO_VERSION, eks_registry
from trainium_catalogue.kubernetes import TAINT

RECOVERY_NAMESPACE = "neuron-healthcheck-system"
RECOVERY_ACCOUNT = "node-problem-detector"

_ON_TRAINIUM = [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}]


def chart_values(
    *,
    instance_type: str,
    region: str,
    recovery: bool,
    efa: bool,
    volcano_version: str = VOLCANO_VERSION,
) -> Mapping[str, Mapping[str, Any]]:
    """Values of every chart that this instance type needs, by our name of the chart."""
    values: dict[str, Mapping[str, Any]] = {
        "neuron": {
            # One type, so that a chart which does not know it yet runs on it too.
            "neuronInstances": [instance_type],
            "devicePlugin": {"tolerations": _ON_TRAINIUM},
            # A pod takes a whole node: there is no device to choose among.
            "scheduler": {"enabled": False, "customScheduler": {"enabled": False}},
            "npd": {
                "enabled": True,
                "tolerations": _ON_TRAINIUM,
                "nodeRecovery": {"enabled": recovery},
            },
        },
        "fsx": {
            "controller": {
                # Pods do not reach the metadata service, which it would ask.
                "region": region,
                "replicaCount": 1,
            },
            "node": {
                # With it and the node's name, which the chart gives, the node plugin asks nobody
                # (aws-fsx-csi-driver, pkg/driver/node.go): at hop limit 1 it would start only
                # after its attempts to reach the metadata service have failed.
                "region": region,
                # A Trainium node comes with a taint.
                "tolerateAllTaints": True,
            },
        },
        "volcano": {
            "basic": {
                # The images of the chart, not what its author had as a default.
                "image_tag_version": f"v{volcano_version}",
                "image_pull_policy": "IfNotPresent",
            },
            # It tolerates no taint, so it stays on the system nodes; nothing to say.
        },
    }
    if efa:
        values["efa"] = {
            # Its own list tolerates nothing but CriticalAddonsOnly.
            "tolerations": _ON_TRAINIUM,
            "image": {"repository": f"{eks_registry(region)}/eks/aws-efa-k8s-device-plugin"},
        }
    return values


def install(
    scope: Construct,
    name: str,
    *,
    cluster: eks.ICluster,
    values: Mapping[str, Any],
    version: str | None = None,
) -> eks.HelmChart:
    """Install a chart of the table, and wait until it runs."""
    chart = CHARTS[name]
    return eks.HelmChart(
        scope,
        f"{name.capitalize()}Chart",
        cluster=cluster,
        chart=chart.chart,
        release=name,
        repository=chart.repository,
        version=version or chart.version,
        namespace=chart.namespace,
        create_namespace=chart.namespace != "kube-system",
        values=dict(values),
        wait=True,
        # Helm gives it to each of its operations: to the hooks of a chart, then to what they
        # precede. The function that runs helm ends after 15 minutes, without a word to
        # CloudFormation; two operations and the chart's download have to fit.
        timeout=cdk.Duration.minutes(6),
    )
