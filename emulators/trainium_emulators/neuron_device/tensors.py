"""Tensors of the device, and what every operator on them goes through."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch._utils import _rebuild_device_tensor_from_cpu_tensor

from trainium_emulators.neuron_device import rules
from trainium_emulators.neuron_device.counts import COUNTS
from trainium_emulators.neuron_device.device import DEVICE, RUNTIME

_TO_HOST, _TO_DEVICE = "to host", "to device"
_COPIES = {"aten::copy_", "aten::_foreach_copy_"}
_HOST_SYNCS = {
    f"aten::{name}"
    for name in (
        "_local_scalar_dense",
        "equal",
        # The host has to know how many elements there are.
        "nonzero",
        "masked_select",
        "_unique2",
        "bincount",
    )
}
_ALLOCATIONS = {f"aten::{name}" for name in ("empty", "empty_strided", "empty_like", "new_empty")}
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
"""Types of tensors that have no operators of their own, or, in a trace, no elements."""
_KERNELS: list[torch.library.Library] = []
"""Registrations with the dispatcher, which end with their object."""


class TensorStorage:
    """A tensor's storage: of its own for what traces it, of the host for what resizes it.

    FSDP2 frees gathered weights, and allocates them again, by resizing.
    """

    def __init__(self, own: Any, host: Any) -> None:
        self._own = own
        self.size, self.resize_ = host.size, host.resize_

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class NeuronTensor(torch.Tensor):
    """A tensor on the device, whose elements are in ``raw`` on the host."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> NeuronTensor:
        RUNTIME.start()
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(DEVICE, 0),
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if not all(issubclass(kind, NeuronTensor) or kind.__name__ in _PLAIN for kind in types):
            # A DTensor, say, which comes back with its part.
            return NotImplemented
        return _run(op, args, kwargs or {})

    def untyped_storage(self) -> Any:
        return TensorStorage(super().untyped_storage(), self.raw.untyped_storage())

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        return f"NeuronTensor({self.raw})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As PyTorch saves tensors of devices whose storage it does not know.
        device = str(self.device)
        return _rebuild_device_tensor_from_cpu_tensor, (
            self.detach().cpu(),
            self.dtype,
            device,
            self.requires_grad,
        )

    # For torch.compile, which traces the elements.

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["raw"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: None, size: Any, stride: Any) -> NeuronTensor:
        return NeuronTensor(inner["raw"])


class OperatorCall:
    """Arguments of an operator with elements in place of device tensors, and the way back."""

    def __init__(self) -> None:
        self.device: dict[int, NeuronTensor] = {}
        """Device tensors by the identity of their elements."""
        self.host: dict[int, torch.Tensor] = {}

    def unwrap(self, value: Any) -> Any:
        """Replace device tensors, and the device itself, by the host's."""
        if isinstance(value, NeuronTensor):
            self.device[id(value.raw)] = value
            return value.raw
        if isinstance(value, torch.Tensor) and value.device.type == DEVICE:
            # Made in a trace, which then has no elements for it.
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
        """Put results on the device; what was an argument stays the same tensor."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.wrap(inner) for inner in value)
        if not isinstance(value, torch.Tensor) or id(value) in self.host:
            return value
        known = self.device.get(id(value))
        if known is None:
            return NeuronTensor(value) if value.device.type == "cpu" else value
        if known.shape != value.shape:
            raise NotImplementedError("the pretend device cannot change the shape of a tensor")
        return known


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator of the device on the host's memory."""
    if op.namespace in _COLLECTIVES:
        from trainium_emulators.neuron_device import collectives

        return collectives.run(op, args, kwargs)
    name = op._schema.name
    call = OperatorCall()
    wanted = kwargs.get("device")
    to_host = wanted is not None and torch.device(wanted).type == "cpu"
    raw_args, raw_kwargs = call.unwrap(args), {k: call.unwrap(v) for k, v in kwargs.items()}
    direction = _direction(name, args, to_host=to_host)
    if direction is None:
        # A tensor without dimensions is a number that PyTorch has wrapped.
        rules.check_same_device([t for t in call.host.values() if t.dim()], name)
    # A graph's operators do not run while it is traced.
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
        _count(op, direction, [raw_args, *sorted(raw_kwargs.items())])
    found = op(*raw_args, **raw_kwargs)
    return found if to_host else call.wrap(found)


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
    """Describe an argument as far as another one would be another kernel.

    Ours in one point: numbers count. April turns those of most operators into tensors
    (torch_neuronx/python_ops/torch_mlir/README.md, "Scalar to Tensor Conversion"), others not.
    """
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape)
    if isinstance(value, (list, tuple)):
        return tuple(_signature(inner) for inner in value)
    return repr(value)


def _direction(name: str, args: Any, *, to_host: bool) -> str | None:
    """Tell where a copy between host and device goes; None for other operators."""
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
    """Register what PyTorch calls without a tensor of the device, such as ``torch.empty``."""
    library: Any = torch.library.Library
    fallback = library("_", "IMPL")
    fallback.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
    aten = library("aten", "IMPL")
    for name in _KERNELS_BY_NAME:
        # PyTorch would make them of an empty tensor that it gives another shape.
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(name, _kernel(op), "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    _KERNELS.extend((fallback, aten))


def _kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _run(op, args, kwargs)


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """Copy between devices, as PyTorch's own ``copy_`` asks a device to."""
    return _run(torch.ops.aten.copy_.default, (target, source), {"non_blocking": non_blocking})
