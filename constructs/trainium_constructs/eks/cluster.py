"""The EKS cluster: control plane, access to it, and AWS's own add-ons."""

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
from trainium_constructs.log_group import RetainedLogs
from trainium_constructs.nag import (
    acknowledge,
    acknowledge_managed_policy,
    acknowledge_wildcard,
    spelling_of,
)
from trainium_constructs.network import EfaNetwork


class ApiCallers(Construct):
    """Two security groups: the control plane's, and that of the functions that call it."""

    def __init__(
        self, scope: Construct, construct_id: str, *, vpc: ec2.IVpc, ranges: Sequence[str]
    ) -> None:
        """Create the groups; addresses in ``ranges`` may also call the API."""
        super().__init__(scope, construct_id)
        # Not the group that EKS creates, as the CDK would choose: the functions' interfaces are
        # deleted late, so that EKS would delete its cluster but leave a group in use behind, and
        # with it the VPC (aws/aws-k8s-tester pull request 416).
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
    """A cluster without nodes: its API answers, but DNS and pod networks wait for nodes."""

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
            cluster_name: Prefix of a physical name, by which EKS finds the control plane's log
                group: created here, the group has a retention and goes with the stack.
            kubernetes_version: Minor version, such as ``1.35``.
            network: Subnets of the control plane, in at least two zones. All are given from the
                start, because a cluster accepts none in another zone later
                (github.com/aws/containers-roadmap/issues/2330).
            endpoint_cidrs: Addresses that may call the API from outside the VPC; empty: none.
            inside_cidrs: Addresses that may call it through the VPC, besides the nodes'.
            admin_arns: Roles and users with full access to the cluster.
            submitter_arns: Roles and users with the rights that ``submitters`` defines.
            log_retention_days: Retention of the control plane's logs.
            add_on_versions: Versions of EKS's add-ons that override the pinned ones, by name.
        """
        super().__init__(scope, construct_id)
        self.kubernetes_version = kubernetes_version
        self._add_on_versions = add_on_versions or {}
        cluster_name = _unique(cluster_name, cdk.Stack.of(self))
        logs = RetainedLogs(
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
            # Since 1.28 EKS encrypts all API data with a key that it owns. This one stays for the
            # clusters that have it: EKS cannot disable it, and CloudFormation would replace them
            # (template reference, AWS::EKS::Cluster EncryptionConfig).
            secrets_encryption_key=kms.Key(
                self,
                "Secrets",
                description=f"secrets of the EKS cluster of {self.node.path}",
                enable_key_rotation=True,
                removal_policy=cdk.RemovalPolicy.DESTROY,
                # The shortest that KMS allows; a key that is pending deletion costs nothing.
                pending_window=cdk.Duration.days(7),
            ),
            cluster_logging=list(eks.ClusterLoggingTypes),
            # We manage the nodes; the default is Auto Mode, which does not support EFA.
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            # The template lists who has access; whoever happens to deploy gets none by that.
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
        # By default a version whose standard support has ended is billed at six times the price.
        resource.add_property_override("UpgradePolicy.SupportType", "STANDARD")
        # First in, last out: otherwise the control plane creates another, which nobody deletes.
        cluster.node.add_dependency(logs)
        for index, arn in enumerate(admin_arns):
            cluster.grant_cluster_admin(f"Admin{index}", arn)
        for index, arn in enumerate(submitter_arns):
            # L1: the L2 requires one of EKS's access policies, and none is as narrow.
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
        # The functions need the rules that admit them until the last object is deleted.
        functions.node.add_dependency(callers)
        _end_logs_of(functions, log_retention_days)
        # jsii's Python class lacks an optional member of the interface.
        self.cluster = cast("eks.ICluster", cluster)
        self._add_networks()

    def _add_networks(self) -> None:
        agent = self.add_on("PodIdentity", "eks-pod-identity-agent")
        pods = PodRole(
            self, "Networks", cluster=self.cluster, namespace="kube-system", account="aws-node"
        )
        pods.role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name(_CNI_POLICY))
        acknowledge_managed_policy(
            pods.role,
            _CNI_POLICY,
            "AWS keeps this policy in step with what its network plug-in needs",
        )
        networks = self.add_on(
            "PodNetworks",
            "vpc-cni",
            # By default it takes all addresses of one more interface, 50 on a trn1.32xlarge,
            # before any pod needs them (amazon-vpc-cni-k8s, eni-and-ip-target.md).
            values={
                "env": {
                    "MINIMUM_IP_TARGET": str(POD_ADDRESSES),
                    "WARM_IP_TARGET": str(SPARE_ADDRESSES),
                }
            },
        )
        proxy = self.add_on("Proxy", "kube-proxy")
        # Turns errors of chips, kernel, network and storage into conditions of the node, on which
        # EKS's node auto repair acts.
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
        """Install one of EKS's own add-ons, in the version pinned for this Kubernetes."""
        pinned = ADD_ONS[name][self.kubernetes_version]
        # L1: its deletion also removes what the add-on created, and the L2 has nothing we need.
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


