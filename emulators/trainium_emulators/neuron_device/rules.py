"""Refusals and warnings of the emulated device, with the source of each rule.

"April" is the public copy of TorchNeuron's source from April 2026
(github.com/parmoham-aws/test-repo-parmoham, commit 98154b8); its messages are used where it has
any. Rules marked "ours" are stricter: the device accepts such a call, but behaves differently from
a CPU.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from trainium_emulators.neuron_device.device import Runtime

_OBJECT_COLLECTIVES = re.compile(r"\w+_object(_list)?")
_ON_CPU = {
    f"aten::{name}"
    for name in (
        "linalg_qr",
        "_linalg_svd",
        "_linalg_eigh",
        "linalg_cholesky_ex",
        "linalg_inv_ex",
        "linalg_lu_factor_ex",
        "linalg_ldl_factor_ex",
        "_linalg_slogdet",
        "_linalg_det",
        "cholesky_inverse",
        "triangular_solve",
    )
}
_CORES, _NUM_CORES = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"


def runs_on_cpu(operator: str) -> bool:
    """Return whether an operator silently falls back to the CPU."""
    # April, python_ops/cpu_fallback_registrations.py: decompositions that return column-major
    # tensors. Operators without a kernel fall back too, but are not known here.
    return operator.partition(".")[0] in _ON_CPU


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
    # Index 0 cannot be distinguished from PyTorch's own use of it: see docs/torchneuron.md.
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
    """Refuse a default process group that cannot bind this process to a single core."""
    # Ours: April's _WORLD_SIZE keeps the value of the first default group.
    if runtime.has_had_group:
        raise AssertionError(
            "a second Neuron runtime in one process: the first stays bound to its process group; "
            "start another process"
        )
    # April, distributed/backend.py, _neuron_runtime_setup, with its message.
    if runtime.is_initialized:
        raise AssertionError(
            "Neuron runtime should not be initialized before the init_process_group."
        )
    # The same function; the environment sets a number of cores other than one.
    cores = environment.get(_CORES, "")
    if (cores and not cores.isdecimal()) or environment.get(_NUM_CORES, "1") != "1":
        raise AssertionError(
            "Attempted to have more than one device per process in distributed setup "
            f"({_CORES}={cores or 'unset'}, {_NUM_CORES}={environment.get(_NUM_CORES, 'unset')})"
        )


def check_same_device(host: Sequence[torch.Tensor], operator: str) -> None:
    """Refuse an operator on tensors of both host and device."""
    # PyTorch's own message. April's operators require all tensors on the device
    # (torch_neuronx/python_ops/base.py).
    if host:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"neuron and cpu, in {operator}"
        )


def check_barrier(group_size: int) -> None:
    """Refuse a barrier of a subset of ranks."""
    # April, distributed/backend.py, ProcessGroupNeuron.barrier.
    if group_size != torch.distributed.get_world_size():
        raise NotImplementedError(
            "Barrier is implemented only for default group, called barrier on a group of "
            f"{group_size} ranks"
        )


def check_reduced_type(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse to reduce 64-bit numbers, except integers that fit into 32 bits."""
    # Ours: April's cast_policy.py sends int64 as int32 and float64 as float32. Token counts, which
    # torchtitan and Transformers reduce, fit; a trace has no values.
    for tensor in tensors:
        if tensor.dtype.itemsize != 8 or isinstance(tensor, FakeTensor):
            continue
        if tensor.dtype != torch.int64 or (tensor.abs() >= 2**31).any():
            raise TypeError(
                f"a reduction of {tensor.dtype}: the device would cast it to 32 bits; "
                "reduce 32-bit tensors, or use a gloo group"
            )


def only_factor(factors: Collection[float]) -> float:
    """Return the factor of a premultiplied sum; refuse if the program has used several."""
    # The emulator's own limit: April takes any (distributed/utils.py, parse_and_update_inputs).
    if len(factors) != 1:
        raise NotImplementedError(
            f"premultiplied sums by {sorted(factors)}: the emulator cannot determine "
            "which one applies; use a single factor in ReduceOp.PREMUL_SUM(factor)"
        )
    return next(iter(factors))


def check_equal_splits(sizes: Sequence[Any], what: str) -> None:
    """Refuse uneven split sizes."""
    # April, distributed/backend.py, alltoall_base; its tests list an uneven all_gather as a
    # failure.
    if len(set(sizes)) > 1:
        raise NotImplementedError(f"Only even split sizes are supported. Got {what}: {sizes}")


def warn_of_objects(tensor: torch.Tensor) -> None:
    """Warn about pickled objects on the device's group, which compile once for each length."""
    # April's tests send them (tests/pytorch_tests/specs/common_c10d_spec.json); accelerate 1.15
    # (utils/operations.py) pads its own because of the compilations.
    if tensor.dtype not in (torch.uint8, torch.int64):
        return
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == torch.distributed.distributed_c10d.__file__ and (
            _OBJECT_COLLECTIVES.fullmatch(code.co_name)
        ):
            warnings.warn(
                f"{code.co_name} on a neuron group compiles once per pickle length; use "
                "init_process_group('cpu:gloo,neuron:neuron'), or a gloo group",
                stacklevel=1,
            )
            return
        if frame.f_back is None:
            return
        frame = frame.f_back


def check_static(inputs: Sequence[Any]) -> None:
    """Refuse a graph with dynamic shapes."""
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
