"""TCP ports that the nodes of one job use between them."""

RENDEZVOUS = 41000
"""torchrun's store on the main node; AWS's samples use the same number."""
PEER_WATCH = 41001
"""The launchers' own link, by which every node learns of a lost or silent peer."""
NEURON_ROOT_COMM = 62182
"""Where torch-neuronx bootstraps collectives on the main node (torch_xla's Neuron plugin)."""
NEURON_ROOT_COMM_ALTERNATE = 48620
"""The port of the Neuron documentation's examples of ``NEURON_RT_ROOT_COMM_ID``."""

RESERVED_PORTS: tuple[int, ...] = (
    RENDEZVOUS,
    PEER_WATCH,
    NEURON_ROOT_COMM_ALTERNATE,
    NEURON_ROOT_COMM,
)
"""Kept out of the ephemeral range on the host (``net.ipv4.ip_local_reserved_ports``)."""
