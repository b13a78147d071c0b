"""How a program ends, and what the job makes of it: the same codes as for any workload."""

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

# Rank 1 does what it is told, rank 0 goes on.
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


def start(cluster: Cluster, *argv: str, flags: tuple[str, ...] = ()) -> None:
    words = [*program(cluster.folder, script=SCRIPT), "--peer-timeout-s=3", *flags]
    cluster.start(*words, "--", *argv, workload="program")


@pytest.mark.parametrize(
    ("action", "code", "text"),
    [
        ("deeper()", 1, "node 1: rank 1: ValueError: bad data"),
        ("sys.exit('no data at all')", 1, "node 1: rank 1: sys.exit: no data at all"),
        ("sys.exit(3)", 1, "node 1: rank 1: sys.exit(3)"),
        (
            "import argparse; argparse.ArgumentParser().parse_args(['--epoch', '3'])",
            1,
            "node 1: rank 1: sys.exit(2), error: unrecognized arguments: --epoch 3",
        ),
        (
            "print('Try --help'); print('Error: No such option'); sys.exit(2)",
            1,
            "node 1: rank 1: sys.exit(2), after: Error: No such option",
        ),
        (
            "try:\n  deeper()\nexcept ValueError:\n  sys.exit(4)",
            1,
            "node 1: rank 1: sys.exit(4) while it handled ValueError: bad data",
        ),
        ("os._exit(3)", 1, "node 1: rank 1 ended with exit code 3, without an exception"),
        ("os.abort()", 75, "node 1: rank 1 was killed by SIGABRT"),
        ("os.kill(os.getpid(), 11)", 75, "node 1: rank 1 was killed by SIGSEGV"),
        ("os.kill(os.getpid(), 9)", 75, "node 1: rank 1 was killed by SIGKILL"),
        ("raise ConnectionResetError('gone')", 75, "node 1: rank 1: ConnectionResetError: gone"),
    ],
)
def test_the_end_of_one_rank_ends_the_job_with_its_reason(
    cluster: Cluster, action: str, code: int, text: str
) -> None:
    start(cluster, action)

    assert cluster.end(within_s=scaled(30)) == {0: code, 1: code}, cluster.all_logs()
    for node in (0, 1):
        assert text in cluster.log(node).splitlines()[-1], cluster.all_logs()
    assert "ChildFailedError" not in cluster.all_logs()


def test_a_traceback_is_in_the_log_without_lines_of_the_launcher(cluster: Cluster) -> None:
    start(cluster, "deeper()")

    cluster.end(within_s=scaled(30))
    log = cluster.log(1)
    trace = log[log.index("Traceback") : log.index("ValueError")]
    assert 'train.py", line ' in trace
    assert "worker.py" not in trace


@pytest.mark.parametrize("action", ["os._exit(0)", "sys.exit()", "sys.exit(0)", "pass"])
def test_a_program_that_ends_with_0_everywhere_is_a_success(cluster: Cluster, action: str) -> None:
    start(cluster, action, action)

    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()


def test_exit_handlers_still_run_after_an_error(cluster: Cluster) -> None:
    last = "lambda: (time.sleep(1), print('LAST WORDS'.lower()))"
    start(cluster, f"import atexit; atexit.register({last}); deeper()")

    assert cluster.end(within_s=scaled(30)) == {0: 1, 1: 1}, cluster.all_logs()
    assert "last words" in cluster.log(1)


def test_a_node_that_ends_at_once_is_named_when_the_others_wait_for_it(cluster: Cluster) -> None:
    start(
        cluster, "pass", "print('waits', flush=True); time.sleep(600)", flags=("--hang-limit-s=20",)
    )

    assert cluster.end(within_s=scaled(30)) == {0: 1, 1: 1}, cluster.all_logs()
    last = cluster.log(0).splitlines()[-1]
    assert "node 1 ended with 0 after " in last
    assert " s, without a line of output, while the others still worked" in last


def test_a_node_that_ends_at_once_is_the_cause_of_a_broken_connection(cluster: Cluster) -> None:
    start(cluster, "pass", "time.sleep(4); raise ConnectionResetError('gone')")

    assert cluster.end(within_s=scaled(30)) == {0: 1, 1: 1}, cluster.all_logs()
    last = cluster.log(0).splitlines()[-1]
    assert "rank 0: ConnectionResetError: gone; before that node 1 ended with 0 after" in last


def test_a_rank_that_works_on_alone_is_no_fault(cluster: Cluster) -> None:
    start(cluster, "pass", "time.sleep(12)", flags=("--hang-limit-s=250",))

    assert cluster.end(within_s=scaled(40)) == {0: 0, 1: 0}, cluster.all_logs()


def test_silence_on_all_nodes_is_a_hang_and_says_what_counts(cluster: Cluster) -> None:
    start(cluster, "time.sleep(600)", "time.sleep(600)", flags=("--hang-limit-s=10",))

    assert cluster.end(within_s=scaled(30)) == {0: 75, 1: 75}, cluster.all_logs()
    last = cluster.log(1).splitlines()[-1]
    assert "the program hangs: for 10 s (--hang-limit-s) no node printed anything" in last
    assert "TRAINIUM_PROGRESS_FILE" in last


