"""A data job is a process of its own, without torchrun, and ends as any worker does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import mistral_common
import psutil
import pytest

from rehearsal.deployment.server import wait_until
from tests.support.limits import scaled
from training.datasets.text.vocabulary import read_vocabulary

ROOT = Path(__file__).resolve().parents[3]
TOKENIZER = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"


def launch(folder: Path, *words: str, first: Path | None = None) -> subprocess.Popen[str]:
    """Start a data job; modules in ``first`` are found before any other."""
    path = [str(first)] if first is not None else []
    return subprocess.Popen(
        [sys.executable, "-m", "training.launch", *words],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([*path, str(ROOT)]),
            "TRAINIUM_DEVICE": "cpu",
            # A deployment's setting for its nodes; more processes would have nothing to do.
            "TRAINIUM_PROCESSES_PER_NODE": "2",
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def started(job: subprocess.Popen[str]) -> psutil.Process:
    """Return the worker, while it still imports what it needs."""
    assert job.stdout is not None
    while "launch: start:" not in job.stdout.readline():
        assert job.poll() is None
    found: list[psutil.Process] = []

    def is_there() -> bool:
        found.extend(
            child
            for child in psutil.Process(job.pid).children()
            if "training.worker" in child.cmdline()
        )
        return bool(found)

    assert wait_until(is_there, limit_s=scaled(20))
    return found[0]


@pytest.fixture
def no_torch(tmp_path: Path) -> Path:
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('a data job has imported torch')")
    return folder


def tokenize(
    folder: Path, *, first: Path, hang_limit_s: float = 600, field: str = "text"
) -> subprocess.Popen[str]:
    """Start a job that makes a dataset of one sentence with a SentencePiece model."""
    line = json.dumps({field: "It reads the naïve café."})
    (folder / "text").mkdir()
    (folder / "text" / "a.jsonl").write_text(line + "\n")
    return launch(
        folder,
        *("tokenize", "--input", str(folder / "text"), "--tokenizer", str(TOKENIZER)),
        *("--dataset", "made", "--validation-fraction", "0", "--hang-limit-s", str(hang_limit_s)),
        first=first,
    )


def test_a_tokenizer_is_converted_without_torch_as_with_it(tmp_path: Path, no_torch: Path) -> None:
    with tokenize(tmp_path, first=no_torch) as job:
        output = job.communicate()[0]

    assert job.returncode == 0, output
    assert "torch" not in output.partition("launch: start:")[2].lower()
    (manifest,) = (tmp_path / "build").glob("**/made/manifest.json")
    made = json.loads(manifest.read_text())["tokenizer_sha256"]
    assert made == read_vocabulary(TOKENIZER).sha256


def test_wrong_text_is_explained_without_a_traceback(tmp_path: Path, no_torch: Path) -> None:
    with tokenize(tmp_path, first=no_torch, field="body") as job:
        output = job.communicate()[0]

    assert job.returncode == 1, output
    assert "line 1: no field 'text'; there are 'body'" in output
    assert "Traceback" not in output


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A module of the conversion that never ends: the job is at work when it is imported."""
    folder = tmp_path / "first"
    (folder / "sentencepiece").mkdir(parents=True)
    (folder / "sentencepiece" / "__init__.py").touch()
    (folder / "sentencepiece" / "sentencepiece_model_pb2.py").write_text(
        "import time\n\nprint('converting', flush=True)\ntime.sleep(600)\n"
    )
    return folder


def test_a_request_to_stop_reaches_a_job_at_work(tmp_path: Path, endless: Path) -> None:
    with tokenize(tmp_path, first=endless) as job:
        assert job.stdout is not None
        while "converting" not in job.stdout.readline():
            assert job.poll() is None
        job.send_signal(signal.SIGTERM)
        output = job.communicate()[0]

    assert job.returncode == 143, output
    assert "rank 0: stopped on request" in output


def test_a_job_that_makes_no_progress_ends_for_a_retry(tmp_path: Path, endless: Path) -> None:
    with tokenize(tmp_path, first=endless, hang_limit_s=10) as job:
        output = job.communicate()[0]

    assert job.returncode == 75, output
    assert "made no progress at: reading the tokenizer" in output.splitlines()[-1]


# An export takes seconds to begin: it imports torch and transformers.
def test_a_killed_process_is_a_lost_host(tmp_path: Path) -> None:
    with launch(tmp_path, "export", "--run", "none") as job:
        started(job).kill()
        output = job.communicate()[0]

    assert job.returncode == 75, output
    assert "killed" in output.splitlines()[-1]


def test_a_request_to_stop_ends_it(tmp_path: Path) -> None:
    with launch(tmp_path, "export", "--run", "none") as job:
        worker = started(job)
        job.send_signal(signal.SIGTERM)
        output = job.communicate()[0]

    assert job.returncode == 143, output
    assert not worker.is_running()
