"""Checks for an EKS cluster, and of keys that have no effect without one."""

from __future__ import annotations

from stacks.config.keys import keys_of
from stacks.config.names import is_private
from stacks.config.refusal import PREFIX, ConfigError, refuse, setting
from stacks.config.values import ConfigValues
from trainium_catalogue.eks import NEURON_DRIVERS_OF_IMAGES
from trainium_catalogue.releases import NEURON_RELEASES

_WITH_EKS = setting("orchestrators", "eks")


def _first_given(config: ConfigValues, *starts: str) -> str | None:
    """First key that begins with one of ``starts`` and differs from its default."""
    for name, declared in keys_of(type(config)).items():
        if name.startswith(starts) and getattr(config, name) != declared.default:
            return name
    return None


def _eks_keys_have_a_cluster(config: ConfigValues) -> ConfigError | None:
    given = _first_given(config, "kubernetes_version", "eks_")
    if config.runs_on_eks or given is None:
        return None
    return refuse(
        config,
        given,
        f"is about an EKS cluster, and {setting('orchestrators', 'batch')} makes none",
        f"add {_WITH_EKS} or both, or leave {given} out",
    )


def _batch_keys_have_nodes(config: ConfigValues) -> ConfigError | None:
    given = _first_given(config, "min_nodes", "scale_down_delay_minutes", "ami_id")
    if config.runs_on_batch or given is None:
        return None
    instead = f"use {PREFIX}eks_nodes" if given == "min_nodes" else f"leave {given} out"
    return refuse(
        config, given, f"is about nodes that Batch starts, and with {_WITH_EKS} it starts none",
        f"{instead}, or use {setting('orchestrators', 'both')}",
    )  # fmt: skip


def _somebody_is_admin(config: ConfigValues) -> ConfigError | None:
    if not config.runs_on_eks or config.eks_admin_arns:
        return None
    return refuse(
        config,
        "orchestrators",
        f"makes an EKS cluster, and without {PREFIX}eks_admin_arns nobody could use it",
        f"add {PREFIX}eks_admin_arns=<ARN of your IAM role>, for one; "
        "aws sts get-caller-identity shows who you are",
    )


def _nobody_has_two_access_entries(config: ConfigValues) -> ConfigError | None:
    both = [arn for arn in config.eks_submitter_arns if arn in config.eks_admin_arns]
    if not both:
        return None
    return refuse(
        config, "eks_submitter_arns",
        f"names {both[0]}, which {PREFIX}eks_admin_arns names too, and EKS has one access entry "
        "for a principal",
        "leave it out here: an administrator may submit",
    )  # fmt: skip


def _somebody_reaches_the_endpoint(config: ConfigValues) -> ConfigError | None:
    if not config.runs_on_eks or config.eks_private or config.eks_endpoint_cidrs:
        return None
    return refuse(
        config,
        "orchestrators",
        f"makes an EKS cluster, and without {PREFIX}eks_endpoint_cidrs nobody could call its API",
        f"add {PREFIX}eks_endpoint_cidrs=<your public address>/32, or {PREFIX}eks_private=true "
        "for an API that answers inside the VPC only",
    )


def _endpoint_ranges_can_call(config: ConfigValues) -> ConfigError | None:
    cidrs = config.eks_endpoint_cidrs
    misplaced = [cidr for cidr in cidrs if is_private(cidr) is not config.eks_private]
    if not misplaced:
        return None
    if config.eks_private:
        return refuse(
            config, "eks_endpoint_cidrs",
            f"names {misplaced[0]} on the internet, and {PREFIX}eks_private=true closes the API "
            "to it",
            "leave eks_private out, or give private ranges of the VPC or of what is connected",
        )  # fmt: skip
    return refuse(
        config, "eks_endpoint_cidrs",
        f"names the private range {misplaced[0]}, which no call to a public endpoint comes from",
        "give the addresses that your network shows outside, or add "
        f"{PREFIX}eks_private=true",
    )  # fmt: skip


def _nodes_within_max(config: ConfigValues) -> ConfigError | None:
    if config.eks_nodes <= config.max_nodes:
        return None
    return refuse(
        config,
        "eks_nodes",
        f"is more than {PREFIX}max_nodes={config.max_nodes}",
        f"use at most {config.max_nodes}, or raise max_nodes",
    )


def _control_plane_has_two_zones(config: ConfigValues) -> ConfigError | None:
    if not config.runs_on_eks or config.vpc_id is None or config.eks_subnet_ids:
        return None
    return refuse(
        config,
        "vpc_id",
        "has one subnet here, and EKS wants subnets in two zones",
        f"add {PREFIX}eks_subnet_ids=<a subnet in another zone>, or leave vpc_id out",
    )


