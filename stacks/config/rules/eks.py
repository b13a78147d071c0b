"""Rules about an EKS cluster and about keys that have no effect without one."""

from __future__ import annotations

from stacks.config.keys import keys_of
from stacks.config.names import is_private
from stacks.config.refusal import PREFIX, Refusals, setting
from stacks.config.values import ConfigValues
from trainium_catalogue.eks import NEURON_DRIVERS_OF_IMAGES, newest_image
from trainium_catalogue.releases import NEURON_RELEASES
from trainium_catalogue.wording import either

_WITH_EKS = setting("orchestrators", "eks")


def refusals(config: ConfigValues) -> Refusals:
    """Yield a refusal for each of these rules that the configuration breaks."""
    yield from _unused_keys(config)
    yield from _access(config)
    if config.eks_nodes > config.max_nodes:
        yield (
            "eks_nodes",
            f"is more than {PREFIX}max_nodes={config.max_nodes}",
            f"use at most {config.max_nodes}, or raise max_nodes",
        )
    yield from _subnets(config)
    yield from _versions(config)
    is_closed = config.vpc_id is None and not config.nat_gateways
    if config.runs_on_eks and is_closed:
        yield (
            "nat_gateways",
            "leaves the cluster without a route to its Helm charts and their images, which are on "
            "the internet",
            f"use {PREFIX}nat_gateways=1",
        )
    release, family = config.release, config.instance.family
    if config.runs_on_eks and not (config.eks_node_image or release.eks_ami_date):
        suitable = [
            r.name for r in NEURON_RELEASES.values() if r.eks_ami_date and family in r.families
        ]
        since = f" dated {release.eks_ami_since} or later" if release.eks_ami_since else ""
        yield (
            "neuron_release",
            f"needs Neuron driver {release.driver_range}, which no known EKS AMI has",
            f"use {either(suitable)}, or set {PREFIX}eks_node_image to the release version of "
            f"an AMI{since} (newest: aws ssm get-parameter --name "
            f"{newest_image(config.kubernetes_version)})",
        )
    if config.node_shell and is_closed:
        yield (
            "node_shell",
            "needs a route from the nodes to AWS Systems Manager",
            f"use {PREFIX}nat_gateways=1, or omit node_shell",
        )


def _unused_keys(config: ConfigValues) -> Refusals:
    """Refuse keys that have no effect with the configured orchestrators."""
    key = _first_changed(config, "kubernetes_version", "eks_")
    if key is not None and not config.runs_on_eks:
        yield (
            key,
            f"is for an EKS cluster, but {setting('orchestrators', 'batch')} creates none",
            f"set {PREFIX}orchestrators to eks or both, or omit {key}",
        )
    key = _first_changed(config, "min_nodes", "scale_down_delay_minutes", "ami_id")
    if key is not None and not config.runs_on_batch:
        instead = f"use {PREFIX}eks_nodes instead" if key == "min_nodes" else f"omit {key}"
        yield (
            key,
            f"is for nodes that Batch starts, but Batch starts none with {_WITH_EKS}",
            f"{instead}, or set {setting('orchestrators', 'both')}",
        )


def _first_changed(config: ConfigValues, *prefixes: str) -> str | None:
    """Return the first key with one of these prefixes that differs from its default."""
    for name, declared in keys_of(type(config)).items():
        if name.startswith(prefixes) and getattr(config, name) != declared.default:
            return name
    return None


