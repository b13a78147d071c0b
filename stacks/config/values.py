"""The keys of one deployment and all values derived from them, not yet checked."""

from __future__ import annotations

from dataclasses import dataclass

from stacks.config import addresses
from stacks.config.eks_keys import EksKeys
from stacks.config.names import is_zone_name
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.eks import SYSTEM_IMAGES, cluster_addresses_per_node, host_image_version
from trainium_catalogue.instances import JOB_VCPUS, EfaLayout, InstanceType, find_instance_type
from trainium_catalogue.releases import NeuronRelease, find_release
from trainium_catalogue.zones import subnet_zones


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValues(EksKeys):
    """The values that checks and warnings use; everything else gets an ``AppConfig``."""

    @property
    def instance(self) -> InstanceType:
        """The catalogue's entry for ``instance_type``."""
        return find_instance_type(self.instance_type)

    @property
    def release(self) -> NeuronRelease:
        """The catalogue's entry for ``neuron_release``."""
        return find_release(self.neuron_release)

    @property
    def runs_on_batch(self) -> bool:
        """True if Batch runs jobs on nodes; it always runs data and export jobs."""
        return Orchestrator.BATCH in self.orchestrators

    @property
    def tasks_use_default_group(self) -> bool:
        """True if Batch gives tasks the VPC's default group, as it does with EFA interfaces."""
        return self.runs_on_batch and self.instance.supports_multi_node

    @property
    def runs_on_eks(self) -> bool:
        """True if an EKS cluster runs jobs on nodes."""
        return Orchestrator.EKS in self.orchestrators

    @property
    def node_image(self) -> str:
        """Release version of the Trainium nodes' host image on EKS."""
        if self.eks_node_image is not None:
            return self.eks_node_image
        assert self.release.eks_ami_date is not None  # such a release is refused
        return host_image_version(self.kubernetes_version, self.release.eks_ami_date)

    @property
    def system_image(self) -> str:
        """Release version of the host image of the add-ons' nodes on EKS."""
        return self.eks_system_image or SYSTEM_IMAGES[self.kubernetes_version]

    @property
    def has_lustre(self) -> bool:
        """True if nodes mount a file system, new or existing."""
        return bool(self.lustre_gib) or self.lustre_dns_name is not None

    @property
    def builds_image(self) -> bool:
        """True if there is an image to build, and so a repository for it."""
        return self.image_uri is None

    @property
    def build_base_image(self) -> str | None:
        """Image to build on; None if ``image_uri`` is used as it is."""
        if self.image_uri is not None:
            return None
        return self.base_image or self.release.base_image

    @property
    def num_nodes_at_once(self) -> int:
        """Nodes that ``max_vcpus`` allows across all jobs."""
        return self.max_vcpus // self.instance.num_vcpus

    @property
    def min_vcpus(self) -> int:
        """vCPUs of the nodes that are always up."""
        return self.instance.vcpus_for(self.min_nodes)

    @property
    def zone_id(self) -> str | None:
        """Zone id of the nodes; None if a name was given, or for an existing subnet."""
        return None if self.zone_name else self.availability_zone_id

    @property
    def zone_name(self) -> str | None:
        """Zone name of the nodes, if the user gave a name instead of an id."""
        given = self.availability_zone_id
        return given if given and is_zone_name(given) else None

    @property
    def subnet_zones(self) -> tuple[str, ...]:
        """Zones of a new VPC's subnets, by id or name like the nodes' zone."""
        return subnet_zones(self.region, self.zone_name)

    @property
    def usable_addresses(self) -> int:
        """Number of addresses that the nodes' subnet offers, in any zone."""
        return addresses.num_available_addresses(
            subnet_cidr=self.subnet_cidr, vpc_cidr=self.vpc_cidr
        )

    @property
    def public_endpoint_cidrs(self) -> tuple[str, ...]:
        """Addresses that may call the cluster's API from the internet."""
        return () if self.eks_private else self.eks_endpoint_cidrs

    @property
    def inside_endpoint_cidrs(self) -> tuple[str, ...]:
        """Addresses besides the nodes' that may call it from inside the VPC; default: the VPC's."""
        if not self.eks_private:
            return ()
        own = self.subnet_cidr or self.vpc_cidr
        return self.eks_endpoint_cidrs or ((own,) if own else ())

    @property
    def num_endpoints(self) -> int:
        """Interface endpoints in the nodes' subnet; each takes an address."""
        return addresses.NUM_ENDPOINTS if self.interface_endpoints else 0

    @property
    def num_cpu_instances(self) -> int:
        """Most instances that ``cpu_max_vcpus`` allows, all the smallest; each takes an address."""
        return -(-self.cpu_max_vcpus // JOB_VCPUS)

    @property
    def other_addresses(self) -> int:
        """Number of addresses in the nodes' subnet taken by anything but nodes."""
        cluster = addresses.NUM_CLUSTER_ADDRESSES if self.runs_on_eks else 0
        return self.num_cpu_instances + self.num_endpoints + cluster

    def addresses_per_node(self, layout: EfaLayout) -> int:
        """Number of addresses per node, over all orchestrators: each may run all nodes at once."""
        on_batch = self.instance.addresses_per_node(layout) if self.runs_on_batch else 0
        on_eks = cluster_addresses_per_node(self.instance, layout) if self.runs_on_eks else 0
        return on_batch + on_eks

    def addresses_needed(self, layout: EfaLayout) -> int:
        """Number of addresses that nodes and everything else take from the subnet."""
        return self.num_nodes_at_once * self.addresses_per_node(layout) + self.other_addresses

    def stack_name(self, part: str) -> str:
        """Name and construct id of one of the stacks."""
        return f"trainium-{self.deployment}-{part}"
