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

from training.datasets.text.vocabulary import read_vocabulary

ROOT = Path(__file__).resolve().parents[3]


def launch(folder: Path, *words: str, first: Path | None = None) -> subprocess.Popen[str]:
    """Start a data job; modules in ``first`` are found before any other."""
    path = [str(first)] if first is not None else []
    return subprocess.Popen(
        [sys.executable, "-m", "training.launch", *words],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([*path, str(ROOT), str(ROOT / "constructs")]),
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
    while True:
        for child in psutil.Process(job.pid).children():
            if "training.worker" in child.cmdline():
                return child


@pytest.fixture
def no_torch(tmp_path: Path) -> Path:
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('a data job has imported torch')")
    return folder


def test_it_needs_no_torch(tmp_path: Path, no_torch: Path) -> None:
    with launch(tmp_path, "prepare", "--dataset", "digits", first=no_torch) as job:
        output = job.communicate()[0]

    assert job.returncode == 0, output
    assert output.count("digits is complete") == 1
    assert "torch.distributed.run" not in output


def test_a_tokenizer_is_converted_without_torch_as_with_it(tmp_path: Path, no_torch: Path) -> None:
    model = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.jsonl").write_text('{"text": "It reads the na\u00efve caf\u00e9."}\n')
    words = (
        *("tokenize", "--input", str(tmp_path / "text"), "--tokenizer", str(model)),
        *("--dataset", "made", "--validation-fraction", "0"),
    )
    with launch(tmp_path, *words, first=no_torch) as job:
        output = job.communicate()[0]

    assert job.returncode == 0, output
    (manifest,) = (tmp_path / "build").glob("**/made/manifest.json")
    made = json.loads(manifest.read_text())["tokenizer_sha256"]
    assert made == read_vocabulary(model).sha256


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


def test_an_error_is_the_workloads(tmp_path: Path) -> None:
    with launch(tmp_path, "export", "--run", "none") as job:
        output = job.communicate()[0]

    assert job.returncode == 1, output
    assert "node 0: rank 0: ExportError: there is no run none" in output.splitlines()[-1]
