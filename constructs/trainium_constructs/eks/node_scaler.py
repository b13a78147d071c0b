"""The node scaler in the cluster, which adds and removes Trainium nodes (docs/adr/0014)."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct, IDependable

from trainium_catalogue import kubernetes
from trainium_catalogue.contract import ENV_REGION
from trainium_catalogue.instances import InstanceType
from trainium_constructs.eks import manifests
from trainium_constructs.eks.cluster import TrainingCluster
from trainium_constructs.eks.identity import PodRole
from trainium_constructs.eks.manifests import Manifest
from trainium_constructs.eks.node_groups import SYSTEM_LABEL
from trainium_constructs.nag import acknowledge_wildcard

_API = "https://kubernetes.default.svc"
_CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
_NOBODY = 65534
_LABELS = {"app.kubernetes.io/name": kubernetes.SCALER}
_RBAC = "rbac.authorization.k8s.io"


class NodeScaler(Construct):
    """A deployment of one pod, with its rights in the cluster and in the account."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: TrainingCluster,
        node_group: eks.Nodegroup,
        deployment: str,
        region: str,
        image: str,
        instance_type: InstanceType,
        idle_minutes: int,
        hold_minutes: int,
        after: Sequence[IDependable],
    ) -> None:
        """Install the node scaler.

        Args:
            cluster: Cluster to run in.
            node_group: Group whose nodes it removes and adds.
            deployment: Name of the deployment.
            region: Region of the cluster.
            image: The training image, which contains its code.
            instance_type: Type of the group's instances.
            idle_minutes: Minutes after which an idle node is removed; 0: only on a user's request.
            hold_minutes: Minutes for which idle nodes are kept for a job that waits for more.
            after: Resources that must exist first: the jobs' namespace.
        """
        super().__init__(scope, construct_id)
        name = kubernetes.SCALER
        pods = PodRole(self, "Pods", cluster=cluster.cluster, namespace=name, account=name)
        _allow_scaling(pods.role, cluster=cluster.cluster, node_group=node_group)
        command = [
            "python", "-m", "node_scaler",
            "--cluster", cluster.cluster.cluster_name,
            "--node-group", node_group.nodegroup_name,
            "--namespace", kubernetes.NAMESPACE,
            "--instance-type", instance_type.name,
            "--idle-minutes", str(idle_minutes),
            "--hold-minutes", str(hold_minutes),
            "--api", _API,
            "--credentials", _CREDENTIALS,
        ]  # fmt: skip
        applied = eks.KubernetesManifest(
            self,
            "Manifest",
            cluster=cluster.cluster,
            manifest=[
                manifests.namespace(
                    name,
                    deployment=deployment,
                    enforce="restricted",
                    kubernetes_version=cluster.kubernetes_version,
                ),
                manifests.service_account(name, namespace=name),
                manifests.node_request(),
                *_rights(),
                _deployment(image=image, command=command, region=region),
            ],
        )
        # Pods get their credentials when they are created.
        applied.node.add_dependency(pods, *after)


def _allow_scaling(role: iam.Role, *, cluster: eks.ICluster, node_group: eks.Nodegroup) -> None:
    """Grant the rights that the Cluster Autoscaler asks for, for one group.

    Source: github.com/kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md.
    """
    role.add_to_policy(
        iam.PolicyStatement(actions=["eks:DescribeNodegroup"], resources=[node_group.nodegroup_arn])
    )
    role.add_to_policy(
        iam.PolicyStatement(actions=["autoscaling:DescribeAutoScalingGroups"], resources=["*"])
    )
    role.add_to_policy(
        iam.PolicyStatement(
            actions=[
                "autoscaling:SetDesiredCapacity",
                "autoscaling:TerminateInstanceInAutoScalingGroup",
            ],
            resources=["*"],
            # EKS makes up the group's name, but sets these tags.
            conditions={
                "StringEquals": {
                    "aws:ResourceTag/eks:cluster-name": cluster.cluster_name,
                    "aws:ResourceTag/eks:nodegroup-name": node_group.nodegroup_name,
                }
            },
        )
    )
    acknowledge_wildcard(
        role, "*", "tags narrow what changes anything to one group; the rest only describes"
    )


def _rights() -> list[Manifest]:
    """Allow it to read and change only what it needs in the cluster."""
    name = kubernetes.SCALER
    events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    everywhere = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch"]},
        # In all namespaces: anybody's pod keeps its node.
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    of_jobs = [
        {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"], "verbs": ["list", "patch"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [kubernetes.NODE_REQUEST],
            "verbs": ["get", "patch"],
        },
        events,
    ]
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": name}]
    made: list[Manifest] = [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": everywhere,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": subjects,
        },
    ]
    # Events about nodes, which have no namespace, are kept in "default".
    for namespace, rules in ((kubernetes.NAMESPACE, of_jobs), ("default", [events])):
        metadata = {"name": name, "namespace": namespace}
        made += [
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "Role",
                "metadata": metadata,
                "rules": rules,
            },
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
                "subjects": subjects,
            },
        ]
    return made


def _deployment(*, image: str, command: Sequence[str], region: str) -> Manifest:
    name = kubernetes.SCALER
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": name, "labels": _LABELS},
        "spec": {
            "replicas": 1,
            # Never two scalers at once.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _LABELS},
            "template": {
                "metadata": {"labels": _LABELS},
                "spec": {
                    "serviceAccountName": name,
                    "automountServiceAccountToken": True,
                    "nodeSelector": SYSTEM_LABEL,
                    "terminationGracePeriodSeconds": 10,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": _NOBODY,
                        "runAsGroup": _NOBODY,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [
                        {
                            "name": name,
                            # The training image: one image to pin and to scan.
                            "image": image,
                            "command": list(command),
                            "env": [{"name": ENV_REGION, "value": region}],
                            "resources": {
                                "requests": {"cpu": "50m", "memory": "128Mi"},
                                "limits": {"memory": "512Mi"},
                            },
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                },
            },
        },
    }
