"""How a program ends, and the job's outcome: the same codes as for any workload."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.limits import scaled
from tests.training.program.bundles import program

if TYPE_CHECKING:
    from tests.training.conftest import Cluster

# Rank 1 does as instructed, rank 0 continues.
SCRIPT = """
import os, signal, sys, time

def work():
    print("works", flush=True)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        time.sleep(0.1)
        print("still works", flush=True)

def deeper():
    raise ValueError("bad\\n  data")

if os.environ["RANK"] == "1":
    exec(sys.argv[1])
else:
    exec(sys.argv[2] if len(sys.argv) > 2 else "work()")
"""

CRASH_AT_EXIT = "import atexit; atexit.register(os.kill, os.getpid(), signal.SIGSEGV)"
"""A crash after the last line of the program, whose exit handlers may still be saving."""


def start(
    cluster: Cluster, *argv: str, flags: tuple[str, ...] = (), processes_per_node: int = 1
) -> None:
    words = [*program(cluster.folder, script=SCRIPT), "--peer-timeout-s=3", *flags]
    processes = {"TRAINIUM_PROCESSES_PER_NODE": str(processes_per_node)}
    cluster.start(*words, "--", *argv, workload="program", extra=processes)


def test_the_error_of_one_rank_ends_all_nodes_with_its_reason_and_its_own_traceback(
    cluster: Cluster,
) -> None:
    last = "lambda: (time.sleep(1), print('LAST WORDS'.lower()))"
    start(cluster, f"import atexit; atexit.register({last}); deeper()")

    assert cluster.end(within_s=scaled(30)) == {0: 1, 1: 1}, cluster.all_logs()
    for node in (0, 1):
        assert "node 1: rank 1: ValueError: bad data" in cluster.log(node).splitlines()[-1]
    assert "ChildFailedError" not in cluster.all_logs()
    log = cluster.log(1)
    trace = log[log.index("Traceback") : log.index("ValueError")]
    assert 'train.py", line ' in trace
    assert "worker.py" not in trace
    assert "last words" in log  # exit handlers still run


@pytest.mark.parametrize(
    ("action", "code", "text"),
    [
        pytest.param(
            "print('Try --help'); print('Error: No such option'); sys.exit(2)",
            1,
            "rank 1: sys.exit(2), after: Error: No such option",
            marks=pytest.mark.full,
        ),
        ("os._exit(3)", 1, "rank 1 ended with exit code 3, without an exception"),
        (CRASH_AT_EXIT, 75, "rank 1 was killed by SIGSEGV"),
    ],
)
def test_the_exit_of_one_rank_ends_its_job_with_its_reason(
    lone_node: Cluster, action: str, code: int, text: str
) -> None:
    # The other rank is silent: a node has one last line, which must be the failing rank's.
    start(lone_node, action, "time.sleep(600)", processes_per_node=2)

    assert lone_node.end(within_s=scaled(30)) == {0: code}, lone_node.all_logs()
    assert f"node 0: {text}" in lone_node.log(0).splitlines()[-1], lone_node.all_logs()
    assert "ChildFailedError" not in lone_node.all_logs()


# Without processes: test_hangs.py.
@pytest.mark.full
def test_exiting_with_0_is_success_however_long_one_rank_keeps_working(
    cluster: Cluster,
) -> None:
    ways = ["time.sleep(7); sys.exit(0)", "os._exit(0)", "sys.exit()", "pass"]
    each = f"exec({ways!r}[int(os.environ['RANK'])])"
    start(cluster, each, each, flags=("--hang-limit-s=250",), processes_per_node=2)

    assert cluster.end(within_s=scaled(40)) == {0: 0, 1: 0}, cluster.all_logs()


# test_hangs has the same without processes.
@pytest.mark.full
def test_a_node_that_exits_at_once_is_the_cause_of_a_broken_connection(cluster: Cluster) -> None:
    start(cluster, "pass", "time.sleep(4); raise ConnectionResetError('gone')")

    assert cluster.end(within_s=scaled(30)) == {0: 1, 1: 1}, cluster.all_logs()
    last = cluster.log(0).splitlines()[-1]
    assert "rank 0: ConnectionResetError: gone; before that node 1 exited with 0 after" in last


# Without processes: test_hangs.py.
@pytest.mark.full
def test_a_silent_program_hangs_and_the_message_names_what_counts_as_progress(
    lone_node: Cluster,
) -> None:
    # A member of a process group counts as connected, so nothing else is suspected. Importing torch
    # takes seconds on a busy machine.
    joins = "import torch.distributed as dist; dist.init_process_group('gloo'); time.sleep(600)"
    start(lone_node, joins, joins, flags=("--hang-limit-s=20",), processes_per_node=2)

    assert lone_node.end(within_s=scaled(60)) == {0: 75}, lone_node.all_logs()
    last = lone_node.log(0).splitlines()[-1]
    assert "the program hangs: for 20 s (--hang-limit-s) no node printed anything" in last
    assert "node 0 has printed nothing; if the program is silent for longer, raise" in last
    assert "TRAINIUM_PROGRESS_FILE" in last


# Without processes: test_hangs.py.
@pytest.mark.full
def test_output_or_a_heartbeat_file_of_one_rank_counts_as_progress(lone_node: Cluster) -> None:
    signs = (
        "print('.', flush=True)",
        "open(os.environ['TRAINIUM_PROGRESS_FILE'], 'w').close()",
    )
    # Each for longer than the limit.
    lively = "\n".join(f"[({sign}, time.sleep(1)) for _ in range(8)]" for sign in signs)
    flags = ("--hang-limit-s=6",)
    start(lone_node, lively, "time.sleep(16)", flags=flags, processes_per_node=2)

    assert lone_node.end(within_s=scaled(50)) == {0: 0}, lone_node.all_logs()


# A worker that ignores it: tests/training/launcher/test_failure_model.py.
@pytest.mark.full
def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(lone_node: Cluster) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); work()"
    start(lone_node, ignore, ignore, flags=("--stop-grace-s=3",))
    lone_node.wait_for("still works", node=0)
    started = time.monotonic()

    os.kill(lone_node.launcher(0), signal.SIGTERM)

    assert lone_node.end(within_s=scaled(20)) == {0: 143}, lone_node.all_logs()
    assert time.monotonic() - started >= 2
    assert "the program is still running 2 s after SIGTERM, so it is killed" in lone_node.log(0)


# Without processes: tests/training/launcher/test_verdict.py.
@pytest.mark.full
def test_a_survivor_that_swallows_the_broken_connection_does_not_end_the_run(
    cluster: Cluster,
) -> None:
    lost = cluster.folder / "lost"
    wait = f"while not os.path.exists({str(lost)!r}): time.sleep(0.05)"
    start(cluster, "work()", f"{wait}\nos._exit(1)")
    cluster.wait_for("still works", node=1)

    os.kill(cluster.launcher(1), signal.SIGKILL)
    lost.touch()

    assert cluster.end(within_s=scaled(30)) == {0: 75, 1: 137}, cluster.all_logs()
    assert "node 1 was lost: its launcher " in cluster.log(0).splitlines()[-1]


# Without nodes: snapshots/test_last_snapshot.py.
@pytest.mark.full
def test_a_stop_does_not_wait_for_the_files_of_a_lost_node(cluster: Cluster) -> None:
    """Volcano stops the other pods of a job as soon as one has failed."""
    start(cluster, "work()", flags=("--stop-grace-s=500", "--snapshot-every-s=1"))
    cluster.wait_for("still works", node=1)

    os.kill(cluster.launcher(1), signal.SIGKILL)
    os.kill(cluster.launcher(0), signal.SIGTERM)

    ended = cluster.end(within_s=scaled(30))
    assert ended[1] == 137, cluster.all_logs()
    assert ended[0] in (75, 143)  # whichever reached the launcher first


def test_a_program_is_not_blamed_for_output_without_a_reader(lone_node: Cluster) -> None:
    start(lone_node, "work()")
    lone_node.wait_for("still works", node=0)
    (output,) = (
        pid
        for pid in lone_node.processes()
        if b"training.program.output" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )

    os.kill(output, signal.SIGKILL)

    assert lone_node.end(within_s=scaled(30)) == {0: 75}, lone_node.all_logs()
    last = lone_node.log(0).splitlines()[-1]
    assert "node 0: the process that forwards the program's output was killed by signal 9" in last
