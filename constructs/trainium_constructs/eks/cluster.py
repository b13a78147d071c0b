"""The EKS cluster: control plane, access to it, and EKS add-ons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as cdk_logs
from aws_cdk.lambda_layer_kubectl_v35 import KubectlV35Layer
from constructs import Construct, IConstruct, IDependable

from trainium_catalogue import kubernetes
from trainium_catalogue.eks import ADD_ONS, POD_ADDRESSES, SPARE_ADDRESSES
from trainium_constructs.eks.identity import PodRole
from trainium_constructs.log_group import ExpiringLogGroup
from trainium_constructs.nag import (
    acknowledge,
    acknowledge_managed_policy,
    acknowledge_wildcard,
    spelling_of,
)
from trainium_constructs.network import EfaNetwork


class ApiCallers(Construct):
    """Security groups of the control plane and of the functions that call it."""

    def __init__(
        self, scope: Construct, construct_id: str, *, vpc: ec2.IVpc, ranges: Sequence[str]
    ) -> None:
        """Create the groups; CIDR blocks in ``ranges`` may also access the API server."""
        super().__init__(scope, construct_id)
        # Not the group that EKS creates, which the CDK uses by default: the functions' interfaces
        # are deleted late, so EKS would delete the cluster but leave the group, and therefore the
        # VPC, behind (aws/aws-k8s-tester pull request 416).
        self.functions = ec2.SecurityGroup(
            self,
            "Functions",
            vpc=vpc,
            description="kubectl and helm of the stack: HTTPS out",
            allow_all_outbound=False,
        )
        self.functions.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.HTTPS, "HTTPS")
        self.control_plane = ec2.SecurityGroup(
            self, "ControlPlane", vpc=vpc, description="the control plane: HTTPS from its callers"
        )
        self.control_plane.add_ingress_rule(self.functions, ec2.Port.HTTPS, "kubectl and helm")
        for cidr in ranges:
            self.control_plane.add_ingress_rule(ec2.Peer.ipv4(cidr), ec2.Port.HTTPS, "users")


_CNI_POLICY = "AmazonEKS_CNI_Policy"


class TrainingCluster(Construct):
    """A cluster without nodes: its API works, but DNS and pod networking need nodes."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster_name: str,
        kubernetes_version: str,
        network: EfaNetwork,
        endpoint_cidrs: Sequence[str],
        inside_cidrs: Sequence[str] = (),
        admin_arns: Sequence[str],
        submitter_arns: Sequence[str] = (),
        log_retention_days: int,
        add_on_versions: Mapping[str, str] | None = None,
    ) -> None:
        """Create the cluster.

        Args:
            cluster_name: Prefix of the cluster's physical name, from which EKS derives the name of
                the control plane's log group. The group is created here, so that it has a retention
                period and is deleted with the stack.
            kubernetes_version: Minor version, such as ``1.35``.
            network: Subnets of the control plane, in at least two zones. All are set from the
                start, because a cluster accepts no subnet in another zone later
                (github.com/aws/containers-roadmap/issues/2330).
            endpoint_cidrs: CIDR blocks that may access the API server from outside the VPC.
            inside_cidrs: CIDR blocks that may access it within the VPC, in addition to the nodes.
            admin_arns: Roles and users with full access to the cluster.
            submitter_arns: Roles and users with the permissions of ``manifests.submitters``.
            log_retention_days: Retention of the control plane's logs.
            add_on_versions: Versions of EKS add-ons that override the pinned ones, by name.
        """
        super().__init__(scope, construct_id)
        self.kubernetes_version = kubernetes_version
        self._add_on_versions = add_on_versions or {}
        cluster_name = _unique_name(cluster_name, cdk.Stack.of(self))
        logs = ExpiringLogGroup(
            self, "Logs", retention_days=log_retention_days, name=f"/aws/eks/{cluster_name}/cluster"
        )
        callers = ApiCallers(self, "Callers", vpc=network.vpc, ranges=inside_cidrs)
        access = eks.EndpointAccess
        cluster = eks.Cluster(
            self,
            "Cluster",
            cluster_name=cluster_name,
            version=eks.KubernetesVersion.of(kubernetes_version),
            vpc=network.vpc,
            security_group=callers.control_plane,
            vpc_subnets=[ec2.SubnetSelection(subnets=list(network.cluster_subnets))],
            endpoint_access=(
                access.PUBLIC_AND_PRIVATE.only_from(*endpoint_cidrs)
                if endpoint_cidrs
                else access.PRIVATE
            ),
            # Kept for existing clusters: EKS cannot disable encryption with this key, so without it
            # CloudFormation would replace them (template reference, AWS::EKS::Cluster
            # EncryptionConfig). Since 1.28 EKS encrypts all API data with a key that it owns.
            secrets_encryption_key=kms.Key(
                self,
                "Secrets",
                description=f"secrets of the EKS cluster of {self.node.path}",
                enable_key_rotation=True,
                removal_policy=cdk.RemovalPolicy.DESTROY,
                # KMS's minimum; a key pending deletion costs nothing.
                pending_window=cdk.Duration.days(7),
            ),
            cluster_logging=list(eks.ClusterLoggingTypes),
            # The default is Auto Mode, in which neither placement groups nor single EFA interfaces
            # can be configured (EKS User Guide, device-management-efa).
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            # Only the template grants access; deploying the cluster does not.
            bootstrap_cluster_creator_admin_permissions=False,
            bootstrap_self_managed_addons=False,
            kubectl_provider_options=eks.KubectlProviderOptions(
                kubectl_layer=KubectlV35Layer(self, "Kubectl"),
                security_groups=[callers.functions],
            ),
            output_config_command=False,
        )
        resource = cluster.node.default_child
        assert isinstance(resource, cdk.CfnResource)
        # By default a version past standard support is billed at six times the price.
        resource.add_property_override("UpgradePolicy.SupportType", "STANDARD")
        # Created first and deleted last: CloudFormation would never delete a log group that the
        # control plane creates.
        cluster.node.add_dependency(logs)
        for index, arn in enumerate(admin_arns):
            cluster.grant_cluster_admin(f"Admin{index}", arn)
        for index, arn in enumerate(submitter_arns):
            # L1: the L2 requires one of EKS's access policies, none of which is narrow enough.
            eks.CfnAccessEntry(
                self,
                f"Submitter{index}",
                cluster_name=cluster.cluster_name,
                principal_arn=arn,
                kubernetes_groups=[kubernetes.SUBMITTERS],
                type="STANDARD",
            )
        acknowledge_cluster(cluster)
        functions = cluster.node.find_child("KubectlProvider")
        # The functions need their ingress rules until the last object is deleted.
        functions.node.add_dependency(callers)
        _limit_retention(functions, log_retention_days)
        # jsii's Python class lacks an optional member of the interface.
        self.cluster = cast("eks.ICluster", cluster)
        self._add_core_add_ons()

    def _add_core_add_ons(self) -> None:
        agent = self.add_on("PodIdentity", "eks-pod-identity-agent")
        pods = PodRole(
            self, "Networks", cluster=self.cluster, namespace="kube-system", account="aws-node"
        )
        pods.role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name(_CNI_POLICY))
        acknowledge_managed_policy(
            pods.role,
            _CNI_POLICY,
            "AWS maintains this policy for its network plugin",
        )
        networks = self.add_on(
            "PodNetworks",
            "vpc-cni",
            # By default it allocates a spare interface's addresses, 50 on a trn1.32xlarge, before
            # any pod needs them (amazon-vpc-cni-k8s, eni-and-ip-target.md).
            values={
                "env": {
                    "MINIMUM_IP_TARGET": str(POD_ADDRESSES),
                    "WARM_IP_TARGET": str(SPARE_ADDRESSES),
                }
            },
        )
        proxy = self.add_on("Proxy", "kube-proxy")
        # Reports errors of chips, kernel, network and storage as node conditions, on which EKS's
        # node auto repair acts.
        self.add_on("Monitoring", "eks-node-monitoring-agent")
        self.before_nodes: tuple[IDependable, ...] = (agent, pods, networks, proxy)
        """Resources that must exist before a node can become ready."""

    def add_on(
        self,
        construct_id: str,
        name: str,
        *,
        values: Mapping[str, Any] | None = None,
        after: Sequence[IDependable] = (),
    ) -> eks.CfnAddon:
        """Install an EKS add-on, by default in the version pinned for the Kubernetes version."""
        pinned = ADD_ONS[name][self.kubernetes_version]
        # L1: its deletion also removes the add-on's objects, and the L2 adds nothing.
        add_on = eks.CfnAddon(
            self,
            construct_id,
            addon_name=name,
            addon_version=self._add_on_versions.get(name, pinned),
            cluster_name=self.cluster.cluster_name,
            configuration_values=json.dumps(values) if values else None,
            resolve_conflicts="OVERWRITE",
        )
        add_on.node.add_dependency(*after)
        return add_on


