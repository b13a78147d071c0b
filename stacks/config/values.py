"""The keys of a deployment and the values derived from them, before validation."""

from __future__ import annotations

from dataclasses import dataclass

from stacks.config import addresses
from stacks.config.eks_keys import EksKeys
from stacks.config.names import is_zone_name
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.eks import SYSTEM_IMAGES, cluster_addresses_per_node, host_image_version
from trainium_catalogue.instances import JOB_VCPUS, EfaLayout, InstanceType, find_instance_type
from trainium_catalogue.releases import NeuronRelease, TorchNeuronPackages, find_release
from trainium_catalogue.zones import subnet_zones


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValues(EksKeys):
    """Values for checks and warnings; everything else uses a validated ``AppConfig``."""

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
        """True if Batch gives tasks the VPC's default security group, as it does with EFA."""
        return self.runs_on_batch and self.instance.supports_multi_node

    @property
    def runs_on_eks(self) -> bool:
        """True if an EKS cluster runs jobs on nodes."""
        return Orchestrator.EKS in self.orchestrators

    @property
    def node_image(self) -> str:
        """Release version of the Trainium nodes' AMI on EKS."""
        if self.eks_node_image is not None:
            return self.eks_node_image
        assert self.release.eks_ami_date is not None  # a release without one is refused
        return host_image_version(self.kubernetes_version, self.release.eks_ami_date)

    @property
    def system_image(self) -> str:
        """Release version of the AMI of the add-ons' nodes on EKS."""
        return self.eks_system_image or SYSTEM_IMAGES[self.kubernetes_version]

    @property
    def has_lustre(self) -> bool:
        """True if nodes mount a file system, new or existing."""
        return bool(self.lustre_gib) or self.lustre_dns_name is not None

    @property
    def notifies(self) -> bool:
        """True if notifications about runs are on."""
        return self.notify_email is not None or self.notify_topic_arn is not None

    @property
    def builds_image(self) -> bool:
        """True if the app builds the image and therefore has a repository for it."""
        return self.image_uri is None

    @property
    def image_base(self) -> str | TorchNeuronPackages | None:
        """The base to build the image on; None if ``image_uri`` is used as is."""
        if self.image_uri is not None:
            return None
        return self.base_image or self.release.base_image or self.release.packages

    @property
    def max_concurrent_nodes(self) -> int:
        """Maximum number of nodes of all jobs together, from ``max_vcpus``."""
        return self.max_vcpus // self.instance.num_vcpus

    @property
    def min_vcpus(self) -> int:
        """vCPUs of ``min_nodes``, which always run."""
        return self.instance.vcpus_for(self.min_nodes)

    @property
    def zone_id(self) -> str | None:
        """Zone id of the nodes; None if only a zone name or an existing subnet is set."""
        return None if self.zone_name else self.availability_zone_id

    @property
    def zone_name(self) -> str | None:
        """Zone name of the nodes, if a name is set instead of an id."""
        zone = self.availability_zone_id
        return zone if zone and is_zone_name(zone) else None

    @property
    def subnet_zones(self) -> tuple[str, ...]:
        """Zones of a new VPC's subnets, by id or name like the nodes' zone."""
        return subnet_zones(self.region, self.zone_name)

    @property
    def usable_addresses(self) -> int:
        """Number of addresses that the nodes' subnet offers, the same in every zone."""
        return addresses.num_available_addresses(
            subnet_cidr=self.subnet_cidr, vpc_cidr=self.vpc_cidr
        )

    @property
    def public_endpoint_cidrs(self) -> tuple[str, ...]:
        """CIDR blocks that may access the cluster's API server from the internet."""
        return () if self.eks_private else self.eks_endpoint_cidrs

    @property
    def private_endpoint_cidrs(self) -> tuple[str, ...]:
        """CIDR blocks that may access the cluster's API server within the VPC, in addition to the
        nodes."""
        if not self.eks_private:
            return ()
        own = self.subnet_cidr or self.vpc_cidr
        return self.eks_endpoint_cidrs or ((own,) if own else ())

    @property
    def num_endpoints(self) -> int:
        """Number of interface endpoints in the nodes' subnet; each uses an address."""
        return addresses.NUM_ENDPOINTS if self.interface_endpoints else 0

    @property
    def num_cpu_instances(self) -> int:
        """Maximum number of CPU instances, if all have the smallest size; each uses an address."""
        return -(-self.cpu_max_vcpus // JOB_VCPUS)

    @property
    def other_addresses(self) -> int:
        """Number of addresses in the nodes' subnet that are not used by nodes."""
        cluster = addresses.NUM_CLUSTER_ADDRESSES if self.runs_on_eks else 0
        return self.num_cpu_instances + self.num_endpoints + cluster

    def addresses_per_node(self, layout: EfaLayout) -> int:
        """Add up addresses per node over the orchestrators: each may run all nodes at once."""
        on_batch = self.instance.addresses_per_node(layout) if self.runs_on_batch else 0
        on_eks = cluster_addresses_per_node(self.instance, layout) if self.runs_on_eks else 0
        return on_batch + on_eks

    def addresses_needed(self, layout: EfaLayout) -> int:
        """Return the number of addresses that the subnet needs, for nodes and everything else."""
        return self.max_concurrent_nodes * self.addresses_per_node(layout) + self.other_addresses

    def stack_name(self, part: str) -> str:
        """Return the name of one of the stacks, which is also its construct id."""
        return f"trainium-{self.deployment}-{part}"
