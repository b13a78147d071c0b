"""The device of a data job: a single process on a CPU, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.core.contract import DeviceKind

if TYPE_CHECKING:
    import torch


class LoneProcess:
    """A ``Device`` of a single rank on a CPU: every method is a no-op."""

    kind = DeviceKind.CPU
    rank = 0
    num_ranks = 1

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, which is already on the device."""
        return tensor

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        """Leave the tensor unchanged: with one rank it is both the sum and the maximum."""

    def synchronize(self) -> None:
        """Do nothing: CPU operations are done when the call returns."""

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, which is on the host."""
        return tensor

    def close(self) -> None:
        """Do nothing: there is no group to leave."""
