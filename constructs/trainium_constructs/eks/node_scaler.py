"""The node scaler in the cluster, which adds and removes Trainium nodes (docs/adr/0014)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
from trainium_constructs.storage import TrainingBucket

_API = "https://kubernetes.default.svc"
_CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
_NOBODY = 65534
_LABELS = {"app.kubernetes.io/name": kubernetes.SCALER}
_RBAC = "rbac.authorization.k8s.io"


class NodeScaler(Construct):
    """A Kubernetes Deployment of one pod, with its permissions in cluster and account."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: TrainingCluster,
        node_groups: Mapping[str, eks.Nodegroup],
        deployment: str,
        region: str,
        image: str,
        instance_type: InstanceType,
        idle_minutes: int,
        hold_minutes: int,
        snapshots: TrainingBucket | None,
        after: Sequence[IDependable],
    ) -> None:
        """Install the node scaler.

        Args:
            cluster: Cluster to run in.
            node_groups: Node groups to scale, by zone id, in the order in which jobs try them.
            deployment: Name of the deployment.
            region: Region of the cluster.
            image: The training image, which contains the scaler's code.
            instance_type: Type of the groups' instances.
            idle_minutes: Idle timeout of a node; 0: nodes are removed only on a user's request.
            hold_minutes: Minutes to hold idle nodes for a job that waits for more nodes.
            snapshots: Bucket for cluster snapshots, which notifications need; None: no snapshots.
            after: Resources that must exist first: the jobs' namespace.
        """
        super().__init__(scope, construct_id)
        name = kubernetes.SCALER
        pods = PodRole(self, "Pods", cluster=cluster.cluster, namespace=name, account=name)
        _allow_scaling(pods.role, cluster=cluster.cluster, node_groups=node_groups.values())
        command = [
            "python", "-m", "node_scaler",
            "--cluster", cluster.cluster.cluster_name,
            *(part for group in node_group_names(node_groups) for part in ("--node-group", group)),
            "--namespace", kubernetes.NAMESPACE,
            "--instance-type", instance_type.name,
            "--idle-minutes", str(idle_minutes),
            "--hold-minutes", str(hold_minutes),
            "--api", _API,
            "--credentials", _CREDENTIALS,
        ]  # fmt: skip
        if snapshots is not None:
            snapshots.grant_snapshot(pods.role)
            command += ["--snapshot-bucket", snapshots.bucket.bucket_name]
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
                *_cluster_roles(with_snapshots=snapshots is not None),
                _deployment(image=image, command=command, region=region),
            ],
        )
        # Pods get their credentials at creation.
        applied.node.add_dependency(pods, *after)


def node_group_names(node_groups: Mapping[str, eks.Nodegroup]) -> list[str]:
    """Format node groups for the node scaler and the CLI, with zone ids if there are several."""
    names = {zone: group.nodegroup_name for zone, group in node_groups.items()}
    return list(names.values()) if len(names) == 1 else [f"{z}={name}" for z, name in names.items()]


def _allow_scaling(
    role: iam.Role, *, cluster: eks.ICluster, node_groups: Iterable[eks.Nodegroup]
) -> None:
    """Grant the permissions of the Cluster Autoscaler for these groups.

    Source: github.com/kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md.
    """
    groups = tuple(node_groups)
    names = [group.nodegroup_name for group in groups]
    role.add_to_policy(
        iam.PolicyStatement(
            actions=["eks:DescribeNodegroup"], resources=[group.nodegroup_arn for group in groups]
        )
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
            # EKS generates the Auto Scaling group's name, but sets these tags.
            conditions={
                "StringEquals": {
                    "aws:ResourceTag/eks:cluster-name": cluster.cluster_name,
                    "aws:ResourceTag/eks:nodegroup-name": names if len(names) > 1 else names[0],
                }
            },
        )
    )
    acknowledge_wildcard(
        role, "*", "tags restrict writes to the deployment's groups; the rest is read-only"
    )


def _cluster_roles(*, with_snapshots: bool) -> list[Manifest]:
    """Build the scaler's least-privilege roles in the cluster."""
    name = kubernetes.SCALER
    events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    everywhere = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch"]},
        # In all namespaces: a node with a pod of any namespace is not removed.
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    job_rules = [
        {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"], "verbs": ["list", "patch"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [kubernetes.NODE_REQUEST],
            "verbs": ["get", "patch"],
        },
        events,
    ]
    if with_snapshots:
        job_rules += [
            {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
            {
                "apiGroups": ["scheduling.volcano.sh"],
                "resources": ["podgroups"],
                "verbs": ["list"],
            },
        ]
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": name}]
    objects: list[Manifest] = [
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
    # Events about nodes, which have no namespace, are created in "default".
    for namespace, rules in ((kubernetes.NAMESPACE, job_rules), ("default", [events])):
        metadata = {"name": name, "namespace": namespace}
        objects += [
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
    return objects


def _deployment(*, image: str, command: Sequence[str], region: str) -> Manifest:
    name = kubernetes.SCALER
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": name, "labels": _LABELS},
        "spec": {
            "replicas": 1,
            # Never two scalers at a time.
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
