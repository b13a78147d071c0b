"""Contracts for tests."""

from __future__ import annotations

from dataclasses import replace

from training.core.contract import DeviceKind, NodeContract
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.releases import NEURON_RELEASES

CPU_NODE = NodeContract(
    job_id="job",
    attempt=1,
    node_index=0,
    num_nodes=1,
    main_index=0,
    address="127.0.0.1",
    main_address="127.0.0.1",
    run="run",
    deployment="default",
    device=DeviceKind.CPU,
    processes_per_node=1,
)


def node_on(name: str | None, *, num_nodes: int = 1, release: str = "2.28.0") -> NodeContract:
    """Return the main node of a job on an instance type, or on CPUs."""
    if name is None:
        return replace(CPU_NODE, num_nodes=num_nodes)
    kind, known = INSTANCE_TYPES[name], NEURON_RELEASES[release]
    assert known.backend is not None
    return replace(
        CPU_NODE,
        num_nodes=num_nodes,
        address="10.0.0.1",
        main_address="10.0.0.1",
        device=DeviceKind(known.backend.value),
        processes_per_node=kind.processes_per_node,
        instance_type=kind.name,
        neuron_release=known.name,
    )
