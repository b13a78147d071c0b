"""Devices: CPU, torch_xla and TorchNeuron behind one interface.

torch is the only framework imported at module level; code used by the XLA backends uses no torch
symbol newer than 2.9 (enforced by a test).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from training.core.contract import DeviceKind
from training.core.lone_process import LoneProcess
from training.core.progress import MAX_COMPILE_S

_MAX_COMPILE = timedelta(seconds=MAX_COMPILE_S)


class EagerDevice:
    """Plain torch.distributed: gloo on CPUs, TorchNeuron on Trainium2 and later."""

    def __init__(self, kind: DeviceKind, device: torch.device) -> None:
        self.kind = kind
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()
        self._device = device

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor to the device."""
        return tensor.to(self._device)

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        """Replace the tensor with the sum, or the maximum, over all ranks."""
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM)

    def synchronize(self) -> None:
        """Wait for all pending operations."""
        # CPU operations are done when the call returns.
        if self.kind is not DeviceKind.CPU:
            torch.get_device_module(self._device).synchronize()

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a device tensor to the host."""
        return tensor.cpu()

    def close(self) -> None:
        """Destroy the process group; on TorchNeuron, wait for the other ranks instead."""
        if self.kind is DeviceKind.TORCH_NEURON:
            # The group's destructor crashed in a beta of TorchNeuron, so the worker exits without
            # calling it (worker.py).
            dist.barrier()
        else:
            dist.destroy_process_group()


class XlaDevice(EagerDevice):
    """torch_xla on Neuron: collectives are recorded and run as compiled graphs."""

    def __init__(self, xla_model: Any) -> None:
        super().__init__(DeviceKind.XLA, xla_model.xla_device())
        self._xm = xla_model

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor to the device."""
        placed = super().place(tensor)
        self.synchronize()
        return placed

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        """Replace the tensor with the sum, or the maximum, over all ranks."""
        operation = self._xm.REDUCE_MAX if maximum else self._xm.REDUCE_SUM
        self._xm.all_reduce(operation, [tensor])

    def synchronize(self) -> None:
        """Run the recorded operations and wait for them."""
        self._xm.mark_step(wait=True)
        self._xm.wait_device_ops()


Device = EagerDevice | LoneProcess
"""One worker's device and the process group of all ranks."""


def open_device(kind: DeviceKind, *, timeout_s: float) -> EagerDevice:
    """Join the process group; ``timeout_s`` bounds collectives on CPUs.

    On other devices the launcher ends a hung job, since it can distinguish compilation from a hang.
    """
    if kind is DeviceKind.XLA:
        # The import registers the backend "xla" with torch.distributed; torch_xla derives the
        # Neuron runtime's settings from torchrun's environment.
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.xla_backend  # noqa: F401 - imported for its side effect

        dist.init_process_group("xla")
        return XlaDevice(xm)
    if kind is DeviceKind.TORCH_NEURON:
        import torch_neuronx  # noqa: F401 - registers the device and backend "neuron"

        # Collectives wait for ranks that are still compiling. The groups of a mesh use this
        # default, not their parent group's timeout (torch 2.13, distributed_c10d.py,
        # _new_group_with_tag).
        distributed_c10d.default_pg_timeout = _MAX_COMPILE
        # The device's own backend does not support object collectives, host tensors or
        # subgroup barriers, so gloo is used for these.
        dist.init_process_group("cpu:gloo,neuron:neuron", timeout=_MAX_COMPILE)
        return EagerDevice(kind, torch.device("neuron"))
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    return EagerDevice(kind, torch.device("cpu"))
