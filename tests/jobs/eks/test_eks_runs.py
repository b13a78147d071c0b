"""list, status, logs and stop of runs on a cluster, alongside runs on Batch."""

from __future__ import annotations

import time

from jobs.eks.describe import summarize
from tests.emulators.volcano_jobs import job
from tests.jobs.eks.conftest import EksCli
from tests.support.schemas import conforms


def test_list_contains_runs_of_both_orchestrators(eks: EksCli) -> None:
    eks.cli.submitted("on-batch")
    eks.has("on-eks", "sleep 30")
    runs = {run["run"]: run for run in eks.document("list")["runs"]}

    assert {name: run["orchestrator"] for name, run in runs.items()} == {
        "on-batch": "batch",
        "on-eks": "eks",
    }
    assert runs["on-eks"]["num_nodes"] == 2


def test_status_names_pod_of_rank_0(eks: EksCli) -> None:
    eks.has("gang", "sleep 30")
    eks.wait("gang", "Running")
    document = eks.document("status", "gang")

    conforms("jobs-status", document)
    assert document["status"] == "RUNNING"
    assert [(node["node"], node["pod"]) for node in document["nodes"]] == [
        (0, "gang-node-0-0"),
        (1, "gang-node-1-0"),
    ]
    assert "rank 0 runs in pod gang-node-0-0" in eks.run("status", "gang").stdout


def test_gang_larger_than_cluster_waits_with_scale_command(eks: EksCli) -> None:
    eks.has("gang", "true", nodes=3)
    eks.wait("gang", "Pending")
    result = eks.run("status", "gang")

    assert "run gang: RUNNABLE, 3 nodes" in result.stdout
    assert "the job needs 3 nodes, 2 are ready" in result.stdout
    assert "python -m jobs --region us-west-2 scale --nodes 3" in result.stdout


def test_gang_that_fits_no_node_shows_volcano_message(eks: EksCli) -> None:
    eks.has("picky", "true", tolerates=False)
    eks.wait("picky", "Pending")
    time.sleep(1)

    assert "Volcano cannot place the gang: 2/2 tasks in gang unschedulable" in (
        eks.run("status", "picky").stdout
    )


def test_gang_behind_another_run_names_it(eks: EksCli) -> None:
    eks.has("first", "sleep 30")
    eks.wait("first", "Running")
    eks.has("second", "true", nodes=2)
    eks.wait("second", "Pending")

    assert "run first (2 nodes) is running" in eks.run("status", "second").stdout


def test_workload_error_ends_run_with_its_exit_code(eks: EksCli) -> None:
    eks.has("broken", 'test "$TRAINIUM_NODE_INDEX" = 1 && exit 1; sleep 30')
    eks.wait("broken", "Terminated")
    document = eks.document("status", "broken")

    assert document["status"] == "FAILED"
    assert [attempt["exit_code"] for attempt in document["attempts"]] == [1]
    assert document["explanation"]["meaning"] == "the workload raised an error"


def test_failed_run_has_no_attempts_left(eks: EksCli) -> None:
    eks.has("never", "exit 75", nodes=1)
    eks.wait("never", "Failed")
    result = eks.run("status", "never")

    assert result.exit_code == 0
    assert "no attempts left" in result.stdout


def test_logs_of_failed_run_outlive_its_nodes(eks: EksCli) -> None:
    main = 'test "$TRAINIUM_NODE_INDEX" = 0 && sleep 1 && exit 75'
    eks.has("failed", f'echo "hello from $TRAINIUM_NODE_INDEX"; {main}; exec sleep 30')
    eks.wait("failed", "Failed")
    eks.nodes(0)
    while eks.pods():
        time.sleep(0.05)
    expected = [
        f"node {node}{attempt} | hello from {node}"
        for attempt in ("", ", attempt 2", ", attempt 3")
        for node in (0, 1)
    ]

    assert sorted(eks.run("logs", "failed").stdout.splitlines()) == sorted(expected)
    assert sorted(eks.run("logs", "failed", "--follow").stdout.splitlines()) == sorted(expected)


def test_follow_continues_through_retry_without_losing_lines(eks: EksCli) -> None:
    script = 'echo "attempt $TRAINIUM_ATTEMPT"; sleep 3; test "$TRAINIUM_ATTEMPT" = 1 || exit 75'
    eks.has("again", script, nodes=1)
    result = eks.run("logs", "again", "--follow")

    assert result.exit_code == 0, result.stderr
    assert result.stdout == "node 0 | attempt 0\nnode 0, attempt 2 | attempt 1\n"
    assert "attempt 1 of 3 ended, a pod failed or was lost; Volcano starts another attempt" in (
        result.stderr
    )


def test_stopped_run_names_user(eks: EksCli) -> None:
    eks.has("endless", "trap 'exit 143' TERM; sleep 60 & wait")
    eks.wait("endless", "Running")
    document = eks.document("stop", "endless", "--wait", "20")

    conforms("jobs-stop", document)
    assert document["ended"]
    assert document["outcome"]["status"] == "FAILED"
    assert document["outcome"]["status_reason"].startswith("stopped by ")


def test_unknown_run_gets_suggestion_from_both_orchestrators(eks: EksCli) -> None:
    eks.has("nightly-1", "sleep 30")

    assert "did you mean 'nightly-1'" in eks.run("status", "nightly").stderr


def test_newest_condition_of_phase_wins_if_volcano_keeps_all() -> None:
    """Conditions as left by Volcano 1.15.0 after a restart (volcano-sh/volcano, syncJob)."""
    times = (
        ("Pending", "10:00"), ("Running", "10:05"), ("Restarting", "10:30"),
        ("Pending", "10:31"), ("Running", "10:40"), ("Completed", "11:31"),
    )  # fmt: skip
    conditions = [
        {"status": phase, "lastTransitionTime": f"2026-01-01T{time}:00Z"} for phase, time in times
    ]
    state = {"phase": "Completed", "lastTransitionTime": "2026-01-01T11:31:00Z"}
    found = summarize(
        {**job("again", ["true"]), "status": {"state": state, "conditions": conditions}}
    )

    assert found.started_at_ms is not None and found.stopped_at_ms is not None
    assert found.stopped_at_ms - found.started_at_ms == 3_600_000
