"""The backends of the training loop: torch.distributed, torch_xla, and NxD on top of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from training.core.contract import DeviceKind

if TYPE_CHECKING:
    from training.backends.base import Backend, Network
    from training.core.config import TrainConfig
    from training.core.device import Device


def open_backend(
    config: TrainConfig,
    device: Device,
    network: Network,
    *,
    report: Callable[[str], None] = lambda text: None,
) -> Backend:
    """Open a network's backend on this rank's device; the process group must already exist.

    ``report`` is called during slow work, such as compilation.
    """
    if device.kind is not DeviceKind.XLA:
        from training.backends.native import NativeBackend

        return NativeBackend(config, device, network, report=report)
    from training.backends.base import SequenceNetwork
    from training.backends.nxd import NxdBackend
    from training.backends.xla import XlaBackend
    from training.core.ranks import Ranks

    # Ranks can share only a model of sequences; any other fits on every rank.
    if isinstance(network, SequenceNetwork):
        return NxdBackend(config, device, network, ranks=Ranks.open(), report=report)
    return XlaBackend(config, device, network, ranks=Ranks.open(), report=report)
