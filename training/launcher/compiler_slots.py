"""Limit the number of concurrent compilers on a node.

TorchNeuron starts ``neuronx-cc`` by name, one process for each operator and graph of each rank,
without any limit (NeuronCompiler.cpp in its public copy of April 2026,
github.com/parmoham-aws/test-repo-parmoham), and 64 concurrent compilers exceed a host's memory. A
script of the same name, first on the workers' PATH, waits for a free slot and execs the compiler,
which holds the slot until it exits or dies.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from training.core.compilers import COMPILER
from training.core.contract import DeviceKind, NodeContract

_MIB_PER_SLOT = 32 * 1024
"""Host memory per compiler; large graphs take tens of GB (not measured by this project)."""
_MAX_SLOTS = 8
"""The limit in public training code for 64 ranks (github.com/hokindeng/object-permanence, pwm)."""
_SCRIPT = """\
#!/bin/sh
while :; do
  for slot in {slots}; do
    exec 9> {folder}/slot-$slot
    if flock -n 9; then exec {compiler} "$@"; fi
  done
  sleep 0.2
done
"""


def num_slots(node: NodeContract) -> int:
    """Return the number of compilers that may run on the node at a time."""
    instance = node.instance
    return 1 if instance is None else max(1, min(_MAX_SLOTS, instance.memory_mib // _MIB_PER_SLOT))


def path_with_slots(path: str, node: NodeContract, scratch: Path) -> str:
    """Put a compiler that waits for a slot on the workers' PATH.

    Without TorchNeuron or a compiler, PATH is unchanged.
    """
    compiler = shutil.which(COMPILER, path=path)
    if node.device is not DeviceKind.TORCH_NEURON or compiler is None:
        return path
    folder = scratch / "compiler"
    folder.mkdir(exist_ok=True)
    script = folder / COMPILER
    script.write_text(
        _SCRIPT.format(
            slots=" ".join(str(slot) for slot in range(num_slots(node))),
            folder=shlex.quote(str(folder)),
            compiler=shlex.quote(compiler),
        )
    )
    script.chmod(0o755)
    return f"{folder}:{path}"