def _unique_name(name: str, stack: cdk.Stack) -> str:
    """Add a suffix to ``name`` that is unique even among successive stacks of the same name.

    A late record from a deleted control plane recreates its log group, whatever its role allows
    (terraform-aws-modules/terraform-aws-eks issue 2446). The next deployment of the same name would
    then fail because the log group exists.
    """
    # arn:aws:cloudformation:us-west-2:111122223333:stack/name/1a2b3c4d-...
    own = cdk.Fn.select(2, cdk.Fn.split("/", stack.stack_id))
    return cdk.Fn.join("-", [name, cdk.Fn.select(0, cdk.Fn.split("-", own))])


def _limit_retention(functions: IConstruct, retention_days: int) -> None:
    """Limit the retention of the CDK functions' logs, and delete the log groups with the stack."""
    for construct in functions.node.find_all():
        if isinstance(construct, cdk_logs.CfnLogGroup):
            construct.retention_in_days = retention_days
            construct.apply_removal_policy(cdk.RemovalPolicy.DESTROY)


_MAINTAINED_BY_AWS = "AWS maintains this policy for its service"


def acknowledge_cluster(cluster: eks.Cluster) -> None:
    """Acknowledge the findings about the cluster and the functions that run kubectl and helm."""
    acknowledge_managed_policy(cluster.role, "AmazonEKSClusterPolicy", _MAINTAINED_BY_AWS)
    _acknowledge_functions(cluster.node.find_child("KubectlProvider"))


