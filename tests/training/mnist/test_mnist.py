"""The mnist workload: accuracy on real digits, output, resumption, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.training.conftest import Cluster
from tests.training.llama.conftest import Laptop
from training.datasets.manifest import DatasetManifest, finish_dataset, store_file
from training.datasets.prepared.images import (
    KIND,
    SPLITS,
    Pixels,
    images_name,
    labels_name,
    write_idx,
)
from training.datasets.prepared.prepare import prepare_dataset
from training.models.mnist.data import Digits, evaluation_batches
from training.storage import StorageAccess
from training.trainer.runs import RunConfigError
from training.trainer.task import WrongOutcome

SMALL = ("--dataset=small", "--log-every=1")


def write_images(laptop: Laptop, name: str, *, train: int, test: int, low: float = 0.0) -> None:
    """Return images whose bright spot encodes the label."""
    objects = laptop.objects.at(f"datasets/{name}")
    files = []
    for split, count in zip(SPLITS, (train, test), strict=True):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), labels * 2] = 255
        for path, values in (
            (laptop.folder / images_name(split), images),
            (laptop.folder / labels_name(split), labels),
        ):
            write_idx(path, values)
            files.append(store_file(objects, path, samples=count, on_bytes=lambda n: None))
    facts = {"epochs": 3, "accuracy": [low, 1.0]}
    finish_dataset(objects, DatasetManifest(kind=KIND, source={}, facts=facts, shards=tuple(files)))


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    """Create a folder with a dataset of 100 images; every test names its own run."""
    laptop = Laptop(tmp_path_factory.mktemp("laptop"), workload="mnist", words=SMALL)
    write_images(laptop, "small", train=100, test=7)
    torch.set_num_threads(1)
    return laptop


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Train on scikit-learn's digits on one node of two workers."""
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), num_nodes=1)
    place = StorageAccess(root=str(cluster.folder / "build"))
    prepare_dataset("digits", place, max_documents=0, report=lambda text: None)
    cluster.start(
        "--dataset=digits", "--require-accuracy", "--log-every=50",
        workload="mnist",
        extra={
            "TRAINIUM_PROCESSES_PER_NODE": "2",
            "NEURON_RT_LOG_LEVEL": "INFO",
            "TORCH_NEURONX_LOG_LEVEL": "2",
        },
    )  # fmt: skip
    assert cluster.end(within_s=120) == {0: 0}, cluster.all_logs()
    yield cluster
    cluster.kill()


# `make rehearse` requires the same accuracy, so `make test` leaves these out.
@pytest.mark.full
def test_two_workers_reach_the_band_of_the_real_digits(nodes: Cluster) -> None:
    path = nodes.folder / "build/runs/test-run/results/results.json"
    results = json.loads(path.read_text())["results"]
    named = {metric["MetricName"]: metric["MeasuredValue"] for metric in results["metrics"]}

    assert 0.9 <= named["Test accuracy"] <= 0.99
    assert named["Final loss"] < 0.6
    assert results["parameters"]["Optimizer"] == "SGD"
    assert results["parameters"]["Batch size"] == 32
    assert results["parameters"]["World size"] == 2
    assert nodes.log(0).count("Train throughput (iter/sec): ") == 1  # as printed by the reference
    variables = results["parameters"]["Environment variables"]
    assert variables["NEURON_RT_LOG_LEVEL"] == "INFO"
    assert variables["TORCH_NEURONX_LOG_LEVEL"] == "2"


@pytest.mark.full
def test_the_rate_is_one_workers_times_the_number_of_workers(nodes: Cluster) -> None:
    text = (nodes.folder / "build/runs/test-run/metrics/train.jsonl").read_text()
    steps = [json.loads(line) for line in text.splitlines() if '"event": "step"' in line]

    assert {line["lr"] for line in steps} == {0.02}
    # 40 epochs of 1,437 images, 64 at a time.
    assert steps[-1]["step"] == 899


def test_a_stopped_run_resumes_exactly_where_it_was(laptop: Laptop) -> None:
    laptop.train("--save-every=2", run="whole")
    for info in laptop.objects.at("runs/whole").list():
        if "checkpoints/step-00000008" in info.key or info.key in ("run.json",):
            data = laptop.objects.get(f"runs/whole/{info.key}")
            laptop.objects.put(f"runs/resumed/{info.key}", data)
    lines = laptop.file("metrics/train.jsonl", "whole").read_bytes()
    laptop.objects.put("runs/resumed/metrics/train.jsonl", lines)
    laptop.train(run="resumed", tiny=False)

    assert len(laptop.losses("whole")) == 10  # ceil(3 x 100 / 32)
    assert laptop.losses("resumed") == laptop.losses("whole")
    (resume,) = laptop.lines("resumed", "resume")
    assert (resume["step"], resume["dropped"]) == (8, 2)


def test_each_epoch_sees_every_image_in_its_own_order(laptop: Laptop) -> None:
    laptop.train("--epochs=1", run="one")
    laptop.train("--epochs=2", "--lr=0", run="still")

    assert len(laptop.losses("one")) == 4
    # Nothing is learned, yet the same batch never comes twice.
    assert len(set(laptop.losses("still"))) == len(laptop.losses("still"))


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_the_last_batch_of_the_test_counts_what_is_in_it(num_ranks: int) -> None:
    images: Pixels = np.zeros((13, 784), np.uint8)
    images[:, 0] = np.arange(13)
    digits = Digits(images=images, labels=np.zeros(13, np.uint8))

    batches = [
        list(evaluation_batches(digits, rank=rank, num_ranks=num_ranks, size=4))
        for rank in range(num_ranks)
    ]
    seen = [
        round(float(image[0]) * 255)
        for share in batches
        for batch in share
        for image, mask in zip(batch["images"], batch["mask"], strict=True)
        if mask
    ]

    assert sorted(seen) == list(range(13))
    assert {len(batch["images"]) for share in batches for batch in share} == {4}
    assert len({len(share) for share in batches}) == 1  # all ranks make the same calls


def test_an_accuracy_outside_the_band_fails_the_job_on_request(
    laptop: Laptop, capfd: pytest.CaptureFixture[str]
) -> None:
    write_images(laptop, "hard", train=100, test=7, low=1.0)

    laptop.train("--dataset=hard", "--lr=0", run="tolerated")
    assert "OUTSIDE 1.0 to 1.0" in capfd.readouterr().out
    with pytest.raises(
        WrongOutcome, match=r"accuracy 0\.\d+ is outside 1\.0 to 1\.0, the expected"
    ):
        laptop.train("--dataset=hard", "--lr=0", "--require-accuracy", run="required")

    assert laptop.status("required")["state"] == "failed"


def test_other_workers_are_another_run(laptop: Laptop) -> None:
    laptop.train("--epochs=1", run="alone")
    path = laptop.file("run.json", "alone")
    stored = json.loads(path.read_text())
    stored["facts"]["num_ranks"] = 32
    path.write_text(json.dumps(stored))

    with pytest.raises(
        RunConfigError, match=r"num_ranks=1 \(the run has 32\); submit with the same"
    ):
        laptop.train(run="alone", tiny=False)


def test_a_runs_batch_cannot_change(laptop: Laptop) -> None:
    laptop.train("--epochs=1", run="fixed")

    with pytest.raises(RunConfigError, match="cannot continue with batch-size=8"):
        laptop.train("--batch-size=8", run="fixed", tiny=False)
