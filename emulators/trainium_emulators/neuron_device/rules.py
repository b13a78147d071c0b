"""What the pretend device refuses, with the source of each rule.

"April" is the public copy of TorchNeuron's source of April 2026
(github.com/parmoham-aws/test-repo-parmoham, commit 98154b8): its words are repeated where it has
any. Rules marked "ours" are stricter: the device takes such a call and does something else than a
CPU does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trainium_emulators.neuron_device.device import Runtime

_OBJECT_COLLECTIVES = re.compile(r"\w+_object(_list)?")
_CORES, _NUM_CORES = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"


def check_fork(runtime: Runtime) -> None:
    """Refuse the device in a process forked from one that uses it."""
    # April, torch_neuronx/__init__.py, _lazy_init.
    if runtime.in_forked_process:
        raise RuntimeError(
            "Cannot re-initialize Neuron runtime in forked subprocess. To use Neuron with "
            "multiprocessing, use the 'spawn' start method"
        )


def check_index(runtime: Runtime, index: int | None) -> None:
    """Refuse the device of another rank."""
    # April, csrc/core/NeuronDevice.cpp, set_device: a rank has one device, numbered LOCAL_RANK.
    # Index 0 cannot be told from PyTorch's own use of it: see docs/torchneuron.md.
    if index is not None and index not in (0, runtime.local_rank):
        check_set_device(runtime, index)


def check_set_device(runtime: Runtime, index: int) -> None:
    """Refuse to select the device of another rank."""
    mine = runtime.local_rank
    if index != mine:
        raise ValueError(
            f"Device index {index} is out of range. Valid range is {mine} to {mine} for this "
            "process"
        )


def check_first_group(runtime: Runtime, environment: Mapping[str, str]) -> None:
    """Refuse a process group that comes too late to bind this process to its core."""
    # Ours: April's _WORLD_SIZE keeps what the first default group has set, whatever the second is.
    if runtime.has_had_group:
        raise AssertionError(
            "a second Neuron runtime in one process: it stays bound to the first process group; "
            "start another process"
        )
    # April, distributed/backend.py, _neuron_runtime_setup; the message is its own.
    if runtime.is_initialized:
        raise AssertionError(
            "Neuron runtime should not be initialized before the init_process_group."
        )
    # The same function: an environment that gives a process several cores, or none of its own.
    cores = environment.get(_CORES, "")
    if (cores and not cores.isdecimal()) or environment.get(_NUM_CORES, "1") != "1":
        raise AssertionError(
            "Attempted to have more than one device per process in distributed setup "
            f"({_CORES}={cores or 'unset'}, {_NUM_CORES}={environment.get(_NUM_CORES, 'unset')})"
        )


def check_same_device(host: Sequence[torch.Tensor], operator: str) -> None:
    """Refuse an operator on tensors of both host and device."""
    # PyTorch's own words. April's operators require all tensors on the device
    # (torch_neuronx/python_ops/base.py).
    if host:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"neuron and cpu, in {operator}"
        )


def check_barrier(group_size: int) -> None:
    """Refuse a barrier of some of the ranks."""
    # April, distributed/backend.py, ProcessGroupNeuron.barrier.
    if group_size != torch.distributed.get_world_size():
        raise NotImplementedError(
            "Barrier is implemented only for default group, called barrier on a group of "
            f"{group_size} ranks"
        )


def check_reduced_type(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse to reduce 64-bit numbers."""
    # Ours: April's cast_policy.py sends int64 as int32 and float64 as float32.
    for tensor in tensors:
        if tensor.dtype.itemsize == 8:
            raise TypeError(
                f"a reduction of {tensor.dtype}: the device would reduce 32 bits of each number; "
                "reduce 32-bit tensors, or use a gloo group"
            )


def check_equal_splits(sizes: Sequence[Any], what: str) -> None:
    """Refuse parts of different sizes."""
    # April, distributed/backend.py, alltoall_base; an uneven all_gather is listed as a failure in
    # its tests.
    if len(set(sizes)) > 1:
        raise NotImplementedError(f"Only even split sizes are supported. Got {what}: {sizes}")


def check_no_objects(tensor: torch.Tensor) -> None:
    """Refuse pickled objects on the device's group."""
    # Ours: the device compiles another collective for each length of a pickle
    # (accelerate 1.15, utils/operations.py, pads them for that reason).
    if tensor.dtype not in (torch.uint8, torch.int64):
        return
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == torch.distributed.distributed_c10d.__file__ and (
            _OBJECT_COLLECTIVES.fullmatch(code.co_name)
        ):
            raise RuntimeError(
                f"{code.co_name} on a neuron group compiles for every length of a pickle; use "
                "init_process_group('cpu:gloo,neuron:neuron'), or a gloo group"
            )
        if frame.f_back is None:
            return
        frame = frame.f_back


def check_static(inputs: Sequence[Any]) -> None:
    """Refuse a graph for several shapes."""
    # April, neuron_dynamo_backend/fx/passes/dynamic_shape_analysis.py.
    symbols: list[Any] = [value for value in inputs if isinstance(value, torch.SymInt)]
    symbols += [
        size
        for value in inputs
        if isinstance(value, torch.Tensor)
        for size in value.shape
        if isinstance(size, torch.SymInt)
    ]
    if symbols:
        raise RuntimeError(
            "Dynamic shapes detected in the model, but torch-neuronx requires static shapes. "
            f"Found {len(symbols)} dynamic dimension(s): {symbols[:3]}; compile with dynamic=False"
        )
