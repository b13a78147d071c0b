"""A data job is a separate process without torchrun, and ends like any worker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import mistral_common
import pytest

from tests.support.limits import scaled
from tests.training.conftest import ROOT, Cluster
from training.datasets.text.vocabulary import read_vocabulary

TOKENIZER = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"


def tokenize(job: Cluster, first: Path, *words: str, field: str = "text") -> None:
    """Start a job that tokenizes one sentence with a SentencePiece model.

    Modules in ``first`` are found before any other.
    """
    (job.folder / "text").mkdir()
    line = json.dumps({field: "It reads the naïve café."})
    (job.folder / "text" / "a.jsonl").write_text(line + "\n")
    job.start(
        *(f"--input={job.folder / 'text'}", f"--tokenizer={TOKENIZER}", "--dataset=made"),
        *("--validation-fraction=0", *words),
        workload="tokenize",
        # A deployment's setting for its nodes; more processes would be idle.
        extra={"PYTHONPATH": f"{first}:{ROOT}", "TRAINIUM_PROCESSES_PER_NODE": "2"},
    )


def ended(job: Cluster) -> int:
    """Return the exit code."""
    return job.end(within_s=scaled(60))[0]


@pytest.fixture
def no_torch(tmp_path: Path) -> Path:
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('a data job has imported torch')")
    return folder


def test_a_tokenizer_is_converted_identically_without_torch(
    lone_node: Cluster, no_torch: Path
) -> None:
    tokenize(lone_node, no_torch)

    assert ended(lone_node) == 0, lone_node.all_logs()
    assert "torch" not in lone_node.log(0).partition("launch: start:")[2].lower()
    (manifest,) = (lone_node.folder / "build").glob("**/made/manifest.json")
    made = json.loads(manifest.read_text())["tokenizer_sha256"]
    assert made == read_vocabulary(TOKENIZER).sha256


def test_wrong_text_is_explained_without_a_traceback(lone_node: Cluster, no_torch: Path) -> None:
    tokenize(lone_node, no_torch, field="body")

    assert ended(lone_node) == 1, lone_node.all_logs()
    assert "line 1: no field 'text'; fields: 'body'" in lone_node.log(0)
    assert "Traceback" not in lone_node.log(0)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """Write a conversion module that never ends: the job is working once it is imported."""
    folder = tmp_path / "first"
    (folder / "sentencepiece").mkdir(parents=True)
    (folder / "sentencepiece" / "__init__.py").touch()
    (folder / "sentencepiece" / "sentencepiece_model_pb2.py").write_text(
        "import time\n\nprint('converting', flush=True)\ntime.sleep(600)\n"
    )
    return folder


def test_a_stop_request_reaches_a_working_job(lone_node: Cluster, endless: Path) -> None:
    tokenize(lone_node, endless)
    lone_node.wait_for("converting", node=0)

    os.kill(lone_node.launcher(0), signal.SIGTERM)

    assert ended(lone_node) == 143, lone_node.all_logs()
    assert "rank 0: stopped on request" in lone_node.log(0)


def test_a_killed_process_is_a_lost_host(lone_node: Cluster, endless: Path) -> None:
    tokenize(lone_node, endless)
    lone_node.wait_for("converting", node=0)

    os.kill(lone_node.worker(0), signal.SIGKILL)

    assert ended(lone_node) == 75, lone_node.all_logs()
    assert "killed" in lone_node.log(0).splitlines()[-1]


def test_a_job_that_makes_no_progress_ends_for_a_retry(lone_node: Cluster, endless: Path) -> None:
    tokenize(lone_node, endless, "--hang-limit-s=8")

    assert ended(lone_node) == 75, lone_node.all_logs()
    assert "made no progress at: reading the tokenizer" in lone_node.log(0).splitlines()[-1]
