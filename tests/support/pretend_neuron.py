"""The emulated TorchNeuron for processes that a test starts, regardless of what is installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pretend_neuron(folder: Path, value: str = "1") -> dict[str, str]:
    """Install what emulators/pyproject.toml declares into a folder, for PyTorch to find it there.

    Returns the environment that enables the device in a process.
    """
    project = tomllib.loads((ROOT / "emulators/pyproject.toml").read_text())["project"]
    information = folder / "pretend_neuron-0.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: pretend-neuron\nVersion: 0")
    groups = project["entry-points"]
    (information / "entry_points.txt").write_text(
        "\n".join(
            line
            for group, entries in groups.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
        )
    )
    return {
        "PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'emulators'}",
        "TRAINIUM_PRETEND_NEURON": value,
    }
