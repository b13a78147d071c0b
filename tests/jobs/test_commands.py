"""`jobs list`, `status`, `logs`, `stop` and `catalogue`, and behavior common to all commands."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.jobs.conftest import Cli
from tests.support.limits import scaled
from tests.support.schemas import conforms

ROOT = Path(__file__).resolve().parents[2]
CLI = [sys.executable, "-m", "jobs"]
ENDED_MS = 1_000_000
NOW_MS = round(time.time() * 1000)  # CloudWatch refuses lines older than 14 days


def ended_attempt(
    *, exit_code: int, stream: str | None = None, started: int = 1, stopped: int = ENDED_MS
) -> dict[str, Any]:
    container: dict[str, Any] = {"exitCode": exit_code}
    if stream:
        container["logStreamName"] = stream
    return {
        "container": container,
        "startedAt": started,
        "stoppedAt": stopped,
        "statusReason": "Essential container in task exited",
    }


def write(cli: Cli, stream: str, *events: tuple[int, str]) -> None:
    logs = cli.client("logs")
    logs.create_log_stream(logGroupName="log-group", logStreamName=stream)
    logs.put_log_events(
        logGroupName="log-group",
        logStreamName=stream,
        logEvents=[{"timestamp": NOW_MS + offset, "message": text} for offset, text in events],
    )


@pytest.fixture
def failed(cli: Cli) -> Cli:
    """A run `nightly` that failed on node 1 with a workload error, after an attempt with 75."""
    job_id = cli.submitted("nightly")
    write(cli, "node/default/a1", (0, "first try"))
    write(cli, "node/default/a2", (10, "zero"), (30, "two"))
    write(cli, "node/default/b2", (20, "one"))
    first = ended_attempt(exit_code=75, stream="node/default/a1", stopped=500_000)
    second = ended_attempt(exit_code=1, stream="node/default/a2", started=600_000)
    cli.with_nodes(
        job_id,
        {"attempts": [first, second]},
        {"attempts": [ended_attempt(exit_code=1, stream="node/default/b2", started=600_001)]},
        status="FAILED",
        statusReason="Essential container in task exited",
        attempts=[first, second],
        startedAt=600_000,
        stoppedAt=ENDED_MS,
    )
    return cli


@pytest.fixture
def succeeded(cli: Cli) -> Cli:
    """A run `nightly` that succeeded on two nodes."""
    job_id = cli.submitted("nightly")
    write(cli, "node/default/a", (0, "zero"), (20, "two"))
    write(cli, "node/default/b", (10, "one"))
    cli.with_nodes(
        job_id,
        {"attempts": [ended_attempt(exit_code=0, stream="node/default/a")]},
        {"attempts": [ended_attempt(exit_code=0, stream="node/default/b")]},
        status="SUCCEEDED",
        attempts=[ended_attempt(exit_code=0, stream="node/default/a")],
        startedAt=1,
        stoppedAt=ENDED_MS,
    )
    return cli


def checked(result: Result, command: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.stdout)
    conforms(f"jobs-{command}", document)
    return document


def test_empty_list_names_deployment(cli: Cli) -> None:
    result = cli.run("list")

    assert result.exit_code == 0
    assert "no runs in deployment 'default'" in result.stderr


def test_list_is_limited(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli.submitted(name)

    result = cli.run("list", "--limit", "1")

    assert "2 older runs are not shown" in result.stderr


def test_status_shows_cause_from_end_of_log(failed: Cli) -> None:
    logs = failed.client("logs")
    logs.put_log_events(
        logGroupName="log-group",
        logStreamName="node/default/a2",
        logEvents=[
            {"timestamp": NOW_MS + 50, "message": "launch: exit 1 (failed): node 1: ValueError: x"},
            {"timestamp": NOW_MS + 60, "message": "a worker's last words"},
        ],
    )

    result = failed.run("status", "nightly")

    assert "in attempt 2: exit code 1; node 1: ValueError: x; the work" in result.stdout
    assert "took 6 min 40 s in attempt 2, 15 min 0 s in 2 attempts" in result.stdout


def test_status_exit_code_follows_state_on_request(failed: Cli) -> None:
    assert failed.run("status", "nightly", "--exit-code").exit_code == 1


def test_status_of_succeeded_run_exits_with_0(succeeded: Cli) -> None:
    assert succeeded.run("status", "nightly", "--exit-code").exit_code == 0
    result = succeeded.run("status", "nightly")

    assert result.exit_code == 0
    assert "run nightly succeeded" in result.stdout
    assert "s3://bucket/runs/nightly/results/" in result.stdout


def test_status_without_name_shows_newest_run(cli: Cli) -> None:
    cli.submitted("older")
    time.sleep(0.01)
    cli.submitted("newer")

    assert "run newer: RUNNING" in cli.run("status").stdout


def test_status_explains_waiting_run(cli: Cli) -> None:
    job_id = cli.submitted("nightly")
    reason = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity"
    cli.with_nodes(job_id, {}, {}, status="RUNNABLE", statusReason=reason)

    result = cli.run("status", "nightly")

    assert reason in result.stdout
    assert "EC2 has insufficient capacity of the type" in result.stdout


def test_status_finds_cause_if_batch_gives_none(cli: Cli) -> None:
    job_id = cli.submitted("nightly")
    cli.with_nodes(job_id, {}, {}, status="RUNNABLE")
    cli.client("batch").update_compute_environment(
        computeEnvironment="environment", state="DISABLED"
    )

    assert "the compute environment is DISABLED" in cli.run("status", "nightly").stdout


def test_logs_of_one_node_can_be_selected(succeeded: Cli) -> None:
    result = succeeded.run("logs", "nightly", "--node", "1")

    assert result.stdout.splitlines() == ["node 1 | one"]


def test_logs_label_retries(failed: Cli) -> None:
    result = failed.run("logs", "nightly")

    assert result.stdout.splitlines() == [
        "node 0 | first try",
        "node 0, attempt 2 | zero",
        "node 1, attempt 2 | one",
        "node 0, attempt 2 | two",
    ]


def test_follow_of_failed_run_exits_with_1_and_reason(failed: Cli) -> None:
    result = failed.run("logs", "nightly", "--follow")

    assert result.exit_code == 1
    assert "run nightly failed after 6 min 40 s in attempt 2: exit code 1" in result.stderr
    assert "see the log of the named node" in result.stderr


def test_follow_ends_with_last_launcher_message(failed: Cli) -> None:
    said = "launch: exit 1 (the workload raised an error): node 1: rank 33: ValueError: no"
    failed.client("logs").put_log_events(
        logGroupName="log-group",
        logStreamName="node/default/a2",
        logEvents=[{"timestamp": NOW_MS + 40, "message": said}],
    )
    result = failed.run("logs", "nightly", "--follow")

    assert "exit code 1; node 1: rank 33: ValueError: no; the workload raised" in result.stderr


def test_submit_follow_of_running_name_follows_it(cli: Cli) -> None:
    job_id = cli.submitted("nightly")
    cli.with_nodes(job_id, {}, {}, status="RUNNING")
    process = start_cli(cli, "submit", "all-reduce", "--name", "nightly", "--yes", "--follow")
    read_until(process, "RUNNING")
    cli.with_nodes(job_id, {}, {}, status="SUCCEEDED", startedAt=1, stoppedAt=2)

    _, said = process.communicate(timeout=scaled(30))

    assert process.returncode == 0
    assert "run nightly succeeded" in said


@pytest.mark.parametrize("verbose", [False, True])
def test_submit_follow_folds_startup_lines_but_logs_do_not(cli: Cli, verbose: bool) -> None:
    job_id = cli.submitted("nightly", num_nodes=1)
    first = ["launch: node 0 of 1", "launch: start: python"]
    write(cli, "node/default/a", *((5000 * i, text) for i, text in enumerate([*first, "step 1"])))
    attempt = ended_attempt(exit_code=0, stream="node/default/a")
    container = {"container": {"logStreamName": "node/default/a"}}
    cli.with_nodes(job_id, container, status="RUNNING")
    flags = ["--verbose"] if verbose else []
    process = start_cli(
        cli,
        "submit",
        "all-reduce",
        "--nodes",
        "1",
        "--name",
        "nightly",
        "--yes",
        "--follow",
        *flags,
    )
    read_until(process, "RUNNING")
    ended = {"attempts": [attempt], "startedAt": 1, "stoppedAt": ENDED_MS}
    cli.with_nodes(job_id, {"attempts": [attempt]}, status="SUCCEEDED", **ended)
    shown, said = process.communicate(timeout=scaled(30))

    all_lines = [f"node 0 | {text}" for text in (*first, "step 1")]
    assert shown.splitlines() == (all_lines if verbose else all_lines[-1:])
    told = "node 0: ready after 5 s (2 lines hidden; see --verbose or logs)"
    assert (told in said) != verbose
    assert cli.run("logs", "nightly", "--follow").stdout.splitlines() == all_lines


def start_cli(cli: Cli, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*CLI, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'constructs'}"},
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(f"ended without {text!r}: {said}")


def test_ctrl_c_leaves_job_running_and_prints_command_to_follow(cli: Cli) -> None:
    job_id = cli.submitted("nightly")
    cli.with_nodes(job_id, {}, {}, status="RUNNING")
    process = start_cli(cli, "logs", "nightly", "--follow")
    read_until(process, "RUNNING")

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=scaled(30))

    assert process.returncode == 130
    assert f"run nightly keeps running (job {job_id})" in said
    assert "python -m jobs --region us-west-2 logs nightly --follow" in said
    assert cli.jobs("nightly")[0]["status"] == "RUNNING"


def asked(cli: Cli) -> tuple[subprocess.Popen[str], int]:
    """Submit on a terminal; return the process at its prompt, and our end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*CLI, "submit", "all-reduce", "--nodes", "2", "--name", "nightly"],
        cwd=ROOT,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'constructs'}"},
    )
    os.close(theirs)
    return process, ours


