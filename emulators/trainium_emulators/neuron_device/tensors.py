"""Tensors of the device, and the dispatch of operators on them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._utils import _rebuild_device_tensor_from_cpu_tensor
from torch.utils._mode_utils import no_dispatch

from trainium_emulators.neuron_device import rules
from trainium_emulators.neuron_device.counts import COUNTS
from trainium_emulators.neuron_device.device import DEVICE, GENERATOR, RUNTIME

_TO_HOST, _TO_DEVICE = "to host", "to device"
_COPIES = {"aten::copy_", "aten::_foreach_copy_"}
_HOST_SYNCS = {
    f"aten::{name}"
    for name in (
        "_local_scalar_dense",
        "equal",
        # The host needs the number of elements.
        "nonzero",
        "masked_select",
        "_unique2",
        "bincount",
    )
}
_ALLOCATIONS = {f"aten::{name}" for name in ("empty", "empty_strided", "empty_like", "new_empty")}
_MOVES = {*_ALLOCATIONS, *_COPIES, "aten::clone"}
"""Operators that do not compute."""
_COLLECTIVES = {"c10d", "_c10d_functional"}
_KERNELS_BY_NAME = (
    "_local_scalar_dense",
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "linspace",
    "randperm",
    "randperm.generator",
)
_PLAIN = {"Tensor", "Parameter", "FakeTensor", "FunctionalTensor"}
"""Tensor types without operators of their own or, in a trace, without data."""
_KERNELS: list[torch.library.Library] = []
"""Dispatcher registrations, each active for the lifetime of its object."""


class TensorStorage:
    """A tensor's storage: its own for code that traces it, the host's for code that resizes it.

    FSDP2 frees and reallocates gathered weights by resizing; safetensors finds tensors that share
    memory by address.
    """

    def __new__(cls, *given: Any, device: str = DEVICE) -> Any:
        if device == DEVICE:
            return super().__new__(cls)
        return StagedStorage(*given, device=device)  # type: ignore[no-untyped-call]

    def __init__(self, own: Any, host: Any) -> None:
        self._own, self.host = own, host
        self.size, self.resize_, self.data_ptr = host.size, host.resize_, host.data_ptr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class StagedStorage(torch.UntypedStorage):
    """Host memory with the type of a tensor's storage, used by asynchronous checkpoints."""

    def copy_(self, source: Any, non_blocking: bool | None = None) -> Any:
        return super().copy_(source.host, non_blocking)


class LoadedStorage(torch.UntypedStorage):
    """A storage in a file, from which ``torch.load`` creates a tensor on the device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(DEVICE, 0)


def _restore(storage: Any, location: str) -> Any:
    """Restore a storage at ``map_location``, if that is the device."""
    if not location.startswith(DEVICE):
        return None
    storage.__class__ = LoadedStorage
    return storage


class NeuronTensor(torch.Tensor):
    """A tensor on the device, whose data is in ``raw`` on the host."""

    raw: torch.Tensor
    _storage: TensorStorage | None = None

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> NeuronTensor:
        RUNTIME.start()
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(DEVICE, 0),
        )
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if not all(issubclass(kind, NeuronTensor) or kind.__name__ in _PLAIN for kind in types):
            # For example a DTensor, which calls again with its local part.
            return NotImplemented
        return _run(op, args, kwargs or {})

    def untyped_storage(self) -> Any:
        # Always return the same object: PyTorch's checkpoints distinguish storages by identity.
        if self._storage is None:
            self._storage = TensorStorage(super().untyped_storage(), self.raw.untyped_storage())
        return self._storage

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        return f"NeuronTensor({self.raw})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # This is the format in which PyTorch saves tensors of devices with unknown storage.
        device = str(self.device)
        return _rebuild_device_tensor_from_cpu_tensor, (
            self.detach().cpu(),
            self.dtype,
            device,
            self.requires_grad,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # torch.Tensor's own accepts no storage of another class.
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support deepcopy")
        copied = NeuronTensor(copy.deepcopy(self.raw, memo)).requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        if self.grad is not None:
            copied.grad = copy.deepcopy(self.grad, memo)
        for name, value in vars(self).items():
            if name not in ("raw", "_storage"):
                setattr(copied, name, copy.deepcopy(value, memo))
        return copied

    # For torch.compile, which traces the inner tensor.

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["raw"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: None, size: Any, stride: Any) -> NeuronTensor:
        return NeuronTensor(inner["raw"])


class OperatorCall:
    """An operator's arguments, converted to host tensors, and its results, converted back."""

    def __init__(self) -> None:
        self.device: dict[int, NeuronTensor] = {}
        """Device tensors by the identity of their host tensors."""
        self.host: dict[int, torch.Tensor] = {}

    def unwrap(self, value: Any) -> Any:
        """Replace device tensors, and the device, with the host's."""
        if isinstance(value, NeuronTensor):
            self.device[id(value.raw)] = value
            return value.raw
        if isinstance(value, torch.Tensor) and value.device.type == DEVICE:
            # Created in a trace, so it has no data.
            return value.to("cpu")
        if isinstance(value, torch.Tensor):
            self.host[id(value)] = value
        elif isinstance(value, (list, tuple)):
            return [self.unwrap(inner) for inner in value]
        elif isinstance(value, torch.device) and value.type == DEVICE:
            rules.check_index(RUNTIME, value.index)
            return torch.device("cpu")
        return value

    def wrap(self, value: Any) -> Any:
        """Put results on the device; a returned argument remains the same tensor."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.wrap(inner) for inner in value)
        if not isinstance(value, torch.Tensor) or id(value) in self.host:
            return value
        known = self.device.get(id(value))
        if known is None:
            return NeuronTensor(value) if value.device.type == "cpu" else value
        if known.shape != value.shape:
            _take_shape(known, value)
        return known


def _take_shape(tensor: NeuronTensor, raw: torch.Tensor) -> None:
    """Update a tensor's shape from its host tensor's, for example after ``resize_``."""
    storage = torch.Tensor.untyped_storage(tensor)
    with no_dispatch(), torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.Meta):
        set_ = torch.ops.aten.set_.source_Storage_storage_offset
        set_(tensor, storage, raw.storage_offset(), raw.size(), raw.stride())


def is_traced() -> bool:
    """Return whether operators are traced into a graph instead of run."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator of the device on the host's memory."""
    if op.namespace in _COLLECTIVES:
        from trainium_emulators.neuron_device import collectives

        return collectives.run(op, args, kwargs)
    name = op._schema.name
    if name == "aten::record_stream":
        return None  # for allocators that reuse memory; the emulator has none
    call = OperatorCall()
    wanted = kwargs.get("device")
    to_host = wanted is not None and torch.device(wanted).type == "cpu"
    raw_args, raw_kwargs = call.unwrap(args), {k: call.unwrap(v) for k, v in kwargs.items()}
    direction = _direction(name, args, to_host=to_host)
    if direction is None:
        # PyTorch accepts a 0-dim CPU tensor, such as a wrapped number, next to tensors of a device.
        rules.check_same_device([t for t in call.host.values() if t.dim()], name)
        if not op.is_view:
            types = {tensor.dtype for tensor in call.device.values()}
            if kwargs.get("dtype") is not None:
                types.add(kwargs["dtype"])
            rules.check_float8(types, name, moves=name in _MOVES)
    if name == "aten::_to_copy":
        rules.check_memory_format(kwargs.get("memory_format"), name)
    # A graph's operators do not run while it is traced.
    if not is_traced():
        _count(op, direction, [raw_args, *sorted(raw_kwargs.items())])
    draws = torch.Tag.nondeterministic_seeded in op.tags and raw_kwargs.get("generator") is None
    with GENERATOR.drawing() if draws else nullcontext():
        result = op(*raw_args, **raw_kwargs)
    return result if to_host else call.wrap(result)


