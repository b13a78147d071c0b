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
_NOT_ON_TRAINIUM2 = {
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
}
_REDUCTIONS = ("SUM", "AVG", "MIN", "MAX")
_NOT_EMPTY_REDUCTIONS = (
    "allreduce",
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_base",
)
_NOT_EMPTY_GATHERS = ("allgather", "allgather_base", "all_gather_into_tensor", "gather")
_LARGE_BYTES = 5_000_000_000
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


def check_own_core(store: Any, node: int, environment: Mapping[str, str]) -> None:
    """Refuse a core that another process of this node has, given the node's first rank."""
    # Neuron documentation 2.33.0, neuron-runtime/guides/configuration-guide: a core is reserved for
    # one process until that ends.
    core = environment[_CORES]
    if store.add(f"{_CORES}-{node}-{core}", 1) > 1:
        raise RuntimeError(
            f"{_CORES}={core} is set in several processes of this node, but a core belongs to one; "
            "leave it unset"
        )


def check_memory_format(memory_format: torch.memory_format | None, operator: str) -> None:
    """Refuse to convert a tensor to a format such as channels_last."""
    # April, python_ops/cast_policy.py, with its message; empty and clone accept any format there.
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        raise RuntimeError(
            f"{operator}: Neuron tensors only support contiguous or preserve memory format"
        )


def check_float8(types: set[torch.dtype], operator: str, *, moves: bool) -> None:
    """Refuse to compute with or cast to 8-bit floating point types that Trainium2 lacks."""
    # April, python_ops/xla_builder/type_converter.py, with its message, and MLIR_TO_TORCH_DTYPE of
    # neuron_dynamo_backend know float8_e5m2 only. NKI kernels take others (torch_neuronx/utils.py,
    # map_external_dtype), so such tensors exist.
    if (found := _NOT_ON_TRAINIUM2 & types) and not (moves and len(types) == 1):
        raise ValueError(f"Unsupported PyTorch dtype: {found.pop()} in {operator}")


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


def check_compiled_group(group: Any) -> None:
    """Refuse a collective in a graph over a group that no DeviceMesh has created."""
    # github.com/aws-neuron/vllm-omni-neuron, commit cb7cf2b, register_replica_groups in
    # diffusion/distributed/parallel_state.py, with the compiler's message: any other group is taken
    # for a partition of the world, which only a group of all ranks is.
    if group.size() != torch.distributed.get_world_size() and not (
        # PyTorch's own description of them (device_mesh.py, _init_one_process_group).
        group.group_desc.startswith("mesh_")
    ):
        raise RuntimeError(
            f"replica id not seen in replica groups: a collective in a compiled graph over the "
            f"group {group.group_name}, which is not a DeviceMesh's; use init_device_mesh"
        )


def check_point_to_point(kind: str) -> None:
    """Refuse to receive from any rank, and warn about other sends and receives."""
    # April, distributed/backend.py: recv_anysource raises, and there is no send or recv. The
    # documentation of 2.33 lists pipeline parallelism, which needs both.
    if kind == "recv_any_source":
        raise NotImplementedError(kind)
    if kind in {"send", "recv", "isend", "irecv", "batch_p2p_ops"}:
        warnings.warn(
            f"{kind} on a neuron group: unconfirmed, TorchNeuron's public source has neither send "
            "nor recv",
            stacklevel=1,
        )


def check_type_and_size(tensors: Sequence[torch.Tensor], kind: str) -> None:
    """Refuse 64-bit values, except integers that fit into 32 bits, and empty tensors."""
    for tensor in tensors:
        # Ours: April's torch_neuronx/utils.py, convert_for_neuron, sends int64 as int32 and float64
        # as float32. Token counts, which torchtitan and Transformers reduce, fit.
        if tensor.dtype in (torch.float64, torch.uint64) or (
            tensor.dtype == torch.int64 and (tensor.abs() >= 2**31).any()
        ):
            raise TypeError(
                f"{kind} of {tensor.dtype}: the device would cast it to 32 bits; "
                "use 32-bit tensors, or a gloo group"
            )
        # April, can_handle of python_ops/xla_ops, with its messages; coalesced collectives and
        # broadcasts leave empty tensors out.
        if tensor.numel() == 0 and kind in _NOT_EMPTY_REDUCTIONS:
            raise RuntimeError(f"tensors cannot be empty, found {tensor.shape} in {kind}")
        if tensor.shape[:1] == (0,) and kind in _NOT_EMPTY_GATHERS:
            raise ValueError(
                f"tensors cannot have zero size in dimension 0, found {tensor.shape} in {kind}"
            )
        # April's tests of every collective expect a failure (tests/distributed/collective_ops).
        if tensor.nbytes >= _LARGE_BYTES:
            warnings.warn(f"{kind} of {tensor.nbytes / 1e9:.1f} GB may fail", stacklevel=1)


def check_reduction(reduction: str, kind: str) -> None:
    """Refuse reductions such as PRODUCT."""
    # April, python_ops/xla_ops/reduce_functions.py, with its message; PREMUL_SUM becomes a sum.
    if reduction not in (*_REDUCTIONS, "PREMUL_SUM"):
        raise RuntimeError(
            f"{kind}: unsupported reduce operation '{reduction}', supported ops: {_REDUCTIONS}"
        )


def warn_of_infinity(tensors: Iterable[torch.Tensor], kind: str) -> None:
    """Warn about an all-reduce of infinity."""
    # April, tests/distributed/collective_ops/test_all_reduce.py: "Inf is not handled correctly by
    # the compiler". Its tests of reduce_scatter pass.
    if kind.startswith(("allreduce", "all_reduce")) and any(
        tensor.is_floating_point() and tensor.isinf().any() for tensor in tensors
    ):
        warnings.warn(f"{kind} of infinity: the result may differ", stacklevel=1)


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


def warn_of_member(name: str) -> None:
    """Warn about a function of ``torch.neuron`` that may not exist."""
    warnings.warn(
        f"torch.neuron.{name}: unconfirmed, TorchNeuron's public source lacks it", stacklevel=3
    )


def warn_of_mode(mode: str) -> None:
    """Warn that a mode of ``torch.compile`` is ignored."""
    # April, neuron_dynamo_backend/backend.py, with its message.
    if mode != "default":
        warnings.warn(
            f"Neuron backend does not support mode='{mode}', falling back to default mode.",
            stacklevel=1,
        )


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
