"""The backends of the training loop: torch.distributed, torch_xla, and NxD on top of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from training.core.contract import DeviceKind

if TYPE_CHECKING:
    from training.backends.base import DataParallel, ModelParallel, Network, SequenceNetwork
    from training.core.config import TrainConfig
    from training.core.device import Device


def open_model_parallel(
    config: TrainConfig,
    device: Device,
    network: SequenceNetwork,
    *,
    report: Callable[[str], None] = lambda text: None,
) -> ModelParallel:
    """Open the backend of a model that ranks share; the process group must already exist.

    ``report`` is called during slow work, such as compilation.
    """
    if device.kind is DeviceKind.XLA:
        from training.backends.nxd import NxdBackend
        from training.core.ranks import Ranks

        return NxdBackend(config, device, network, ranks=Ranks.open(), report=report)
    from training.backends.native import NativeBackend

    return NativeBackend(config, device, network, report=report)


def open_data_parallel(
    config: TrainConfig,
    device: Device,
    network: Network,
    *,
    report: Callable[[str], None] = lambda text: None,
) -> DataParallel:
    """Open the backend of a model that fits on every rank."""
    if device.kind is DeviceKind.XLA:
        from training.backends.xla import XlaBackend
        from training.core.ranks import Ranks

        return XlaBackend(config, device, network, ranks=Ranks.open(), report=report)
    from training.backends.native import NativeBackend

    return NativeBackend(config, device, network, report=report)
