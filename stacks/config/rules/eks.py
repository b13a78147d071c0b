"""Rules of an EKS cluster, and of keys that have no effect without one."""

from __future__ import annotations

from stacks.config.keys import keys_of
from stacks.config.names import is_private
from stacks.config.refusal import PREFIX, Refusals, setting
from stacks.config.values import ConfigValues
from trainium_catalogue.eks import NEURON_DRIVERS_OF_IMAGES
from trainium_catalogue.releases import NEURON_RELEASES

_WITH_EKS = setting("orchestrators", "eks")


def refusals(config: ConfigValues) -> Refusals:
    """Yield what these keys cannot mean together."""
    yield from _without_effect(config)
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
            "leaves the cluster no way to its Helm charts and their images, which are on the "
            "internet",
            f"use {PREFIX}nat_gateways=1",
        )
    release, family = config.release, config.instance.family
    if config.runs_on_eks and not (config.eks_node_image or release.eks_ami_date):
        able = [r.name for r in NEURON_RELEASES.values() if r.eks_ami_date and family in r.families]
        yield (
            "neuron_release",
            f"needs driver {release.driver_range}, and no EKS host image is known to have it",
            f"use {' or '.join(able)}, or name an image that has it with {PREFIX}eks_node_image",
        )
    if config.node_shell and is_closed:
        yield (
            "node_shell",
            "needs a way from the nodes to AWS Systems Manager",
            f"use {PREFIX}nat_gateways=1, or leave node_shell out",
        )


def _without_effect(config: ConfigValues) -> Refusals:
    """Find keys of an orchestrator that runs no jobs on nodes."""
    given = _first_given(config, "kubernetes_version", "eks_")
    if given is not None and not config.runs_on_eks:
        yield (
            given,
            f"is about an EKS cluster, and {setting('orchestrators', 'batch')} makes none",
            f"add {_WITH_EKS} or both, or leave {given} out",
        )
    given = _first_given(config, "min_nodes", "scale_down_delay_minutes", "ami_id")
    if given is not None and not config.runs_on_batch:
        instead = f"use {PREFIX}eks_nodes" if given == "min_nodes" else f"leave {given} out"
        yield (
            given,
            f"is about nodes that Batch starts, and with {_WITH_EKS} it starts none",
            f"{instead}, or use {setting('orchestrators', 'both')}",
        )


def _first_given(config: ConfigValues, *starts: str) -> str | None:
    """First key that begins with one of ``starts`` and differs from its default."""
    for name, declared in keys_of(type(config)).items():
        if name.startswith(starts) and getattr(config, name) != declared.default:
            return name
    return None


def _access(config: ConfigValues) -> Refusals:
    """Check who may use the cluster, and from where."""
    cidrs = config.eks_endpoint_cidrs
    misplaced = [cidr for cidr in cidrs if is_private(cidr) is not config.eks_private]
    if misplaced and config.eks_private:
        yield (
            "eks_endpoint_cidrs",
            f"names {misplaced[0]} on the internet, and {PREFIX}eks_private=true closes the API "
            "to it",
            "leave eks_private out, or give private ranges of the VPC or of what is connected",
        )
    elif misplaced:
        yield (
            "eks_endpoint_cidrs",
            f"names the private range {misplaced[0]}, which no call to a public endpoint comes "
            "from",
            f"give the addresses that your network shows outside, or add {PREFIX}eks_private=true",
        )
    if config.runs_on_eks and not config.eks_admin_arns:
        yield (
            "orchestrators",
            f"makes an EKS cluster, and without {PREFIX}eks_admin_arns no one could use it",
            f"add {PREFIX}eks_admin_arns=<ARN of your IAM role>, for one; "
            "aws sts get-caller-identity shows who you are",
        )
    for arn in config.eks_submitter_arns:
        if arn in config.eks_admin_arns:
            yield (
                "eks_submitter_arns",
                f"names {arn}, which {PREFIX}eks_admin_arns names too, and EKS has one access "
                "entry for a principal",
                "leave it out here: an administrator may submit",
            )
    if config.runs_on_eks and not (config.eks_private or cidrs):
        yield (
            "orchestrators",
            f"makes an EKS cluster, and without {PREFIX}eks_endpoint_cidrs no one could call its "
            "API",
            f"add {PREFIX}eks_endpoint_cidrs=<your public address>/32, or {PREFIX}eks_private=true "
            "for an API that answers inside the VPC only",
        )


def _subnets(config: ConfigValues) -> Refusals:
    if config.eks_subnet_ids and config.vpc_id is None:
        yield (
            "eks_subnet_ids",
            "belongs to an existing VPC, and a new one is to be made",
            f"add {PREFIX}vpc_id, or leave the subnets out: one is created",
        )
    if config.runs_on_eks and config.vpc_id is not None and not config.eks_subnet_ids:
        yield (
            "vpc_id",
            "has one subnet here, and EKS wants subnets in two zones",
            f"add {PREFIX}eks_subnet_ids=<a subnet in another zone>, or leave vpc_id out",
        )
    if config.subnet_id in config.eks_subnet_ids:
        yield (
            "eks_subnet_ids",
            "names the nodes' own subnet again, and EKS wants one in another zone",
            f"give other subnets than {PREFIX}subnet_id={config.subnet_id}",
        )


def _versions(config: ConfigValues) -> Refusals:
    for key in ("eks_chart_versions", "eks_add_on_versions"):
        names = [each.partition("=")[0] for each in getattr(config, key)]
        for name in names:
            if names.count(name) > 1:
                yield key, f"gives {name} two versions", "leave one of the two out"
    for key in ("eks_node_image", "eks_system_image"):
        image = getattr(config, key)
        if image is not None and not image.startswith(f"{config.kubernetes_version}."):
            yield (
                key,
                f"is of another Kubernetes version than {PREFIX}kubernetes_version="
                f"{config.kubernetes_version}, which the nodes have too",
                f"give a release of {config.kubernetes_version}, or leave it out",
            )
    if config.eks_node_image is not None:
        yield from _driver(config, built=config.eks_node_image.rpartition("-")[2])


def _driver(config: ConfigValues, *, built: str) -> Refusals:
    """Check the Neuron driver of a host image that was built on a day."""
    release = config.release
    drivers = [driver for since, driver in NEURON_DRIVERS_OF_IMAGES.items() if since <= built]
    if not drivers or release.accepts_driver(drivers[-1]):
        return
    # Beyond the last known one only a driver that is already too new is certain to be wrong.
    is_last = len(drivers) == len(NEURON_DRIVERS_OF_IMAGES)
    if is_last and release.driver_below is None:
        return
    yield (
        "eks_node_image",
        f"has Neuron driver {drivers[-1]}{' or newer' if is_last else ''}, and Neuron release "
        f"{release.name} needs {release.driver_range}",
        "leave it out, or give an image that has such a driver (CHANGELOG.md of "
        "github.com/awslabs/amazon-eks-ami: aws-neuronx-dkms)",
    )