def _acknowledge_functions(provider: IConstruct) -> None:
    """Acknowledge the permissions that the CDK grants its functions."""
    handler = provider.node.find_child("Handler")
    framework = provider.node.find_child("Provider").node.find_child("framework-onEvent")
    for function in (handler, framework):
        for policy in ("AWSLambdaBasicExecutionRole", "AWSLambdaVPCAccessExecutionRole"):
            acknowledge_managed_policy(function, f"service-role/{policy}", _MAINTAINED_BY_AWS)
    acknowledge_managed_policy(handler, "AmazonEC2ContainerRegistryReadOnly", _MAINTAINED_BY_AWS)
    acknowledge(
        handler, f"AwsSolutions-IAM4[Policy::{_public_registry_arn(handler)}]", _MAINTAINED_BY_AWS
    )
    acknowledge(handler, "AwsSolutions-L1", "the CDK pins the runtime of its own code")
    resource = handler.node.default_child
    assert isinstance(resource, cdk.CfnResource)
    arn = spelling_of(resource.get_att("Arn").to_string(), owner=handler, reader=handler)
    acknowledge_wildcard(framework, f"{arn}:*", "any version of the one function behind it")


def _public_registry_arn(handler: IConstruct) -> str:
    """Format the ARN of the policy that exists only in partition ``aws``, as cdk-nag does."""
    condition = handler.node.find_child("HasEcrPublic")
    assert isinstance(condition, cdk.CfnCondition)
    stack = cdk.Stack.of(handler)
    policy = ":iam::aws:policy/AmazonElasticContainerRegistryPublicReadOnly"
    joined = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, policy]]}
    name = stack.resolve(condition.logical_id)
    choice = {"Fn::If": [name, joined, {"Ref": "AWS::NoValue"}]}
    return json.dumps(choice, separators=(",", ":"))