@pytest.mark.parametrize(
    "alive", ["print('.', flush=True)", "open(os.environ['TRAINIUM_PROGRESS_FILE'], 'w').close()"]
)
def test_a_sign_of_life_on_one_node_is_enough(cluster: Cluster, alive: str) -> None:
    lively = f"[({alive}, time.sleep(1)) for _ in range(25)]"
    start(cluster, lively, "time.sleep(25)", flags=("--hang-limit-s=12",))

    assert cluster.end(within_s=scaled(40)) == {0: 0, 1: 0}, cluster.all_logs()


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(cluster: Cluster) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); work()"
    start(cluster, ignore, ignore, flags=("--stop-grace-s=3",))
    cluster.wait_for("still works", node=0)
    started = time.monotonic()

    os.kill(cluster.launcher(0), signal.SIGTERM)

    assert cluster.end(within_s=scaled(20)) == {0: 143, 1: 143}, cluster.all_logs()
    assert time.monotonic() - started >= 2
    assert "the program still runs 2 s after SIGTERM and is killed" in cluster.log(0)


def test_a_program_may_handle_sigterm_itself(cluster: Cluster) -> None:
    handle = (
        "signal.signal(signal.SIGTERM, lambda *_: (print('saves', flush=True), time.sleep(1), "
        "print('SAVED'.lower(), flush=True), sys.exit(0))); work()"
    )
    start(cluster, handle, handle)
    cluster.wait_for("still works", node=0)
    cluster.wait_for("still works", node=1)

    os.kill(cluster.launcher(0), signal.SIGTERM)

    assert cluster.end(within_s=scaled(20)) == {0: 143, 1: 143}, cluster.all_logs()
    assert "saved" in cluster.log(0)
    assert "saved" in cluster.log(1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_launcher_ends_a_program_for_a_retry(
    cluster: Cluster, number: signal.Signals
) -> None:
    start(cluster, "work()")
    cluster.wait_for("still works", node=1)

    os.kill(cluster.launcher(1), number)

    assert cluster.end(within_s=scaled(20)) == {0: 75, 1: 137}, cluster.all_logs()
    assert "node 1 was lost: its launcher " in cluster.log(0)


@pytest.mark.parametrize("ending", ["os._exit(1)", "sys.exit(1)"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_survivor_that_hides_the_broken_connection_does_not_end_the_run(
    cluster: Cluster, number: signal.Signals, ending: str
) -> None:
    lost = cluster.folder / "lost"
    wait = f"while not os.path.exists({str(lost)!r}): time.sleep(0.05)"
    start(cluster, "work()", f"{wait}\n{ending}")
    cluster.wait_for("still works", node=1)

    os.kill(cluster.launcher(1), number)
    lost.touch()

    assert cluster.end(within_s=scaled(30)) == {0: 75, 1: 137}, cluster.all_logs()
    assert "node 1 was lost: its launcher " in cluster.log(0).splitlines()[-1]


def test_nobody_waits_for_the_files_of_a_lost_node_when_told_to_stop(cluster: Cluster) -> None:
    """Volcano stops the other pods of a job as soon as one has failed."""
    start(cluster, "work()", flags=("--stop-grace-s=500", "--snapshot-every-s=1"))
    cluster.wait_for("still works", node=1)

    os.kill(cluster.launcher(1), signal.SIGKILL)
    os.kill(cluster.launcher(0), signal.SIGTERM)

    ended = cluster.end(within_s=scaled(30))
    assert ended[1] == 137, cluster.all_logs()
    assert ended[0] in (75, 143)  # whichever the launcher heard of first


def test_a_frozen_worker_is_found_by_the_silence_of_all(cluster: Cluster) -> None:
    wait = "import torch.distributed as dist; dist.init_process_group('gloo'); print('joined')"
    loop = "while True: dist.barrier(); time.sleep(0.1); print('STEP'.lower(), flush=True)"
    both = f"{wait}\n{loop}"
    start(cluster, both, both, flags=("--hang-limit-s=25",))
    cluster.wait_for("step", node=1, within_s=scaled(30))

    os.kill(cluster.worker(1), signal.SIGSTOP)

    assert cluster.end(within_s=scaled(20)) == {0: 75, 1: 75}, cluster.all_logs()
    assert "the program hangs" in cluster.log(0).splitlines()[-1]


def test_a_program_is_not_blamed_for_an_output_that_nobody_takes(cluster: Cluster) -> None:
    start(cluster, "work()")
    cluster.wait_for("still works", node=1)
    (output,) = (
        pid
        for pid in cluster.processes()
        if b"training.program.output" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and cluster.address(1).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    )

    os.kill(output, signal.SIGKILL)

    assert cluster.end(within_s=scaled(30)) == {0: 75, 1: 75}, cluster.all_logs()
    last = cluster.log(0).splitlines()[-1]
    assert "node 1: the launcher's process for the program's output was killed by signal 9" in last


def test_a_killed_torchrun_ends_a_program_for_a_retry(cluster: Cluster) -> None:
    start(cluster, "work()")
    cluster.wait_for("still works", node=1)
    stat = Path(f"/proc/{cluster.worker(1)}/stat").read_text()
    agent = int(stat.rpartition(")")[2].split()[1])

    os.kill(agent, signal.SIGKILL)

    assert cluster.end(within_s=scaled(20)) == {0: 75, 1: 75}, cluster.all_logs()
    assert "node 1: torchrun was killed by signal 9" in cluster.log(0).splitlines()[-1]
