"""Find the running Neuron compilers of a launch."""

from __future__ import annotations

import os
from pathlib import Path

from training.core.processes import descendants, parents

COMPILER = "neuronx-cc"
"""The command that libneuronxla ("Call compiler with cmd: neuronx-cc compile ...", in the log of
aws-neuron-sdk issue 872) and TorchNeuron run."""


def is_compiler(pid: int) -> bool:
    """Return whether a process is a compiler, or waits for a slot (launcher/compiler_slots.py)."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended
    # A script's name follows its interpreter and perhaps an option.
    return any(argument.rpartition(b"/")[2] == COMPILER.encode() for argument in arguments[:3])


def node_is_compiling() -> bool:
    """Return whether any rank of this node is running a compiler; for workers under torchrun."""
    return any(is_compiler(pid) for pid in descendants(os.getppid(), parents()))
