"""The EKS stack: a cluster for jobs; it holds no data, so it can be recreated when no job runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from stacks.config import AppConfig
from stacks.data_jobs_stack import DataJobsStack
from stacks.lustre_stack import LustreStack
from stacks.network_stack import NetworkStack
from stacks.reservations import reservation_of
from stacks.storage_stack import StorageStack
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.workloads import WORKLOADS, Hardware
from trainium_constructs import PublishedContract, grant_data_uris
from trainium_constructs.eks import (
    ClusterContents,
    ClusterSettings,
    NodeScaler,
    PodRole,
    SystemNodeGroup,
    TrainingCluster,
    TrainiumNodeGroup,
)
from trainium_constructs.eks.manifests import lustre_name
from trainium_constructs.eks.node_scaler import node_group_names


class EksStack(cdk.Stack):
    """Cluster, node groups, add-ons, and a service account with its role for each workload."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: AppConfig,
        network: NetworkStack,
        storage: StorageStack,
        lustre: LustreStack,
        data: DataJobsStack,
        **kwargs: Any,
    ) -> None:
        """Create everything that runs jobs on nodes.

        Args:
            config: Configuration of the deployment.
            network: Network of the nodes.
            storage: Stack of the bucket.
            lustre: Stack of the file system that pods mount.
            data: Stack of the resources shared by all jobs: the image and the log group.
        """
        super().__init__(scope, construct_id, **kwargs)
        self.add_stack_dependency(data, "its image has been pushed")
        self._config = config
        self._storage = storage
        self._mount = lustre.mount
        self.cluster = TrainingCluster(
            self,
            "Training",
            cluster_name=construct_id,
            kubernetes_version=config.kubernetes_version,
            network=network.network,
            endpoint_cidrs=config.public_endpoint_cidrs,
            inside_cidrs=config.private_endpoint_cidrs,
            admin_arns=config.eks_admin_arns,
            submitter_arns=config.eks_submitter_arns,
            log_retention_days=config.log_retention_days,
            add_on_versions=_versions(config.eks_add_on_versions),
        )
        self._add_nodes(network, construct_id)
        roles = self._roles()
        PublishedContract(
            self, "Contract", deployment=config.deployment, values=self._parameters(data)
        )
        contents = ClusterContents(
            self,
            "Contents",
            cluster=self.cluster,
            settings=ClusterSettings(
                deployment=config.deployment,
                kubernetes_version=config.kubernetes_version,
                instance_type=config.instance,
                max_nodes=config.max_nodes,
                region=self.region,
                log_group=data.logs.log_group,
                lustre=lustre.mount,
                chart_versions=_versions(config.eks_chart_versions),
                image_registry=config.eks_image_registry,
            ),
            accounts=[kubernetes.service_account(name) for name in self._workloads()],
            after=[self.system, *self.nodes.values(), *roles],
        )
        NodeScaler(
            self,
            "Scaler",
            cluster=self.cluster,
            node_groups=self._node_groups,
            deployment=config.deployment,
            region=self.region,
            image=data.image_uri,
            instance_type=config.instance,
            idle_minutes=config.eks_idle_minutes,
            hold_minutes=config.runnable_time_limit_minutes,
            snapshots=storage.bucket if config.notifies else None,
            after=[contents],
        )

    def _add_nodes(self, network: NetworkStack, name: str) -> None:
        config = self._config
        common: dict[str, Any] = {
            "cluster": self.cluster,
            "shell": config.node_shell,
        }
        self.system = SystemNodeGroup(
            self,
            "System",
            instance_types=config.eks_system_instance_types,
            network=network.network,
            host_image_version=config.system_image,
            instance_tags=self._tags(f"{name}-system"),
            **common,
        )
        self.nodes = dict[str, TrainiumNodeGroup]()
        """Groups of Trainium nodes by zone, in the order in which jobs try them."""
        placement_groups: Mapping[str, str] = {}
        for zone in config.zone_ids or (network.network.zone,):
            is_first = not self.nodes
            self.nodes[zone] = group = TrainiumNodeGroup(
                self,
                "Nodes" if is_first else f"Nodes-{zone}",
                instance_type=config.instance,
                network=network.network.in_zone(zone),
                layout=config.efa_layout,
                host_image_version=config.node_image,
                root_volume_gib=config.root_volume_gib,
                nodes=config.eks_nodes if is_first else 0,
                max_nodes=config.max_nodes,
                reservation=reservation_of(config),
                placement_group=placement_groups.get(zone, config.placement_group),
                instance_tags=self._tags(name),
                **common,
            )
            placement_groups = placement_groups or group.placement_groups

    @property
    def _node_groups(self) -> dict[str, eks.Nodegroup]:
        return {zone: group.nodes for zone, group in self.nodes.items()}

    def _tags(self, name: str) -> dict[str, str]:
        return {"Name": name, contract.TAG_DEPLOYMENT: self._config.deployment}

    def _workloads(self) -> list[str]:
        return [w.name for w in WORKLOADS.values() if w.hardware is Hardware.TRAINIUM]

    def _roles(self) -> list[PodRole]:
        """Create a role for each workload's pods, with the permissions of its jobs on Batch."""
        roles = []
        for name in self._workloads():
            pods = self._role(name, kubernetes.service_account(name))
            self._storage.bucket.grant(pods.role, WORKLOADS[name])
            grant_data_uris(pods.role, WORKLOADS[name], self._config.data_uris)
            roles.append(pods)
        return roles

    def _role(self, construct_id: str, account: str) -> PodRole:
        return PodRole(
            self,
            construct_id,
            cluster=self.cluster.cluster,
            namespace=kubernetes.NAMESPACE,
            account=account,
        )

    def _parameters(self, data: DataJobsStack) -> dict[str, str]:
        claim = {contract.SSM_EKS_LUSTRE_CLAIM: lustre_name(self._mount)} if self._mount else {}
        idle = {contract.SSM_EKS_IDLE_MINUTES: str(self._config.eks_idle_minutes)}
        return {
            contract.SSM_EKS_CLUSTER: self.cluster.cluster.cluster_name,
            contract.SSM_EKS_NAMESPACE: kubernetes.NAMESPACE,
            contract.SSM_EKS_QUEUE: kubernetes.QUEUE,
            contract.SSM_EKS_NODE_GROUP: ",".join(node_group_names(self._node_groups)),
            contract.SSM_EKS_IMAGE: data.image_uri,
            contract.SSM_EKS_JOB_TIME_LIMIT_HOURS: str(self._config.job_time_limit_hours),
            **claim,
            **(idle if self._config.eks_idle_minutes else {}),
        }


def _versions(pairs: Sequence[str]) -> dict[str, str]:
    """Parse ``name=version`` pairs."""
    return dict(pair.split("=") for pair in pairs)
