"""The contents of a cluster, installed in an order whose reverse is safe for deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs
from constructs import Construct, IDependable

from trainium_catalogue import kubernetes
from trainium_catalogue.charts import CHARTS, VOLCANO_VERSION, eks_registry
from trainium_catalogue.instances import InstanceType
from trainium_catalogue.kubernetes import TAINT
from trainium_constructs.eks import manifests, monitoring, node_logs
from trainium_constructs.eks.cluster import TrainingCluster
from trainium_constructs.eks.identity import PodRole
from trainium_constructs.eks.manifests import Manifest
from trainium_constructs.lustre import LustreMount

_ON_TRAINIUM = [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The choices that determine a cluster's contents."""

    deployment: str
    kubernetes_version: str
    instance_type: InstanceType
    max_nodes: int
    region: str
    log_group: aws_logs.ILogGroup
    """Group to which the nodes send the logs of pods."""
    lustre: LustreMount | None = None
    chart_versions: Mapping[str, str] = field(default_factory=dict)
    """Chart versions that override the pinned ones, by name in ``CHARTS``."""
    image_registry: str | None = None
    """Registry of Volcano's images. Default: Docker Hub, as in its chart."""


class ClusterContents(Construct):
    """DNS, charts, the jobs' namespace with its queue, and monitoring.

    CloudFormation deletes in reverse order of creation: first the namespace with all jobs and
    pods, while Volcano still runs to terminate them; then the charts; then the nodes.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: TrainingCluster,
        settings: ClusterSettings,
        accounts: Sequence[str],
        after: Sequence[IDependable],
    ) -> None:
        """Install everything.

        Args:
            cluster: Cluster to install into.
            settings: Choices that determine the contents.
            accounts: Service accounts in the jobs' namespace.
            after: Node groups, and roles of those accounts, that must exist first.
        """
        super().__init__(scope, construct_id)
        self._cluster, self._settings = cluster, settings
        dns = cluster.add_on("Dns", "coredns", after=after)
        self.charts = self._install_charts((*after, dns))
        # Deleted after the jobs, so that the agent can send their last log lines.
        logs = self._apply("Logs", self._node_logs(), after=[*after, self._log_writer()])
        # One manifest for the namespace and its contents: Kubernetes deletes a volume claim only
        # after the last pod that uses it.
        objects = [self._namespace(), *self._jobs(accounts)]
        jobs = self._apply("Jobs", objects, after=[*self.charts.values(), logs])
        self._apply("Watching", self._monitoring(), after=[jobs])
        # Separate from the jobs' namespace: Volcano's webhook validates queues, but its pod is
        # ready before it listens (Volcano 1.15.1, admission.yaml: no readiness probe).
        queue = manifests.volcano_queue(settings.instance_type, settings.max_nodes)
        self._apply("Queue", [queue], after=[jobs])

    def _install_charts(self, after: Sequence[IDependable]) -> dict[str, eks.HelmChart]:
        settings = self._settings
        values = _chart_values(
            instance_type=settings.instance_type.name,
            region=settings.region,
            efa=settings.instance_type.supports_multi_node,
            volcano_version=settings.chart_versions.get("volcano", VOLCANO_VERSION),
            volcano_registry=settings.image_registry,
        )
        installed = {
            name: _install(
                self,
                name,
                cluster=self._cluster.cluster,
                values=each,
                version=settings.chart_versions.get(name),
            )
            for name, each in values.items()
            if name != "fsx" or settings.lustre
        }
        for chart in installed.values():
            chart.node.add_dependency(*after)
        return installed

    def _log_writer(self) -> PodRole:
        """Let the nodes' agent write to the log group, which it cannot create."""
        pods = PodRole(
            self,
            "LogWriter",
            cluster=self._cluster.cluster,
            namespace=node_logs.AGENT,
            account=node_logs.AGENT,
        )
        self._settings.log_group.grant_write(pods.role)
        return pods

    def _node_logs(self) -> list[Manifest]:
        settings = self._settings
        return [
            self._privileged_namespace(node_logs.AGENT),
            *node_logs.node_logs(
                instance_type=settings.instance_type.name,
                log_group=settings.log_group.log_group_name,
                region=settings.region,
            ),
        ]

    def _namespace(self) -> Manifest:
        return manifests.namespace(
            kubernetes.NAMESPACE,
            deployment=self._settings.deployment,
            # Neuron's runtime runs as root; apart from that, the pods would meet "restricted".
            enforce="baseline",
            kubernetes_version=self._settings.kubernetes_version,
        )

    def _privileged_namespace(self, name: str) -> Manifest:
        """Build a namespace for pods that read the host's devices or files."""
        return manifests.namespace(
            name,
            deployment=self._settings.deployment,
            enforce="privileged",
            kubernetes_version=self._settings.kubernetes_version,
        )

    def _jobs(self, accounts: Sequence[str]) -> list[Manifest]:
        settings = self._settings
        objects = [
            manifests.resource_quota(settings.instance_type, settings.max_nodes),
            *manifests.submitters(),
            *(manifests.service_account(account) for account in accounts),
        ]
        if settings.lustre:
            objects += [
                manifests.lustre_volume(settings.lustre),
                manifests.lustre_claim(settings.lustre),
            ]
        return objects

    def _monitoring(self) -> list[Manifest]:
        settings = self._settings
        return [
            self._privileged_namespace(monitoring.MONITOR),
            *monitoring.neuron_monitor(instance_type=settings.instance_type.name),
        ]

    def _apply(
        self, construct_id: str, objects: list[Manifest], *, after: Sequence[IDependable]
    ) -> eks.KubernetesManifest:
        applied = eks.KubernetesManifest(
            self, construct_id, cluster=self._cluster.cluster, manifest=objects
        )
        applied.node.add_dependency(*after)
        return applied