@pytest.mark.parametrize(("answer", "num_jobs", "code"), [("y", 1, 0), ("", 0, 2)])
def test_multi_node_job_needs_confirmation_on_terminal(
    cli: Cli, answer: str, num_jobs: int, code: int
) -> None:
    process, terminal = asked(cli)
    os.write(terminal, f"{answer}\n".encode())
    _, said = process.communicate(timeout=scaled(30))
    os.close(terminal)

    assert "submit it? [y/N]" in said
    assert (process.returncode, len(cli.jobs("nightly"))) == (code, num_jobs)


def test_ctrl_c_at_confirmation_submits_nothing(cli: Cli) -> None:
    process, terminal = asked(cli)
    read_until(process, "about $43.00")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=scaled(30))
    os.close(terminal)

    assert process.returncode == 130
    assert cli.jobs("nightly") == []


def test_stop_ends_job_with_reason(cli: Cli) -> None:
    job_id = cli.submitted("nightly")

    result = cli.run("stop", "nightly")

    assert result.exit_code == 0
    assert "its nodes get SIGTERM" in result.stderr
    stopped_reason = cli.backend_job(job_id).job_stopped_reason
    assert stopped_reason.startswith("stopped by ")
    assert stopped_reason.endswith(" with jobs stop")


def test_stop_of_waiting_run_reports_cancellation(cli: Cli) -> None:
    cli.submitted("nightly", status="RUNNABLE")

    assert "will be cancelled before it starts" in cli.run("stop", "nightly").stderr