def _unique(name: str, stack: cdk.Stack) -> str:
    """Add a suffix to ``name`` that no other stack has, not even the next one of the same name.

    A late record from a deleted control plane re-creates its log group, whatever its role allows
    (terraform-aws-modules/terraform-aws-eks issue 2446); under the same name, the next deployment
    would find a log group that is not its own, and fail.
    """
    # arn:aws:cloudformation:us-west-2:111122223333:stack/name/1a2b3c4d-...
    own = cdk.Fn.select(2, cdk.Fn.split("/", stack.stack_id))
    return cdk.Fn.join("-", [name, cdk.Fn.select(0, cdk.Fn.split("-", own))])


def _end_logs_of(functions: IConstruct, retention_days: int) -> None:
    """Limit the retention of the CDK functions' logs, which by default stay forever."""
    for construct in functions.node.find_all():
        if isinstance(construct, cdk_logs.CfnLogGroup):
            construct.retention_in_days = retention_days
            construct.apply_removal_policy(cdk.RemovalPolicy.DESTROY)


_KEPT_BY_AWS = "AWS keeps this policy in step with what its service needs"


def acknowledge_cluster(cluster: eks.Cluster) -> None:
    """Acknowledge the findings about the cluster and the functions that run kubectl and helm."""
    acknowledge_managed_policy(cluster.role, "AmazonEKSClusterPolicy", _KEPT_BY_AWS)
    _acknowledge_functions(cluster.node.find_child("KubectlProvider"))


def _acknowledge_functions(provider: IConstruct) -> None:
    """Acknowledge what the CDK gives its functions: own roles, a VPC, access to public charts."""
    handler = provider.node.find_child("Handler")
    framework = provider.node.find_child("Provider").node.find_child("framework-onEvent")
    for function in (handler, framework):
        for policy in ("AWSLambdaBasicExecutionRole", "AWSLambdaVPCAccessExecutionRole"):
            acknowledge_managed_policy(function, f"service-role/{policy}", _KEPT_BY_AWS)
    acknowledge_managed_policy(handler, "AmazonEC2ContainerRegistryReadOnly", _KEPT_BY_AWS)
    acknowledge(handler, f"AwsSolutions-IAM4[Policy::{_public_registry(handler)}]", _KEPT_BY_AWS)
    acknowledge(handler, "AwsSolutions-L1", "the CDK pins the runtime that its own code runs on")
    resource = handler.node.default_child
    assert isinstance(resource, cdk.CfnResource)
    arn = spelling_of(resource.get_att("Arn").to_string(), owner=handler, reader=handler)
    acknowledge_wildcard(framework, f"{arn}:*", "any version of the one function behind it")


def _public_registry(handler: IConstruct) -> str:
    """Spell, as cdk-nag does, the policy that exists only in the partition ``aws``."""
    condition = handler.node.find_child("HasEcrPublic")
    assert isinstance(condition, cdk.CfnCondition)
    stack = cdk.Stack.of(handler)
    policy = ":iam::aws:policy/AmazonElasticContainerRegistryPublicReadOnly"
    joined = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, policy]]}
    name = stack.resolve(condition.logical_id)
    choice = {"Fn::If": [name, joined, {"Ref": "AWS::NoValue"}]}
    return json.dumps(choice, separators=(",", ":"))