def _existing_subnets_have_a_vpc(config: ConfigValues) -> ConfigError | None:
    if not config.eks_subnet_ids or config.vpc_id is not None:
        return None
    return refuse(
        config,
        "eks_subnet_ids",
        "belongs to an existing VPC, and a new one is to be made",
        f"add {PREFIX}vpc_id, or leave the subnets out: one is created",
    )


def _subnets_are_different_ones(config: ConfigValues) -> ConfigError | None:
    if config.subnet_id is None or config.subnet_id not in config.eks_subnet_ids:
        return None
    return refuse(
        config, "eks_subnet_ids",
        "names the nodes' own subnet again, and EKS wants one in another zone",
        f"give other subnets than {PREFIX}subnet_id={config.subnet_id}",
    )  # fmt: skip


def _everything_has_one_version(config: ConfigValues) -> ConfigError | None:
    for key in ("eks_chart_versions", "eks_add_on_versions"):
        names = [each.partition("=")[0] for each in getattr(config, key)]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            return refuse(config, key, f"gives {twice[0]} two versions", "leave one of the two out")
    return None


def _images_are_of_the_clusters_version(config: ConfigValues) -> ConfigError | None:
    for key in ("eks_node_image", "eks_system_image"):
        image = getattr(config, key)
        if image is not None and not image.startswith(f"{config.kubernetes_version}."):
            return refuse(
                config, key,
                f"is of another Kubernetes version than {PREFIX}kubernetes_version="
                f"{config.kubernetes_version}, which the nodes have too",
                f"give a release of {config.kubernetes_version}, or leave it out",
            )  # fmt: skip
    return None


def _node_image_has_the_driver(config: ConfigValues) -> ConfigError | None:
    if config.eks_node_image is None:
        return None
    release = config.release
    built = config.eks_node_image.rpartition("-")[2]
    drivers = [driver for since, driver in NEURON_DRIVERS_OF_IMAGES.items() if since <= built]
    if not drivers or release.accepts_driver(drivers[-1]):
        return None
    # Beyond the last known one only a driver that is already too new is certain to be wrong.
    is_last = len(drivers) == len(NEURON_DRIVERS_OF_IMAGES)
    if is_last and release.driver_below is None:
        return None
    return refuse(
        config, "eks_node_image",
        f"has Neuron driver {drivers[-1]}{' or newer' if is_last else ''}, and Neuron release "
        f"{release.name} needs {release.driver_range}",
        "leave it out, or give an image that has such a driver (CHANGELOG.md of "
        "github.com/awslabs/amazon-eks-ami: aws-neuronx-dkms)",
    )  # fmt: skip


def _cluster_reaches_registries(config: ConfigValues) -> ConfigError | None:
    if not config.runs_on_eks or config.vpc_id is not None or config.nat_gateways:
        return None
    return refuse(
        config,
        "nat_gateways",
        "leaves the cluster no way to its Helm charts and their images, which are on the internet",
        f"use {PREFIX}nat_gateways=1",
    )


def _release_has_host_image(config: ConfigValues) -> ConfigError | None:
    if not config.runs_on_eks or config.eks_node_image or config.release.eks_ami_date:
        return None
    family = config.instance.family
    able = [r.name for r in NEURON_RELEASES.values() if r.eks_ami_date and family in r.families]
    return refuse(
        config,
        "neuron_release",
        f"needs driver {config.release.driver_range}, and no EKS host image is known to have it",
        f"use {' or '.join(able)}, or name an image that has it with {PREFIX}eks_node_image",
    )


def _shell_reaches_systems_manager(config: ConfigValues) -> ConfigError | None:
    if not config.node_shell or config.vpc_id is not None or config.nat_gateways:
        return None
    return refuse(
        config,
        "node_shell",
        "needs a way from the nodes to AWS Systems Manager",
        f"use {PREFIX}nat_gateways=1, or leave node_shell out",
    )


CHECKS = (
    _eks_keys_have_a_cluster,
    _batch_keys_have_nodes,
    _endpoint_ranges_can_call,
    _somebody_is_admin,
    _nobody_has_two_access_entries,
    _somebody_reaches_the_endpoint,
    _nodes_within_max,
    _existing_subnets_have_a_vpc,
    _control_plane_has_two_zones,
    _subnets_are_different_ones,
    _everything_has_one_version,
    _images_are_of_the_clusters_version,
    _node_image_has_the_driver,
    _cluster_reaches_registries,
    _release_has_host_image,
    _shell_reaches_systems_manager,
)
