"""The instance types: Trainium, with derived sizes, and CPU instances for data and export jobs.

Sizes, cards and zones: ``aws ec2 describe-instance-types`` and
``describe-instance-type-offerings --location-type availability-zone-id`` (as recorded in
moto's dump of those APIs). Memory of Trainium2 chips: the Neuron documentation's trn2 page.
Peaks: 190 TFLOP/s per Trainium chip of two cores (AWS's MFU for its Llama-2 figures, 3,040 per
node), 667 per Trainium2 chip of eight (the Neuron documentation's architecture pages), 167 per rank
of two cores; TorchTitan on Trainium takes 157 (github.com/parmoham-aws/test-repo-parmoham,
docs/torchtitan/qwen3/TorchTitan.diff).
Prices are estimates from public price lists; see ``usd_per_hour_estimate``. On-demand list prices:
github.com/aws/karpenter-provider-aws, pkg/providers/pricing/zz_generated.pricing_aws.go (us-east-1,
2026-07-20), and github.com/skypilot-org/skypilot-catalog, catalogs/v6/aws/vms.csv (every region),
both generated from AWS's price list API.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from trainium_catalogue.suggest import did_you_mean


class EfaLayout(StrEnum):
    """The kind of interface on the secondary network cards."""

    EFA = "efa"
    """EFA with an IP address on every card, as in AWS's Trainium samples."""
    EFA_ONLY = "efa-only"
    """No IP address on the secondary cards: for subnets with few addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """One entry of a launch template's ``NetworkInterfaces``."""

    card_index: int
    device_index: int
    interface_type: str
    """``interface``, ``efa`` or ``efa-only``, in EC2's terms."""

    @property
    def takes_address(self) -> bool:
        """True unless EFA-only, which has no IP address (EC2 User Guide, EFA)."""
        return self.interface_type != EfaLayout.EFA_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One EC2 instance type with Trainium chips."""

    name: str
    num_vcpus: int
    memory_mib: int
    num_neuron_devices: int
    """Chips, each a ``/dev/neuronN``."""
    num_neuron_cores: int
    """Physical NeuronCores."""
    num_logical_cores: int
    """Logical NeuronCores at the default LNC: one process each."""
    hbm_gib_per_device: int
    peak_bf16_tflops_per_core: float
    """Dense peak of a physical NeuronCore: the denominator of model FLOPs utilization."""
    num_network_cards: int
    num_efa_interfaces: int
    enis_per_card: int
    addresses_per_interface: int
    """IPv4 addresses that one interface can have."""
    network_gbps: float
    local_nvme_gb: int
    usage_classes: frozenset[str]
    zone_ids: Mapping[str, tuple[str, ...]]
    """Region to the ids (not names) of the availability zones that offer the type."""
    usd_per_hour_estimate: float
    """On-demand list price in us-east-1, or chips x 2.2 USD for types sold mainly through
    Capacity Blocks. For orientation only."""
    list_price_regions: frozenset[str] = frozenset()
    """Regions with that list price; elsewhere none is known."""

    @property
    def family(self) -> str:
        """``trn1``, ``trn1n``, ``trn2`` or ``trn2u``."""
        return self.name.partition(".")[0]

    @property
    def supports_multi_node(self) -> bool:
        """True with EFA, which multi-node jobs need."""
        return self.num_efa_interfaces > 0

    @property
    def supports_capacity_block(self) -> bool:
        """True if EC2 sells Capacity Blocks for this type."""
        return "capacity-block" in self.usage_classes

    @property
    def processes_per_node(self) -> int:
        """One worker per logical NeuronCore."""
        return self.num_logical_cores

    @property
    def peak_flops_per_process(self) -> float:
        """Dense bf16 peak of one worker's logical core, in FLOP/s."""
        cores = self.num_neuron_cores / self.num_logical_cores
        return self.peak_bf16_tflops_per_core * cores * 1e12

    @property
    def container_vcpus(self) -> int:
        """Three quarters of the vCPUs, as AWS's Batch samples reserve (96 of 128)."""
        return self.num_vcpus * 3 // 4

    @property
    def container_memory_mib(self) -> int:
        """Memory of the container, less than the ECS agent registers.

        The agent registers less than the instance has; AWS's sample leaves 4.6% of a
        trn1.32xlarge free. If the value is too large, the job stays RUNNABLE forever.
        """
        return self.memory_mib - max(2048, self.memory_mib * 5 // 100)

    @property
    def shared_memory_mib(self) -> int:
        """Size of ``/dev/shm``: 1 GiB per process, at least 8 GiB; allocated as needed.

        It is at most a quarter of the container's memory. Only programs that pass tensors between
        processes, such as torch's data loaders, need it; Neuron's runtime and EFA work with
        Docker's 64 MiB in AWS's Batch samples.
        """
        return min(1024 * max(8, self.processes_per_node), self.container_memory_mib // 4)

    def neuron_device_paths(self) -> tuple[str, ...]:
        """Return the device files of the chips."""
        return tuple(f"/dev/neuron{index}" for index in range(self.num_neuron_devices))

    def efa_device_paths(self) -> tuple[str, ...]:
        """Return the device files of the EFA interfaces."""
        return tuple(f"/dev/infiniband/uverbs{index}" for index in range(self.num_efa_interfaces))

    def network_interfaces(self, layout: EfaLayout) -> tuple[NetworkInterface, ...]:
        """Return the interfaces of a launch template: one per EFA card.

        Card 0 has the primary interface (device index 0), every other card device index 1, even on
        trn1n, because the index counts per card. An EFA-only interface can never be the primary
        one, and the second slot of card 0 stays free for the task's interface (awsvpc).
        """
        if not self.supports_multi_node:
            return (NetworkInterface(card_index=0, device_index=0, interface_type="interface"),)
        primary = NetworkInterface(card_index=0, device_index=0, interface_type="efa")
        return primary, *(
            NetworkInterface(card_index=card, device_index=1, interface_type=layout.value)
            for card in range(1, self.num_efa_interfaces)
        )

    def addresses_per_node(self, layout: EfaLayout) -> int:
        """Count the IP addresses of a Batch node, including the task's (awsvpc)."""
        return sum(nic.takes_address for nic in self.network_interfaces(layout)) + 1

    def vcpus_for(self, num_nodes: int) -> int:
        """Return the vCPUs of ``num_nodes``, as counted by compute environments and quotas."""
        return self.num_vcpus * num_nodes

    def offers(self) -> str:
        """List the regions and zone ids that offer the type, for messages."""
        return ", ".join(f"{region} ({', '.join(ids)})" for region, ids in self.zone_ids.items())


_ON_DEMAND = frozenset({"on-demand"})
_SPOT = frozenset({"spot"})
_BLOCK = frozenset({"capacity-block"})

LIST_PRICE_REGIONS = frozenset({"us-east-1", "us-east-2", "us-west-2"})
"""Regions with the list prices of us-east-1."""
_APS2 = ("aps2-az1", "aps2-az2", "aps2-az3")

_TYPES = (
    InstanceType(
        name="trn1.2xlarge",
        num_vcpus=8,
        memory_mib=32_768,
        num_neuron_devices=1,
        num_neuron_cores=2,
        num_logical_cores=2,
        hbm_gib_per_device=32,
        peak_bf16_tflops_per_core=95.0,
        num_network_cards=1,
        num_efa_interfaces=0,
        enis_per_card=4,
        addresses_per_interface=15,
        network_gbps=12.5,
        local_nvme_gb=474,
        usage_classes=_ON_DEMAND | _SPOT,
        zone_ids={
            "us-east-1": ("use1-az5", "use1-az6"),
            "us-east-2": ("use2-az3",),
            "us-west-2": ("usw2-az1", "usw2-az4"),
        },
        usd_per_hour_estimate=1.34375,
        list_price_regions=LIST_PRICE_REGIONS,
    ),
    InstanceType(
        name="trn1.32xlarge",
        num_vcpus=128,
        memory_mib=524_288,
        num_neuron_devices=16,
        num_neuron_cores=32,
        num_logical_cores=32,
        hbm_gib_per_device=32,
        peak_bf16_tflops_per_core=95.0,
        num_network_cards=8,
        num_efa_interfaces=8,
        enis_per_card=5,
        addresses_per_interface=50,
        network_gbps=800,
        local_nvme_gb=4 * 1900,
        usage_classes=_ON_DEMAND | _SPOT | _BLOCK,
        zone_ids={
            "us-east-1": ("use1-az4", "use1-az5", "use1-az6"),
            "us-east-2": ("use2-az3",),
            "us-west-2": ("usw2-az1", "usw2-az4"),
            "ap-south-1": ("aps1-az2",),
            "ap-southeast-2": ("apse2-az1", "apse2-az2"),
            "ap-southeast-4": ("apse4-az1",),
        },
        usd_per_hour_estimate=21.50,
        list_price_regions=LIST_PRICE_REGIONS,
    ),
    InstanceType(
        name="trn1n.32xlarge",
        num_vcpus=128,
        memory_mib=524_288,
        num_neuron_devices=16,
        num_neuron_cores=32,
        num_logical_cores=32,
        hbm_gib_per_device=32,
        peak_bf16_tflops_per_core=95.0,
        num_network_cards=16,
        num_efa_interfaces=16,
        enis_per_card=5,
        addresses_per_interface=50,
        network_gbps=1600,
        local_nvme_gb=4 * 1900,
        usage_classes=_ON_DEMAND | _SPOT,
        zone_ids={
            "us-east-1": ("use1-az6",),
            "us-east-2": ("use2-az3",),
            "us-west-2": ("usw2-az4",),
        },
        usd_per_hour_estimate=24.78,
        list_price_regions=LIST_PRICE_REGIONS,
    ),
    InstanceType(
        name="trn2.3xlarge",
        num_vcpus=12,
        memory_mib=131_072,
        num_neuron_devices=1,
        num_neuron_cores=8,
        num_logical_cores=4,
        hbm_gib_per_device=96,
        peak_bf16_tflops_per_core=83.4,
        num_network_cards=1,
        num_efa_interfaces=1,
        enis_per_card=2,
        addresses_per_interface=15,
        network_gbps=200,
        local_nvme_gb=470,
        usage_classes=_ON_DEMAND | _SPOT | _BLOCK,
        # The default, which comes first, is the region that needs no opt-in.
        zone_ids={
            "sa-east-1": ("sae1-az1", "sae1-az2", "sae1-az3"),
            "ap-south-2": _APS2,
            "ap-southeast-4": ("apse4-az3",),
        },
        usd_per_hour_estimate=2.2,
    ),
    InstanceType(
        name="trn2.48xlarge",
        num_vcpus=192,
        memory_mib=2_097_152,
        num_neuron_devices=16,
        num_neuron_cores=128,
        num_logical_cores=64,
        hbm_gib_per_device=96,
        peak_bf16_tflops_per_core=83.4,
        num_network_cards=16,
        num_efa_interfaces=16,
        enis_per_card=2,
        addresses_per_interface=50,
        network_gbps=3200,
        local_nvme_gb=4 * 1900,
        usage_classes=_ON_DEMAND | _SPOT | _BLOCK,
        zone_ids={
            "us-east-2": ("use2-az1", "use2-az2", "use2-az3"),
            "ap-south-2": _APS2,
        },
        usd_per_hour_estimate=35.2,
    ),
    InstanceType(
        name="trn2u.48xlarge",
        num_vcpus=192,
        memory_mib=2_097_152,
        num_neuron_devices=16,
        num_neuron_cores=128,
        num_logical_cores=64,
        hbm_gib_per_device=96,
        peak_bf16_tflops_per_core=83.4,
        num_network_cards=16,
        num_efa_interfaces=16,
        enis_per_card=2,
        addresses_per_interface=50,
        network_gbps=3200,
        local_nvme_gb=4 * 1900,
        usage_classes=_ON_DEMAND | _BLOCK,
        zone_ids={"ap-south-2": _APS2},
        usd_per_hour_estimate=35.2,
    ),
)

INSTANCE_TYPES: Mapping[str, InstanceType] = MappingProxyType({t.name: t for t in _TYPES})
"""Every supported type, by name."""


def find_instance_type(name: str) -> InstanceType:
    """Look up an instance type; ``ValueError`` names the nearest known one."""
    try:
        return INSTANCE_TYPES[name]
    except KeyError:
        reason = did_you_mean(name, INSTANCE_TYPES)
        raise ValueError(f"instance type {name!r} is not in the catalogue; {reason}") from None


# CPU instances for data and export jobs: enough types to find Spot capacity anywhere, all x86-64,
# like the training image.
JOB_VCPUS = 16
JOB_MEMORY_MIB = 57_344
"""56 GiB, well below the memory that the ECS agent registers on a 64 GiB instance."""
USD_PER_JOB_HOUR_ESTIMATE = 0.77
"""On-demand list price of an m6i.4xlarge in us-east-1; Spot costs less. For orientation only."""

_GIB = 1024
_FAMILIES = {"m5": 4, "m5a": 4, "m6a": 4, "m6i": 4, "m7a": 4, "m7i": 4} | {
    "r5": 8, "r6a": 8, "r6i": 8, "r7a": 8, "r7i": 8,
}  # fmt: skip
"""GiB of memory per vCPU."""
_SIZES = {"4xlarge": 16, "8xlarge": 32, "12xlarge": 48, "16xlarge": 64}

CPU_INSTANCE_TYPES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        f"{family}.{size}": (vcpus, vcpus * gib_per_vcpu * _GIB)
        for family, gib_per_vcpu in _FAMILIES.items()
        for size, vcpus in _SIZES.items()
    }
)
"""Name to vCPUs and memory in MiB; each fits at least one job."""

DEFAULT_CPU_INSTANCE_TYPES = ("m6i.4xlarge", "m6a.4xlarge", "m5.4xlarge", "m5a.4xlarge")
"""Types from several Spot capacity pools, offered in every region that offers Trainium."""
