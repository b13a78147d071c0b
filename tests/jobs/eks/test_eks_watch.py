"""shell, top and tensorboard for runs on a cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request

import pytest

from jobs.eks.pod_streams import parse_status
from tests.jobs.eks.conftest import ROOT, EksCli
from tests.support.limits import scaled
from tests.support.schemas import conforms


@pytest.fixture
def gang(eks: EksCli) -> EksCli:
    """A run with two busy pods."""
    # For a minute at most: a killed test run must not occupy cores.
    eks.has("gang", "timeout 60 sh -c 'while :; do :; done'")
    eks.wait("gang", "Running")
    return eks


def shell(eks: EksCli, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs", "shell", *words],
        input=stdin,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


def test_command_runs_in_pod_of_node(gang: EksCli) -> None:
    done = shell(gang, "gang", "--node", "1", "--", "sh", "-c", "echo node $TRAINIUM_NODE_INDEX")

    assert (done.returncode, done.stdout) == (0, "node 1\n"), done.stderr


def test_command_returns_exit_code_and_reads_input(gang: EksCli) -> None:
    script = "read word; echo got $word >&2; exit 7"
    done = shell(gang, "gang", "--", "sh", "-c", script, stdin="a\n")

    assert (done.returncode, done.stderr) == (7, "got a\n")


def test_program_missing_in_pod_is_named(gang: EksCli) -> None:
    done = shell(gang, "gang", "--", "neuron-tpo")

    assert done.returncode in (126, 127)
    assert "neuron-tpo: exit code" in done.stderr
    assert "pod gang-node-0-0 has no such program, or cannot run it" in done.stderr


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ('{"status": "Success"}', 0, ""),
        (
            '{"status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated", '
            '"details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}',
            7,
            "",
        ),
        (
            '{"status": "Failure", "reason": "InternalError", "code": 500, "message": "exec: '
            '\\"neuron-tpo\\": executable file not found in $PATH"}',
            127,
            'exec: "neuron-tpo": executable file not found in $PATH',
        ),
        ("", 255, "the connection to the pod was lost"),
    ],
)
def test_command_status_gives_exit_code_and_reason(said: str, code: int, text: str) -> None:
    assert parse_status(said) == (code, text)


def test_completed_pod_has_no_shell(eks: EksCli) -> None:
    eks.has("short", "true", nodes=1)
    eks.wait("short", "Completed")
    result = eks.run("shell", "short", "--", "true")

    assert result.exit_code == 2
    assert "node 0 of run short is SUCCEEDED, not RUNNING" in result.stderr


def test_top_shows_process_usage_without_neuron_monitor(gang: EksCli) -> None:
    document = gang.document("top", "gang")

    conforms("jobs-top", document)
    assert [node["node"] for node in document["nodes"]] == [0, 1]
    assert {node["measured_by"] for node in document["nodes"]} == {"processes"}
    assert all(node["cpu_percent"] > 1 for node in document["nodes"])
    note = "processes: usage of the pod's own processes, because neuron-monitor is missing or fails"
    assert note in gang.run("top", "gang").stdout


def test_top_of_batch_run_suggests_alternative(eks: EksCli) -> None:
    eks.cli.submitted("nightly")

    found = eks.run("top", "nightly").stderr
    unknown = eks.run("top", "nightly-2").stderr

    assert "run nightly is on Batch, but top needs a run on EKS; " in found
    assert "`python -m jobs status nightly` and `python -m jobs logs nightly`" in found
    assert "no run 'nightly-2'" in unknown


def test_top_needs_running_pods(eks: EksCli) -> None:
    eks.has("short", "true", nodes=1)
    eks.wait("short", "Completed")

    assert "is SUCCEEDED, not RUNNING" in eks.run("top", "short").stderr


def test_unknown_run_has_no_tensorboard(eks: EksCli) -> None:
    eks.cli.put("runs/nightly/run.json")
    result = eks.run("tensorboard", "nightli", "--no-browser")

    assert result.exit_code == 2
    assert result.stderr.startswith("refused: no run 'nightli' in deployment 'default'")
    assert "did you mean 'nightly'?" in result.stderr


def test_run_without_logs_has_no_tensorboard(eks: EksCli) -> None:
    eks.cli.put("runs/nightly/run.json")
    result = eks.run("tensorboard", "nightly", "--no-browser")

    assert result.exit_code == 2
    assert "run nightly has no TensorBoard logs in s3://bucket/runs/nightly/logs/" in result.stderr


def test_tensorboard_runs_locally(eks: EksCli) -> None:
    eks.cli.put("runs/nightly/logs/events.out.tfevents.1.host.1.0")
    words = [sys.executable, "-m", "jobs", "tensorboard", "nightly", "--no-browser", "--json"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        # Another test may take 6006 between the check and the start.
        words += ["--port", str(free.getsockname()[1])]
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            text += line
        document = json.loads(text)
        conforms("jobs-tensorboard", document)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        page = opener.open(
            document["url"].partition("?")[0] + "data/runs", timeout=scaled(20)
        ).read()
    finally:
        process.send_signal(2)
        process.wait(scaled(20))

    assert document["from"] == "local"
    assert page.startswith(b"[")
