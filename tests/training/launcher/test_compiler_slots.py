"""Concurrent compilers of a node."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.training.nodes import node_on
from training.launcher.compiler_slots import num_slots, path_with_slots

SMALL = node_on("trn2.3xlarge", release="2.33.1")


def compiler_in(folder: Path) -> str:
    """A compiler that counts how many run at a time."""
    folder.mkdir()
    script = folder / "neuronx-cc"
    script.write_text(
        f'#!/bin/sh\nmkdir {folder}/run-$$\nls -d {folder}/run-* | wc -l >> "$1"\n'
        f"sleep 0.3\nrmdir {folder}/run-$$\nexit 70\n"
    )
    script.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_no_more_compilers_run_than_the_memory_of_the_host_holds(tmp_path: Path) -> None:
    path = path_with_slots(compiler_in(tmp_path / "real"), SMALL, tmp_path)
    counts = tmp_path / "counts"

    compilers = [
        subprocess.Popen(["neuronx-cc", str(counts)], env={"PATH": path}) for _ in range(10)
    ]
    codes = [compiler.wait(timeout=60) for compiler in compilers]

    assert codes == [70] * 10  # the compiler's own
    seen = [int(line) for line in counts.read_text().split()]
    assert len(seen) == 10 and max(seen) <= num_slots(SMALL) == 4


def test_a_killed_compiler_releases_its_slot(tmp_path: Path) -> None:
    path = path_with_slots(compiler_in(tmp_path / "real"), SMALL, tmp_path)
    command = ["neuronx-cc", str(tmp_path / "counts")]
    for _ in range(num_slots(SMALL) + 1):
        killed = subprocess.Popen(command, env={"PATH": path})
        killed.kill()
        killed.wait(timeout=60)

    assert subprocess.run(command, env={"PATH": path}, timeout=60).returncode == 70


def test_a_large_host_has_eight_slots_and_other_devices_none(tmp_path: Path) -> None:
    path = compiler_in(tmp_path / "real")

    assert num_slots(node_on("trn2.48xlarge", release="2.33.1")) == 8
    assert path_with_slots(path, node_on("trn1.32xlarge"), tmp_path) == path
    assert path_with_slots("/nowhere", SMALL, tmp_path) == "/nowhere"
