"""An emulated TorchNeuron: a device ``neuron`` in this machine's memory, stricter than a CPU.

It emulates TorchNeuron's interface, not a chip: results come from PyTorch's CPU kernels. It refuses
calls that the device refuses (``rules``), and counts operations that cost time only on the device
(``counts``).
Active only where ``TRAINIUM_PRETEND_NEURON`` is 1, or ``report`` to print the counts at exit.
"""

import os

VARIABLE = "TRAINIUM_PRETEND_NEURON"


def autoload() -> None:
    """Register the device if the environment enables it; called by ``import torch``."""
    if value := os.environ.get(VARIABLE):
        if value not in ("1", "report"):
            raise ValueError(f"{VARIABLE}={value}: set 1, or report to print counts at exit")
        from trainium_emulators.neuron_device.device import register

        register(os.environ, report=value == "report")
