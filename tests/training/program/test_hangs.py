"""When the silence of a program is a hang, and which node is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE, node_on
from training.core.contract import DeviceKind, NodeContract
from training.core.progress import ENV_SCRATCH, MAX_COMPILE_S
from training.launcher.evidence import CompileCacheWatch, ProgramLiveness
from training.launcher.hangs import DEPARTURE_LIMIT_S, ProgramObserver
from training.launcher.messages import IMMEDIATE_EXIT_S, Departure, Message, ProgressReport
from training.launcher.verdict import Verdict
from training.program.snapshots.graphs import unlock
from trainium_catalogue.exit_codes import ExitCode

HANG_S = 1800.0
SILENT = Departure(after_s=2.0, lines=0)
BROKEN = Verdict(code=ExitCode.HOST, reason="rank 0: gone", symptom=True)


def watch(
    *left: tuple[int, Departure], prepared: int = 2, node: NodeContract = CPU_NODE
) -> ProgramObserver:
    """A two-node job without progress since second 0."""
    job = ProgramObserver(replace(node, num_nodes=2), hang_limit_s=HANG_S, now_s=0.0)
    for index in range(prepared):
        job.note(index, {"type": "prepared"}, 0.0)
    for index, how in left:
        job.note(index, {"type": "left", **asdict(how)}, 0.0)
    return job


def moved(doing: str = "", *, compiling: bool = False) -> Message:
    return {"type": "moved", **asdict(ProgressReport(doing=doing, compiling=compiling))}


def test_any_node_keeps_the_job_alive() -> None:
    job = watch()
    job.note(1, moved(), 1000.0)

    assert job.verdict(1000.0 + HANG_S) is None
    hang = job.verdict(1001.0 + HANG_S)
    assert hang is not None
    assert hang.code is ExitCode.HOST


def test_the_wait_for_a_preparing_node_names_its_phase() -> None:
    job = watch(prepared=1)
    job.note(1, moved("--dataset wiki: 3 of 9 MiB"), 0.0)

    hang = job.verdict(HANG_S + 1)

    assert hang is not None
    assert "made no progress for 1800 s: node 1 at: --dataset wiki: 3 of 9 MiB" in hang.reason


@pytest.mark.parametrize(
    ("left", "limit_s"),
    [
        (SILENT, DEPARTURE_LIMIT_S),
        (Departure(after_s=2.0, lines=1), HANG_S),
        (Departure(after_s=IMMEDIATE_EXIT_S + 1, lines=0), HANG_S),
    ],
)
def test_only_an_early_exit_shortens_the_wait(left: Departure, limit_s: float) -> None:
    job = watch((1, left))

    assert job.verdict(limit_s) is None
    assert job.verdict(limit_s + 1) is not None


def test_an_early_exit_is_the_cause_of_later_failures() -> None:
    told = watch((1, SILENT)).explained(BROKEN)

    assert told.code is ExitCode.WORKLOAD
    assert told.reason == (
        "rank 0: gone; before that node 1 exited with 0 after 2 s, without a line of output, "
        "while the others were still working"
    )


@pytest.mark.parametrize("left", [(), ((0, SILENT), (1, SILENT))])
def test_without_a_node_that_left_the_others_nothing_is_added(
    left: tuple[tuple[int, Departure], ...],
) -> None:
    assert watch(*left).explained(BROKEN) == BROKEN


def test_a_lost_node_stays_a_lost_node() -> None:
    lost = replace(BROKEN, reason="node 1 was lost", symptom=False)

    assert watch((1, Departure(after_s=2.0, lines=5))).explained(lost).code is ExitCode.HOST


@pytest.mark.parametrize(
    ("node", "sign"),
    [
        (CPU_NODE, "a *.lock file"),
        (node_on("trn2.48xlarge", release="2.33.1"), "a process of neuronx-cc"),
    ],
)
def test_a_compilation_has_the_compilation_timeout(node: NodeContract, sign: str) -> None:
    job = watch((0, SILENT), node=node)
    job.note(1, moved(compiling=True), 0.0)

    assert job.verdict(float(MAX_COMPILE_S)) is None
    hang = job.verdict(MAX_COMPILE_S + 1.0)
    assert hang is not None
    assert hang.code is ExitCode.HOST
    assert f"on node 1 a compilation is in progress ({sign}" in hang.reason
    assert "for 14400 s" in hang.reason


def test_after_a_compilation_the_hang_limit_counts_again() -> None:
    job = watch()
    job.note(0, moved(compiling=True), 0.0)
    job.note(0, moved(), 3000.0)

    assert job.verdict(3000.0 + HANG_S) is None
    assert job.verdict(3001.0 + HANG_S) is not None


def test_files_of_the_compile_cache_are_a_sign_of_life(tmp_path: Path) -> None:
    cache, now_s = CompileCacheWatch(tmp_path / "cache", tmp_path), 0.0
    assert not cache.moved(now_s)  # there is none yet
    graph = tmp_path / "cache" / "neuronxcc-2.21" / "MODULE_1"
    graph.mkdir(parents=True)
    lock = graph / "model.hlo_module.pb.lock"
    lock.touch()

    assert not cache.moved(now_s + 1)  # it has just checked
    assert cache.moved(now_s + 1000)
    assert cache.compiling
    assert not cache.moved(now_s + 2000)
    lock.unlink()
    (graph / "model.neff").write_bytes(b"neff")
    assert cache.moved(now_s + 3000)
    assert not cache.compiling


def test_a_lock_of_an_exited_compiler_is_not_a_compilation(tmp_path: Path) -> None:
    (tmp_path / "model.hlo_module.pb.lock").touch()
    cache = CompileCacheWatch(tmp_path, tmp_path)
    cache.moved(0.0)
    assert cache.compiling  # it is unknown who compiles

    with compiler_running(tmp_path):
        cache.moved(1000.0)
        assert cache.compiling
    cache.moved(2000.0)
    assert not cache.compiling


def test_torchneurons_compilation_needs_no_lock(tmp_path: Path) -> None:
    """TorchNeuron's locks are in another folder, and stay there."""
    life = ProgramLiveness(
        tmp_path, tmp_path / "cache", DeviceKind.TORCH_NEURON, hang_limit_s=HANG_S
    )
    graph = tmp_path / "cache" / "neff" / "ab" / "cd"
    graph.mkdir(parents=True)
    (graph / "abcd.neff").write_bytes(b"neff")
    (graph / "left-by-another-program.lock").touch()

    assert not reports_compiling(life, 0.0)
    with compiler_running(tmp_path):
        assert reports_compiling(life, 1000.0)
    assert not reports_compiling(life, 2000.0)
    with compiler_running(tmp_path / "another-launch"):
        assert not reports_compiling(life, 3000.0)


def reports_compiling(life: ProgramLiveness, now_s: float) -> bool:
    """The latest report to the main node; without one, nothing has changed."""
    return any(message.get("compiling") for message in life.messages(now_s, ""))


@contextmanager
def compiler_running(scratch: Path) -> Iterator[None]:
    """Run a compiler of the launch with this scratch folder, until killed."""
    compiler = scratch / "bin" / "neuronx-cc"
    compiler.parent.mkdir(parents=True, exist_ok=True)
    compiler.write_text(f"#!{sys.executable} -s\nprint('compiles', flush=True); input()\n")
    compiler.chmod(0o755)
    with subprocess.Popen(
        [compiler, "compile"],
        env={**os.environ, ENV_SCRATCH: str(scratch)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"compiles\n"
        yield
        process.kill()


def test_no_worker_waits_for_an_earlier_attempts_compilation(tmp_path: Path) -> None:
    graph = tmp_path / "neuronxcc-2.21" / "MODULE_1"
    graph.mkdir(parents=True)
    for name in ("model.hlo_module.pb", "model.hlo_module.pb.lock"):
        (graph / name).touch()

    unlock(tmp_path)

    assert [path.name for path in graph.iterdir()] == ["model.hlo_module.pb"]