def _access(config: ConfigValues) -> Refusals:
    """Check who may use the cluster, and from where."""
    cidrs = config.eks_endpoint_cidrs
    misplaced = [cidr for cidr in cidrs if is_private(cidr) is not config.eks_private]
    if misplaced and config.eks_private:
        yield (
            "eks_endpoint_cidrs",
            f"names the public range {misplaced[0]}, but with {PREFIX}eks_private=true the API is "
            "not reachable from the internet",
            "omit eks_private, or specify private ranges of the VPC or connected networks",
        )
    elif misplaced:
        yield (
            "eks_endpoint_cidrs",
            f"names the private range {misplaced[0]}, which cannot be the source of a call to a "
            "public endpoint",
            f"specify the public addresses of your network, or add {PREFIX}eks_private=true",
        )
    if config.runs_on_eks and not config.eks_admin_arns:
        yield (
            "orchestrators",
            f"creates an EKS cluster that no one could use without {PREFIX}eks_admin_arns",
            f"add {PREFIX}eks_admin_arns=<ARN of an IAM role or user>; "
            "aws sts get-caller-identity shows which one you use",
        )
    for arn in config.eks_submitter_arns:
        if arn in config.eks_admin_arns:
            yield (
                "eks_submitter_arns",
                f"names {arn}, which {PREFIX}eks_admin_arns also names, but EKS allows only one "
                "access entry per principal",
                "omit it here: administrators can submit jobs too",
            )
    if config.runs_on_eks and not (config.eks_private or cidrs):
        yield (
            "orchestrators",
            "creates an EKS cluster whose API no one could call without "
            f"{PREFIX}eks_endpoint_cidrs",
            f"add {PREFIX}eks_endpoint_cidrs=<your public address>/32, or {PREFIX}eks_private=true "
            "for an API that is reachable only from the VPC and connected networks",
        )


def _subnets(config: ConfigValues) -> Refusals:
    if config.eks_subnet_ids and config.vpc_id is None:
        yield (
            "eks_subnet_ids",
            "names subnets of an existing VPC, but a new VPC would be created",
            f"add {PREFIX}vpc_id, or omit eks_subnet_ids: a new VPC has its own subnets",
        )
    if config.runs_on_eks and config.vpc_id is not None and not config.eks_subnet_ids:
        yield (
            "vpc_id",
            f"has only {PREFIX}subnet_id={config.subnet_id} here, but EKS requires subnets in two "
            "zones",
            f"add {PREFIX}eks_subnet_ids=<a subnet in another zone>, or omit vpc_id, subnet_id and "
            "subnet_cidr to create a new VPC",
        )
    if config.subnet_id in config.eks_subnet_ids:
        yield (
            "eks_subnet_ids",
            "repeats the nodes' subnet, but EKS requires one in another zone",
            f"specify subnets other than {PREFIX}subnet_id={config.subnet_id}",
        )


def _versions(config: ConfigValues) -> Refusals:
    for key in ("eks_chart_versions", "eks_add_on_versions"):
        names = [each.partition("=")[0] for each in getattr(config, key)]
        for name in names:
            if names.count(name) > 1:
                yield key, f"sets two versions of {name}", "remove one of the two"
    for key in ("eks_node_image", "eks_system_image"):
        image = getattr(config, key)
        if image is not None and not image.startswith(f"{config.kubernetes_version}."):
            yield (
                key,
                f"is for a different Kubernetes version than that of the cluster and its nodes "
                f"({setting('kubernetes_version', config.kubernetes_version)})",
                f"specify a release version of {config.kubernetes_version}, or omit the key",
            )
    if config.eks_node_image is not None:
        yield from _driver(config, built=config.eks_node_image.rpartition("-")[2])


def _driver(config: ConfigValues, *, built: str) -> Refusals:
    """Check the Neuron driver of an AMI by its build date."""
    release = config.release
    if release.eks_ami_since is not None and built < release.eks_ami_since:
        yield (
            "eks_node_image",
            f"predates the Neuron driver that release {release.name} needs "
            f"({release.driver_range})",
            f"specify an AMI dated {release.eks_ami_since} or later (newest: aws ssm get-parameter "
            f"--name {newest_image(config.kubernetes_version)})",
        )
        return
    drivers = [driver for since, driver in NEURON_DRIVERS_OF_IMAGES.items() if since <= built]
    if not drivers or release.accepts_driver(drivers[-1]):
        return
    # An AMI with the last listed driver may have a newer one, which a release without an upper
    # limit accepts.
    is_last = len(drivers) == len(NEURON_DRIVERS_OF_IMAGES)
    if is_last and release.driver_below is None:
        return
    yield (
        "eks_node_image",
        f"has Neuron driver {drivers[-1]}{' or newer' if is_last else ''}, but Neuron release "
        f"{release.name} needs {release.driver_range}",
        "omit the key, or specify an AMI that has such a driver (aws-neuronx-dkms in CHANGELOG.md "
        "of github.com/awslabs/amazon-eks-ami)",
    )
