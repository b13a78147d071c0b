"""Programs that start their own processes hang under torchrun: the launcher's diagnosis."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.limits import scaled
from tests.training.nodes import CPU_NODE
from tests.training.program.bundles import program
from training.core.progress import WorkerState
from training.launcher.evidence import collect
from training.launcher.hangs import BEGINNING_S, ProgramObserver
from training.launcher.messages import Evidence
from training.launcher.verdict import Verdict
from trainium_catalogue.exit_codes import ExitCode

if TYPE_CHECKING:
    from tests.training.conftest import Cluster

HANG_S = 1800.0
SPAWNS = """
import os
import torch.distributed as dist, torch.multiprocessing as mp

def main(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world)

if __name__ == "__main__":
    print("begins", flush=True)
    mp.spawn(main, args=(2,), nprocs=2)
"""
LAUNCHES = """
import subprocess
subprocess.run(["accelerate", "launch", "--cpu", "--num_processes=2", "inner.py"], check=True)
"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # Slower than the second case, because each spawned process imports torch.
        pytest.param(
            SPAWNS,
            "node 0 has printed 2 lines, rank 0 has started 2 child processes (by "
            "multiprocessing's spawn, as in mp.spawn)",
            marks=pytest.mark.full,
        ),
        (LAUNCHES, "(accelerate launch)"),
    ],
)  # fmt: skip
def test_a_program_waiting_for_its_own_processes_ends_with_the_reason_and_is_not_retried(
    lone_node: Cluster, script: str, expected: str
) -> None:
    inner = "import torch.distributed as dist; dist.init_process_group('gloo')"
    flags = program(lone_node.folder, ("inner.py", inner), script=script)
    lone_node.start(
        *(*flags, "--hang-limit-s=8"),
        workload="program",
        extra={"TRAINIUM_PROCESSES_PER_NODE": "2"},
    )

    assert lone_node.end(within_s=scaled(60)) == {0: ExitCode.WORKLOAD}, lone_node.all_logs()
    last = lone_node.log(0).splitlines()[-1]
    assert expected in last
    assert "so no process group was formed; it would hang again, so it is not retried" in last
    assert "raise --hang-limit-s" not in last
    # Where it waits: in mp.spawn, or for the command.
    log = lone_node.log(0)
    assert "launch: program: stack of rank 0" in log
    assert 'train.py", line ' in log[log.index("stack of rank 0") :]


def evidence(**changes: object) -> Evidence:
    """Two ranks that wait for processes that they started."""
    waits = Evidence(
        ranks=2, connected=0, lines=1, has_worked=False, rank=0, started=2, command="torchrun",
        is_launcher=True,
    )  # fmt: skip
    return replace(waits, **changes)  # type: ignore[arg-type]


def hung(*seen: Evidence, moved_s: float = 1.0, processes_per_node: int = 2) -> Verdict:
    node = replace(CPU_NODE, num_nodes=len(seen), processes_per_node=processes_per_node)
    job = ProgramObserver(node, hang_limit_s=HANG_S, now_s=0.0)
    for index, each in enumerate(seen):
        job.note(index, {"type": "prepared"}, 0.0)
        job.note(index, {"type": "seen", **asdict(each)}, 0.0)
    job.program_started(0.0)
    job.note(0, {"type": "moved", "doing": "", "compiling": False}, moved_s)
    verdict = job.verdict(moved_s + HANG_S + 1)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    "seen",
    [
        evidence(is_launcher=False),
        evidence(connected=1),
        evidence(has_worked=True),
    ],
)
def test_without_clear_evidence_a_hang_is_retried(seen: Evidence) -> None:
    assert hung(evidence(), evidence()).code is ExitCode.WORKLOAD
    assert hung(evidence(started=0, is_launcher=False), evidence()).code is ExitCode.WORKLOAD
    assert hung(seen).code is ExitCode.HOST
    if not seen.is_launcher:
        return
    assert hung(evidence(), seen).code is ExitCode.HOST


def test_a_custom_address_is_suspected_only_where_no_rank_is_connected() -> None:
    apart = evidence(lines=0, started=0, is_launcher=False)
    verdict = hung(apart, apart)

    assert verdict.code is ExitCode.HOST
    assert "node 0 has printed nothing, no rank there is connected to another" in verdict.reason
    assert "if it assigns MASTER_ADDR or MASTER_PORT" in verdict.reason
    assert "MASTER_ADDR" not in hung(replace(apart, connected=1), apart).reason


def test_a_longer_lived_or_single_program_may_hang_for_another_reason() -> None:
    assert hung(evidence(), moved_s=BEGINNING_S + 1).code is ExitCode.HOST
    assert "started its 2 processes on each node" in hung(evidence(), evidence()).reason
    one = hung(evidence(), evidence(), processes_per_node=1)
    assert "torchrun has already started its process on each node, so have it" in one.reason
    alone = hung(evidence(), processes_per_node=1)
    assert alone.code is ExitCode.HOST
    assert "if these wait for each other, have it call its training function" in alone.reason
    assert "raise --hang-limit-s" not in alone.reason
    assert "raise --hang-limit-s" in hung(evidence(has_worked=True)).reason


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/x/bin/torchrun --nproc-per-node 8 x.py", "torchrun"),
        ("python -m torch.distributed.run x.py", "torch.distributed.run"),
        ("python /x/bin/accelerate launch x.py", "accelerate launch"),
        ("deepspeed x.py", "deepspeed"),
        ("/usr/bin/ffmpeg -i torchrun.mp4", ""),
        ("git clone deepspeed", ""),
    ],
)
def test_launchers_are_recognized_by_command(tmp_path: Path, command: str, shown: str) -> None:
    for pid, parent, words in ((1, 0, "python"), (2, 1, command)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) S {parent} 0")
        (tmp_path / str(pid) / "cmdline").write_text(words.replace(" ", "\0"))
    state = WorkerState(pid=1, rank=0, step="", ready=True, done=False)

    seen = collect([state], lines=0, has_worked=False, proc=tmp_path)

    assert seen.is_launcher == bool(shown)
    assert seen.command == (shown or command.removeprefix("/usr/bin/"))


def test_data_loader_workers_are_not_launchers() -> None:
    script = (
        "import multiprocessing as mp, time\n"
        "context = mp.get_context('fork')\n"
        "[context.Process(target=time.sleep, args=(60,), daemon=True).start() for _ in range(3)]\n"
        "print(flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            rank.stdout.readline()
            state = WorkerState(pid=rank.pid, rank=5, step="", ready=True, done=False)
            seen = collect([state], lines=0, has_worked=False)
        finally:
            subprocess.run(["pkill", "-P", str(rank.pid)], check=False)
            rank.kill()
    assert (seen.rank, seen.started, seen.is_launcher) == (5, 3, False)
    assert seen.connected == 0
