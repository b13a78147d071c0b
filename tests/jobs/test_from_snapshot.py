"""Resuming a program's run from an older snapshot, or from none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.programs import dry_run, ended, record, running, snapshot, submitted
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms


@pytest.fixture
def run(cli: Cli, program: Path) -> Cli:
    """A run `x` with snapshots 7, 8 and 9."""
    submitted(cli, "./train.py", "--name", "x")
    ended(cli)
    for number in (7, 8, 9):
        cli.put(manifest_key(number), snapshot(number, number - 6))
    return cli


def manifest_key(number: int) -> str:
    return f"runs/x/snapshots/{number:08d}.json"


def manifest(cli: Cli, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli.read(manifest_key(number)))
    conforms("snapshot", found)
    return found


def test_selected_snapshot_becomes_newest(run: Cli) -> None:
    said = submitted(run, "./train.py", "--name", "x", "--from-snapshot", "7")

    assert "run x: resumes from snapshot 7, 2026-11-22T14:00:07+00:00 (" in said
    assert "1 file, 1 kB; not from 8 and 9\n" in said
    assert manifest(run, 10) == {**manifest(run, 7), "number": 10, "chosen": 7}
    assert [item.get("from_snapshot") for item in record(run)] == [None, "7"]
    conforms("program", {"format": 1, "submissions": record(run)})

    shown = run.run("code", "x").stdout.splitlines()
    assert ", from snapshot 7: train.py" in shown[1]
    ended(run)
    said = submitted(run, "./train.py", "--name", "x")
    assert "resumes from snapshot 10 (a copy of 7), 2026-11-22T14:00:07" in said
    assert len(run.keys("runs/x/snapshots/")) == 4


def test_none_starts_over_with_compiled_graphs(run: Cli) -> None:
    newest = manifest(run, 9)
    graph = {**newest["files"][0], "root": "cache", "path": "a.neff", "bytes": 7}
    links = [{"root": "checkpoints", "path": "last", "target": "0.pt"}]
    run.put(manifest_key(9), {**newest, "files": [*newest["files"], graph], "links": links})

    said = submitted(run, "./train.py", "--name", "x", "--from-snapshot", "none")

    assert "run x: no snapshot, starts over; not from 7, 8 and 9\n" in said
    made = manifest(run, 10)
    assert (made["chosen"], made["bytes"], made["files"], made["links"]) == (0, 7, [graph], [])
    ended(run)
    assert "starts over\n" in submitted(run, "./train.py", "--name", "x")
    assert_refused(run.run("download", "x", "--to", "here"), "run x has no complete snapshot")


def test_newest_snapshot_can_be_selected(run: Cli) -> None:
    submitted(run, "./train.py", "--name", "x", "--from-snapshot", "9")

    assert len(run.keys("runs/x/snapshots/")) == 3
    assert record(run)[-1]["from_snapshot"] == "9"


def test_dry_run_writes_no_snapshot(run: Cli) -> None:
    found = dry_run(run, "./train.py", "--name", "x", "--from-snapshot", "8")

    assert found["plan"]["program"]["continues_from_snapshot"] == 8
    assert len(run.keys("runs/x/snapshots/")) == 3


@pytest.mark.parametrize("word", ["6", "-1"])
def test_missing_snapshot_is_refused_with_existing_ones(run: Cli, word: str) -> None:
    assert_refused(
        run.run("submit", "./train.py", "--name", "x", "--yes", f"--from-snapshot={word}"),
        f"--from-snapshot {word}: run x has no such snapshot",
        "it has 9 (2026-11-22T14:00:09+00:00, 3 files, 3 kB), 8 (",
        "1 file, 1 kB); choose one of them",
    )
    assert len(record(run)) == 1


def test_run_without_snapshots_is_refused(cli: Cli, program: Path) -> None:
    words = ("submit", "./train.py", "--yes", "--from-snapshot")

    assert_refused(
        cli.run(*words, "3"), "a new run has no snapshots; specify an existing run", "--name"
    )
    assert_refused(cli.run(*words, "3", "--name", "x"), "it has none; omit the option")
    assert cli.run(*words, "none", "--name", "x").exit_code == 0
    assert cli.keys("runs/x/snapshots/") == []


def test_running_job_is_refused(run: Cli) -> None:
    submitted(run, "./train.py", "--name", "x")
    running(run)

    assert_refused(
        run.run("submit", "./train.py", "--name", "x", "--yes", "--from-snapshot", "7"),
        "run x is already RUNNING", "--from-snapshot 7 selects where a job starts", "stop x",
    )  # fmt: skip


def test_built_in_workload_has_no_snapshots(cli: Cli) -> None:
    assert_refused(
        cli.run("submit", "all-reduce", "--yes", "--from-snapshot", "3"),
        "--from-snapshot: all-reduce is not a program of your own",
    )
