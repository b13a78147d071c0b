"""Process groups that the links between the chips of a Trn2 instance can route.

The 16 chips of a trn2.48xlarge form a 4 x 4 torus, and rank r runs on chip r // 4. A collective
is routed if its chips are one chip, two neighbors, a full row or column, or a rectangle, and if it
uses the same cores of each (comments in aws-neuron/vllm-omni-neuron, diffusion/distributed/
parallel_state.py). Otherwise the first collective fails with ``no_hier no_mesh``.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainium_catalogue.instances import InstanceType
from trainium_catalogue.wording import either

RANKS_OF_A_CHIP = 4
"""Ranks of a Trn2 chip at the default LNC; groups on one chip are always routed."""
_SIDE = 4


def check_mesh(instance: InstanceType, tensor_parallel: int) -> None:
    """Raise ``ValueError`` for a tensor-parallel degree whose groups the instance cannot route.

    The mesh is (data, tensor) in row-major order. On several nodes a data group has the same ranks
    of each; AWS's comments, and so this check, are about one node (docs/claims.toml,
    ``torchneuron-torus``).
    """
    ranks = instance.processes_per_node
    if instance.num_neuron_devices != _SIDE**2 or ranks % tensor_parallel:
        return
    if not _fits(instance, tensor_parallel):
        fitting = [
            degree
            for degree in range(1, ranks + 1)
            if ranks % degree == 0 and _fits(instance, degree)
        ]
        raise ValueError(
            f"--tensor-parallel {tensor_parallel}: the {ranks} ranks of {instance.name} as a mesh "
            f"of {ranks // tensor_parallel} x {tensor_parallel} have groups that its torus of "
            f"chips cannot route; use {either(fitting)}"
        )


def _fits(instance: InstanceType, tensor_parallel: int) -> bool:
    ranks = range(instance.processes_per_node)
    groups = [ranks[first : first + tensor_parallel] for first in ranks[::tensor_parallel]]
    groups += [ranks[offset::tensor_parallel] for offset in range(tensor_parallel)]
    per_chip = instance.processes_per_node // instance.num_neuron_devices
    return all(_is_routable(group, per_chip) for group in groups)


def _is_routable(group: Iterable[int], per_chip: int) -> bool:
    cores: dict[int, set[int]] = {}
    for rank in group:
        cores.setdefault(rank // per_chip, set()).add(rank % per_chip)
    if len({frozenset(used) for used in cores.values()}) > 1:
        return False
    rows = {chip // _SIDE for chip in cores}
    columns = {chip % _SIDE for chip in cores}
    return len(cores) == len(rows) * len(columns) and _is_run(rows) and _is_run(columns)


def _is_run(places: set[int]) -> bool:
    """Return whether positions on a ring of four are contiguous."""
    return any(
        places == {(first + step) % _SIDE for step in range(len(places))} for first in places
    )