def test_stop_of_ended_run_is_a_no_op(succeeded: Cli) -> None:
    result = succeeded.run("stop", "nightly")

    assert result.exit_code == 0
    assert "has already ended (SUCCEEDED); nothing to stop" in result.stderr


def test_submit_prints_document(cli: Cli) -> None:
    result = cli.run("submit", "all-reduce", "--nodes", "4", "--name", "n", "--yes", "--json")

    document = checked(result, "submit")
    assert (document["action"], document["nodes"]) == ("submitted", 4)
    assert document["estimate"]["usd_at_time_limit"] == 86.0


def test_refusal_is_a_valid_document(cli: Cli) -> None:
    result = cli.run("status", "nightly", "--json", "--deployment", "none")

    assert checked(result, "status")["refused"] == "no-deployment"


def test_status_prints_document(failed: Cli) -> None:
    result = failed.run("status", "nightly", "--json")

    document = checked(result, "status")
    assert [node["attempts"][-1]["exit_code"] for node in document["nodes"]] == [1, 1]
    assert document["explanation"]["meaning"] == "the workload raised an error"
    assert result.exit_code == 0


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_logs_print_document(succeeded: Cli, follow: list[str]) -> None:
    document = checked(succeeded.run("logs", "nightly", *follow, "--json"), "logs")

    assert [line["message"] for line in document["lines"]] == ["zero", "one", "two"]
    assert document["outcome"]["status"] == "SUCCEEDED"


def test_stop_prints_document(cli: Cli) -> None:
    cli.submitted("nightly")

    document = checked(cli.run("stop", "nightly", "--wait", "0.1", "--json"), "stop")

    assert (document["action"], document["ended"]) == ("stopping", False)


def test_catalogue_prints_document() -> None:
    document = checked(Cli("").run("catalogue", "--json"), "catalogue")

    assert "trn1.32xlarge" in [item["name"] for item in document["instance_types"]]


def test_submit_of_workload_does_not_import_program_code() -> None:
    code = "import sys, jobs.commands.submit; sys.exit('jobs.submit.program' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_cli_starts_without_slow_modules() -> None:
    slow = {"boto3", "botocore", "rich", "pydantic", "torch", "aws_cdk"}
    code = "import sys, jobs.cli; print(*sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )

    assert slow & set(done.stdout.split()) == set()
