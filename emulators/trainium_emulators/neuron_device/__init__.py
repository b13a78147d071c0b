"""A pretend TorchNeuron: PyTorch's device ``neuron`` on this machine's memory, stricter than a CPU.

An emulator of how programs meet TorchNeuron, not of a chip: results come from PyTorch's CPU
kernels. It refuses what the device refuses (``rules``), and counts what a CPU hides (``counts``).
Active only where ``TRAINIUM_PRETEND_NEURON`` is 1, or ``report`` to print the counts at exit.
"""

import os

VARIABLE = "TRAINIUM_PRETEND_NEURON"


def autoload() -> None:
    """Register the device if the environment asks for it; ``import torch`` calls this."""
    if asked := os.environ.get(VARIABLE):
        if asked not in ("1", "report"):
            raise ValueError(f"{VARIABLE}={asked}: set 1, or report to print counts at exit")
        from trainium_emulators.neuron_device.device import register

        register(os.environ, report=asked == "report")
