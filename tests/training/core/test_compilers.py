"""Running compilers of a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ASK = "from training.core.compilers import node_is_compiling; print(node_is_compiling())"


@pytest.mark.parametrize(("name", "compiles"), [("neuronx-cc", True), ("neuron-top", False)])
def test_a_rank_sees_the_compiler_of_another_rank_of_its_node(
    tmp_path: Path, name: str, compiles: bool
) -> None:
    command = tmp_path / name
    command.write_text("#!/bin/sh\nread line\n")
    command.chmod(0o755)
    other_rank = "import subprocess, sys; subprocess.run(sys.argv[1])"
    # In place of torchrun, a shell with two ranks.
    agent = f"""
    mkfifo {tmp_path}/pipe
    {sys.executable} -c "{other_rank}" {command} < {tmp_path}/pipe &
    exec 9> {tmp_path}/pipe
    until pgrep --full {command} --parent $! > {tmp_path}/pids; do sleep 0.05; done
    {sys.executable} -c "{_ASK}"
    """

    answer = subprocess.run(["/bin/sh", "-c", agent], capture_output=True, text=True, timeout=60)

    assert answer.stdout.split() == [str(compiles)], answer.stderr