def _count(op: Any, direction: str | None, arguments: list[Any]) -> None:
    name = op._schema.name
    if direction is not None:
        COUNTS.copy(direction)
    elif not op.is_view and name not in _ALLOCATIONS:
        COUNTS.operation(name, (op, _signature(arguments)))
    if name in _HOST_SYNCS:
        COUNTS.host_sync(name.removeprefix("aten::"))
    if direction == _TO_HOST and ("non_blocking", True) not in arguments:
        COUNTS.host_sync("copy to the host")


def _signature(value: Any) -> Hashable:
    """Describe the part of an argument that selects the kernel.

    Ours (see ``rules``): numbers are included by value. April converts numbers to tensors for
    most operators, but not all (torch_neuronx/python_ops/torch_mlir/README.md, "Scalar to Tensor
    Conversion").
    """
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape)
    if isinstance(value, (list, tuple)):
        return tuple(_signature(inner) for inner in value)
    return repr(value)


def _direction(name: str, args: Any, *, to_host: bool) -> str | None:
    """Return the direction of a copy between host and device; None for other operators."""
    if name == "aten::_to_copy":
        return _TO_HOST if to_host else None
    if name not in _COPIES:
        return None
    target, source = args[:2]
    if isinstance(target, (list, tuple)):
        target, source = target[0], source[0]
    if target.device.type == source.device.type:
        return None
    return _TO_HOST if target.device.type == "cpu" else _TO_DEVICE


def register() -> None:
    """Register operators without device tensor arguments (``torch.empty``), and ``torch.load``."""
    library: Any = torch.library.Library
    fallback = library("_", "IMPL")
    fallback.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
    aten = library("aten", "IMPL")
    for name in _KERNELS_BY_NAME:
        # PyTorch would create them by resizing an empty tensor.
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(name, _kernel(op), "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    # Only here is it not yet a clone, which may have any memory format.
    aten.impl("contiguous", _contiguous, "AutogradPrivateUse1")
    # April, csrc/core/NeuronHooksInterface.h, isPinnedPtr: all host memory counts as pinned.
    aten.impl("is_pinned", lambda tensor, device=None: True, "CPU")
    _KERNELS.extend((fallback, aten))
    # Priority 0 precedes PyTorch's own entries, which need an allocator of the device.
    torch.serialization.register_package(0, lambda storage: None, _restore)


def _kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _run(op, args, kwargs)


def _contiguous(
    tensor: torch.Tensor, *, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    # April, csrc/core/NeuronBindings.cpp, contiguous_autograd_neuron: unchecked in a trace.
    if not is_traced():
        rules.check_memory_format(memory_format, "aten::contiguous")
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return tensor.clone(memory_format=memory_format)


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """Copy between devices; required by PyTorch's own ``copy_``."""
    return _run(torch.ops.aten.copy_.default, (target, source), {"non_blocking": non_blocking})
