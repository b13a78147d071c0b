"""A rehearsal for TorchNeuron on trn2: the nodes compute on the emulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rehearsal.receipts import receipt_of
from tests.support.pretend_neuron import pretend_neuron
from trainium_catalogue.parameters.verify import CHECKS

ROOT = Path(__file__).resolve().parents[2]


def recipes(target: str, *variables: str) -> list[str]:
    """Return the commands of a target, without those of the set-up."""
    options = ("--dry-run", "--no-print-directory", "--assume-old=setup")
    make = ("make", *options, target, *variables)
    done = subprocess.run(make, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def test_whole_rehearsal_ends_with_torchneuron() -> None:
    (alone,) = recipes("rehearse-torchneuron")

    # On the emulated device, the other checks take longer than the training.
    assert recipes("rehearse")[1:] == [f"{alone} --set checks=sums,cache"]


@pytest.mark.parametrize("variable", ["QUICK=1", "ORCHESTRATORS=eks"])
def test_partial_rehearsal_leaves_torchneuron_out(variable: str) -> None:
    assert len(recipes("rehearse", variable)) == 1


# `make test` trains on the device in tests/training/backends/test_native_on_neuron.py.
@pytest.mark.full
def test_training_on_the_emulated_device_survives_a_kill() -> None:
    receipt = receipt_of("rehearsal-torchneuron")

    assert receipt["problems"] == []
    assert receipt["environment_extras"]["TRAINIUM_DEVICE"] == "pretend-neuron"
    assert receipt["image"]["base_image"] is None
    assert receipt["training"]["run"]["attempts"] == [75, 0]
    assert receipt["training"]["resumed_from"] == 6
    assert receipt["proven_empty"]


# The rehearsal runs two of the checks, on four ranks.
@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_emulated_device_passes_every_check(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "training.launch", "verify"],
        env={
            **os.environ,
            **pretend_neuron(tmp_path),
            "TRAINIUM_DEVICE": "pretend-neuron",
            "TRAINIUM_INSTANCE_TYPE": "trn2.48xlarge",
            "TRAINIUM_NEURON_RELEASE": "2.33.0",
            "TRAINIUM_PROCESSES_PER_NODE": "1",
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )

    assert done.returncode == 0, done.stdout
    result = json.loads((tmp_path / "build/runs/local/results/verify.json").read_text())
    assert {name for name, check in result["checks"].items() if check["ok"]} == set(CHECKS) - {
        "attention", "graphs",
    }  # fmt: skip


@pytest.mark.full
@pytest.mark.timeout(900)
def test_cluster_trains_on_the_emulated_device(tmp_path: Path) -> None:
    words = ("run", "--instance-type", "trn2.48xlarge", "--neuron-release", "2.33.0")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rehearsal", *words, "--orchestrators", "eks"),
            *("--json", "--folder", str(tmp_path), "--addresses", "127.0.56"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )

    receipt = json.loads(done.stdout)
    assert (receipt["problems"], done.returncode) == ([], 0)
    assert receipt["environment_extras"]["TRAINIUM_DEVICE"] == "pretend-neuron"
    cluster = receipt["cluster"]
    assert (cluster["killed_after"], cluster["resumed_from"]) == (11, 6)
    for run in ("mnist", "bert"):
        log = (tmp_path / f"eks-{run}.log").read_text()
        assert "node 0 | pretend neuron: an emulator on this machine's CPU" in log
    assert receipt["proven_empty"]
