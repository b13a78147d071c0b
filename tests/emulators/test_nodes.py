"""Nodes as processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
import time

from tests.support.limits import scaled
from trainium_emulators.nodes.node import NodeProcess, wait_for

_TWO = (
    "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    "start_new_session=True); print('up', flush=True); time.sleep(600)"
)


class Stream:
    name = "test"

    def write(self, line: str) -> None:
        pass


def test_finished_node_leaves_neither_processes_nor_a_folder() -> None:
    node = NodeProcess(
        command=[sys.executable, "-c", _TWO],
        environment={"NODE_TEST": f"{time.time()}"},
        stream=Stream(),
        engine=None,
        marks=("NODE_TEST",),
    )
    assert wait_for(lambda: "up" in node.lines, scaled(20))
    assert len(node.leftovers()) == 3

    node.send(signal.SIGKILL)
    assert wait_for(lambda: node.exit_code() is not None, scaled(20))
    node.finish()

    assert node.leftovers() == []


def test_node_processes_have_lower_priority() -> None:
    node = NodeProcess(
        command=[sys.executable, "-c", "import os; print(os.nice(0))"],
        environment={"NODE_TEST": f"{time.time()}"},
        stream=Stream(),
        engine=None,
        niceness=5,
        marks=("NODE_TEST",),
    )
    assert wait_for(lambda: node.exit_code() is not None, scaled(20))
    node.finish()

    assert node.lines == [str(os.nice(0) + 5)]
