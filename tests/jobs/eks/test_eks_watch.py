"""shell, top and tensorboard, where pods are."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request

import pytest

from jobs.eks.pod_streams import parse_status
from tests.jobs.eks.conftest import ROOT, EksDesk
from tests.support.limits import scaled
from tests.support.schemas import conforms


@pytest.fixture
def gang(eks: EksDesk) -> EksDesk:
    """A run with two pods that are busy."""
    # For a minute at most: a test run that is killed takes no core with it.
    eks.has("gang", "timeout 60 sh -c 'while :; do :; done'")
    eks.wait("gang", "Running")
    return eks


def shell(eks: EksDesk, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs", "shell", *words],
        input=stdin,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


def test_a_command_runs_in_the_pod_of_a_node(gang: EksDesk) -> None:
    done = shell(gang, "gang", "--node", "1", "--", "sh", "-c", "echo node $TRAINIUM_NODE_INDEX")

    assert (done.returncode, done.stdout) == (0, "node 1\n"), done.stderr


def test_a_command_ends_with_its_own_exit_code_and_reads_input(gang: EksDesk) -> None:
    script = "read word; echo got $word >&2; exit 7"
    done = shell(gang, "gang", "--", "sh", "-c", script, stdin="a\n")

    assert (done.returncode, done.stderr) == (7, "got a\n")


def test_a_program_that_the_pod_lacks_is_named(gang: EksDesk) -> None:
    done = shell(gang, "gang", "--", "neuron-tpo")

    assert done.returncode in (126, 127)
    assert "neuron-tpo: exit code" in done.stderr
    assert "pod gang-node-0-0 has no such program, or may not run it" in done.stderr


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
def test_a_command_that_was_not_run_to_its_end_says_why(said: str, code: int, text: str) -> None:
    assert parse_status(said) == (code, text)


def test_a_pod_that_does_not_run_has_no_shell(eks: EksDesk) -> None:
    eks.has("short", "true", nodes=1)
    eks.wait("short", "Completed")
    result = eks.run("shell", "short", "--", "true")

    assert result.exit_code == 2
    assert "node 0 of run short is SUCCEEDED; this needs a node that is RUNNING" in result.stderr


def test_top_shows_what_processes_use_where_there_is_no_neuron_monitor(gang: EksDesk) -> None:
    document = gang.document("top", "gang")

    conforms("jobs-top", document)
    assert [node["node"] for node in document["nodes"]] == [0, 1]
    assert {node["measured_by"] for node in document["nodes"]} == {"processes"}
    assert all(node["cpu_percent"] > 1 for node in document["nodes"])
    note = "processes: those of the pod, where there is no neuron-monitor"
    assert note in gang.run("top", "gang").stdout


def test_top_tells_of_a_run_on_batch_where_to_look(eks: EksDesk) -> None:
    eks.desk.submitted("nightly")

    found = eks.run("top", "nightly").stderr
    unknown = eks.run("top", "nightly-2").stderr

    assert "run nightly is on Batch, and top asks the pods of runs on EKS; " in found
    assert "`python -m jobs status nightly` and `python -m jobs logs nightly`" in found
    assert "no run 'nightly-2'" in unknown


def test_top_needs_running_pods(eks: EksDesk) -> None:
    eks.has("short", "true", nodes=1)
    eks.wait("short", "Completed")

    assert "this needs a node that is RUNNING" in eks.run("top", "short").stderr


def test_a_run_that_nobody_knows_has_no_tensorboard(eks: EksDesk) -> None:
    eks.desk.put("runs/nightly/run.json")
    result = eks.run("tensorboard", "nightli", "--no-browser")

    assert result.exit_code == 2
    assert result.stderr.startswith("refused: no run 'nightli' in deployment 'default'")
    assert "did you mean 'nightly'?" in result.stderr


def test_a_run_without_logs_has_no_tensorboard(eks: EksDesk) -> None:
    eks.desk.put("runs/nightly/run.json")
    result = eks.run("tensorboard", "nightly", "--no-browser")

    assert result.exit_code == 2
    assert "run nightly has no TensorBoard logs in s3://bucket/runs/nightly/logs/" in result.stderr


def test_tensorboard_runs_on_this_machine(eks: EksDesk) -> None:
    eks.desk.put("runs/nightly/logs/events.out.tfevents.1.host.1.0")
    words = [sys.executable, "-m", "jobs", "tensorboard", "nightly", "--no-browser", "--json"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        # 6006 may be taken by another test between the look and the start.
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