def _chart_values(
    *,
    instance_type: str,
    region: str,
    efa: bool,
    volcano_version: str = VOLCANO_VERSION,
    volcano_registry: str | None = None,
) -> Mapping[str, Mapping[str, Any]]:
    """Return the non-default values of each chart that the type needs."""
    values: dict[str, Mapping[str, Any]] = {
        "neuron": {
            # Explicit, so that a chart that is older than the instance type runs on it too.
            "neuronInstances": [instance_type],
            "devicePlugin": {"tolerations": _ON_TRAINIUM},
            # A pod uses a whole node, so there are no devices to choose from.
            "scheduler": {"enabled": False, "customScheduler": {"enabled": False}},
            # EKS's node monitoring agent reads the same four errors from the kernel's log, and EKS
            # acts on them (aws/eks-node-monitoring-agent, monitors/neuron/monitor.go).
            "npd": {"enabled": False},
        },
        "fsx": {
            "controller": {
                # Otherwise it calls the metadata service, which pods cannot reach.
                "region": region,
                "replicaCount": 1,
            },
            "node": {
                # With the region and the node's name, which the chart sets, the node plugin needs
                # no metadata service (aws-fsx-csi-driver, pkg/driver/node.go): at hop limit 1 it
                # would start only after all attempts to reach it had failed.
                "region": region,
                # Trainium nodes have a taint.
                "tolerateAllTaints": True,
            },
        },
        "volcano": {
            "basic": {
                # The images of this chart version instead of the chart's default tag.
                "image_tag_version": f"v{volcano_version}",
                "image_pull_policy": "IfNotPresent",
                **({"image_registry": volcano_registry} if volcano_registry else {}),
            },
            # It tolerates no taint, so it stays on the system nodes.
        },
    }
    if efa:
        values["efa"] = {
            # By default it tolerates only CriticalAddonsOnly.
            "tolerations": _ON_TRAINIUM,
            "image": {"repository": f"{eks_registry(region)}/eks/aws-efa-k8s-device-plugin"},
        }
    return values


def _install(
    scope: Construct,
    name: str,
    *,
    cluster: eks.ICluster,
    values: Mapping[str, Any],
    version: str | None = None,
) -> eks.HelmChart:
    """Install a chart from the catalogue and wait until it is ready."""
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
        # Helm applies it to each operation: a chart's hooks, then its resources. The function that
        # runs helm times out after 15 minutes without notifying CloudFormation; two operations and
        # the chart's download have to fit.
        timeout=cdk.Duration.minutes(6),
    )
