"""The list of runs on terminals of any width, and attempts without nodes."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from jobs.output.screen import verdict
from jobs.output.tables import node_table, runs_table
from tests.jobs.samples import ATTEMPT, JOB, NODE, RUN
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

NAMES = tuple(f"prepare-20261121-1422{index:02d}-ab{index:02d}" for index in range(4))
FAILED_RUN = replace(
    RUN,
    status="FAILED",
    created_at_ms=1_000,
    started_at_ms=2_000,
    stopped_at_ms=5_000,
    num_nodes=1,
    hardware=Hardware.CPU,
)
RUNS = [replace(FAILED_RUN, run=name, exit_code=75) for name in NAMES]
HOST = replace(ATTEMPT, exit_code=75)
FAILED = replace(JOB, status="FAILED", started_at_ms=1_000, stopped_at_ms=3_000)


def printed(table: Table, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(140, []), (100, ["last attempt"]), (80, ["last attempt", "submitted"])],
)
def test_names_are_not_truncated_for_other_columns(width: int, left_out: list[str]) -> None:
    table, without = runs_table(RUNS, width=width)
    text = printed(table, width)

    assert [name for name in NAMES if name not in text] == []
    assert "FAILED" in text
    assert without == left_out


def test_name_wider_than_terminal_is_folded() -> None:
    table, _ = runs_table([replace(FAILED_RUN, run="a" * 90)], width=40)

    assert printed(table, 40).count("a") - printed(table, 40).count("status") == 90


def test_failed_container_shows_reason_in_list() -> None:
    table, _ = runs_table(RUNS, width=140)

    assert "exit code 75: a peer was lost" in printed(table, 140)


def test_attempts_without_pods_are_in_node_table() -> None:
    node = replace(NODE, status="FAILED")
    stopped = replace(HOST, number=2, exit_code=143, reason="node 0: stop requested")
    job = replace(FAILED, attempts=(HOST, stopped), nodes=(node,), orchestrator=Orchestrator.EKS)
    text = printed(node_table(job), 140)

    assert "all │       1 │ FAILED │        75 │ a peer was lost" in text
    assert "all │       2 │ FAILED │       143 │ node 0: stop requested; stopped on request" in text


def test_stopped_run_is_not_called_failed() -> None:
    reason = "stopped by ann with jobs stop"
    gone = tuple(replace(NODE, index=index, status="FAILED") for index in range(2))
    job = replace(FAILED, nodes=gone, status_reason=reason)

    assert verdict(job, bucket="bucket") == (
        "run nightly was stopped by ann with jobs stop, after 2 s; submit it again to resume"
    )
    assert printed(node_table(job), 140).count("FAILED") == 1
    assert reason in printed(node_table(job), 140)
