"""shell, top and tensorboard for runs on a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from jobs.bucket.objects import Bucket
from jobs.eks.pod_streams import parse_status
from tests.jobs.eks.conftest import ROOT, EksCli
from tests.jobs.test_refusals import assert_refused
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


def test_command_in_pod_of_node_reads_input_and_returns_exit_code(gang: EksCli) -> None:
    script = "read word; echo node $TRAINIUM_NODE_INDEX; echo got $word >&2; exit 7"
    done = shell(gang, "gang", "--node", "1", "--", "sh", "-c", script, stdin="a\n")

    assert (done.returncode, done.stdout, done.stderr) == (7, "node 1\n", "got a\n")


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


def test_completed_pod_has_neither_shell_nor_usage(eks: EksCli) -> None:
    eks.has("short", "true", nodes=1)
    eks.wait("short", "Completed")
    for words in (("shell", "short", "--", "true"), ("top", "short")):
        assert_refused(eks.run(*words), "node 0 of run short is SUCCEEDED, not RUNNING")


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


def test_unknown_run_has_no_tensorboard(eks: EksCli) -> None:
    eks.cli.put("runs/nightly/run.json")
    result = eks.run("tensorboard", "nightli", "--no-browser")

    assert result.exit_code == 2
    assert result.stderr.startswith("refused: no run 'nightli' in deployment 'default'")
    assert "did you mean 'nightly'?" in result.stderr


def test_run_without_logs_has_no_tensorboard(eks: EksCli) -> None:
    eks.cli.put("runs/nightly/run.json")
    assert_refused(
        eks.run("tensorboard", "nightly", "--no-browser"),
        "run nightly has no TensorBoard logs in s3://bucket/runs/nightly/logs/",
    )


def test_tensorboard_prints_document(eks: EksCli, monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []

    def serve(bucket: Bucket, run: str, port: int, announce: Callable[[], None]) -> None:
        ports.append(port)
        announce()

    # A browser opens the page of a real one in test_tensorboard_page.py.
    monkeypatch.setattr("jobs.commands.tensorboard._serve_here", serve)
    eks.cli.put("runs/nightly/run.json")
    document = eks.document("tensorboard", "nightly", "--no-browser", "--port", "7007")

    conforms("jobs-tensorboard", document)
    assert ports == [7007]
    assert document["from"] == "local"
