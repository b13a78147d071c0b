"""A file mapped for writing may change undetected."""

from __future__ import annotations

import os
import time

import pytest

from tests.training.program.snapshots.kept_nodes import Job, paths
from training.program.snapshots.folder import open_for_writing

_OPEN = "import mmap; file = open('state.bin', 'r+b')\n"
_WAIT = "print('open', flush=True); input()"


@pytest.mark.parametrize(
    ("how", "mapped"), [("", False), ("m = mmap.mmap(file.fileno(), 0)\n", True)]
)
def test_an_idle_open_file_counts_unless_it_is_mapped(
    local_job: Job, how: str, mapped: bool
) -> None:
    (node,) = local_job.attempt()
    path = node.folder / "state.bin"
    path.write_text("content")
    os.utime(path, (1, 1))  # long before the first scan
    program = node.run(_OPEN + how + _WAIT)
    assert program.stdout is not None and program.stdin is not None
    program.stdout.readline()
    assert open_for_writing([node.folder], [program.pid]) == {path: mapped}
    node.start_snapshots()
    if not mapped:
        local_job.wait_for(lambda found: paths(found) == {"state.bin"})
        return
    time.sleep(3)  # three intervals
    assert not any(paths(local_job.snapshot(number)) for number in local_job.numbers())
    program.stdin.write("\n")
    program.stdin.flush()
    program.wait()
    local_job.wait_for(lambda found: paths(found) == {"state.bin"})
