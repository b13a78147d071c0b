"""The backend for torch_xla without NxD, fully covered, on a fake with its signatures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training.llama import fake_nxd
from tests.training.llama.conftest import Laptop, LoneDevice
from training.backends import open_backend
from training.backends.xla import XlaBackend
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.core.job import StopRequested, StopSwitch
from training.models.bert.network import BertNetwork
from trainium_catalogue.contract import checkpoint_name

STEPS = 6


@pytest.fixture(autouse=True)
def xla(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nxd.install(monkeypatch)


def train(laptop: Laptop, *words: str, run: str, **more: Any) -> None:
    laptop.train(f"--max-steps={STEPS}", *words, run=run, kind=DeviceKind.XLA, **more)


def backend_of(laptop: Laptop, *words: str) -> XlaBackend:
    values = parse(["bert-tiny", *laptop.words, *words]).values
    config = TrainConfig.from_values(values, 1)
    device = LoneDevice(DeviceKind.XLA)
    backend = open_backend(config, device, BertNetwork(config))
    assert isinstance(backend, XlaBackend)
    backend.build()
    return backend


def test_the_losses_equal_the_native_backends(laptop: Laptop) -> None:
    train(laptop, "--dropout=0", run="xla")
    laptop.train(f"--max-steps={STEPS}", "--dropout=0", run="xla-native")

    # bf16 keeps 8 bits; the master weights are fp32 in both.
    assert laptop.losses("xla") == pytest.approx(laptop.losses("xla-native"), rel=1e-2)


def test_a_run_stopped_within_a_step_has_exactly_the_losses_of_an_uninterrupted_one(
    laptop: Laptop,
) -> None:
    stop = StopSwitch()
    begun: list[str] = []

    def ask(text: str) -> None:
        if text.startswith("step 4 of"):
            begun.append(text)
            stop.requested = True

    train(laptop, run="xla-undisturbed")
    with pytest.raises(StopRequested):
        train(laptop, run="xla-stopped", stop=stop, on_report=ask)
    assert laptop.status("xla-stopped")["last_checkpoint_step"] == 3
    assert len(begun) == 1  # of several micro-batches

    train(laptop, run="xla-stopped")
    assert laptop.losses("xla-stopped") == laptop.losses("xla-undisturbed")


def test_a_run_resumes_on_another_backend(laptop: Laptop) -> None:
    train(laptop, "--dropout=0", "--steps-this-run=3", run="moves")
    laptop.train(run="moves", tiny=False)
    laptop.train(f"--max-steps={STEPS}", "--dropout=0", run="stays")

    assert laptop.losses("moves") == pytest.approx(laptop.losses("stays"), rel=1e-2)
    assert [line["backend"] for line in laptop.lines("moves", "start")] == ["xla"]
    assert [line["backend"] for line in laptop.lines("moves", "resume")] == ["native"]


def test_weights_are_bf16_and_persistent_state_is_fp32(laptop: Laptop) -> None:
    backend = backend_of(laptop)
    moments = backend._optimizer.state(backend._masters)["exp_avg"]

    assert {weight.dtype for weight in backend._weights.values()} == {torch.bfloat16}
    kept = (*backend._masters.values(), *moments.values())
    assert {tensor.dtype for tensor in kept} == {torch.float32}


def test_each_micro_batch_is_one_graph_and_each_step_one_more(laptop: Laptop) -> None:
    train(laptop, "--steps-this-run=2", "--log-every=2", run="graphs")

    # Building and publishing, then 4 micro-batches and an update twice; numbers are fetched
    # without a graph.
    assert fake_nxd.names().count("mark_step") == 2 + 2 * (4 + 1)
    reduced = [d for name, d in fake_nxd.CALLS if name == "all_reduce_bucketized_gradients"]
    assert reduced == [{"scale": 1.0, "bucket_cap_mb": 50}] * 2


def test_a_resumed_job_has_the_same_graphs_as_a_new_one(laptop: Laptop) -> None:
    counts = []
    for _ in range(2):
        fake_nxd.CALLS.clear()
        train(laptop, "--steps-this-run=1", run="graphs-again")
        counts.append(fake_nxd.names().count("mark_step"))

    # Checkpoint weights are published by the same graph as initial ones.
    assert counts == [2 + 4 + 1, 2 + 1 + 4 + 1]


def test_every_micro_batch_has_its_own_seed(laptop: Laptop) -> None:
    train(laptop, "--steps-this-run=3", run="seeds")
    seeds = [details["seed"] for name, details in fake_nxd.CALLS if name == "set_rng_state"]

    assert len(set(seeds)) == len(seeds) == 3 * 4


def test_a_rank_writes_its_part_of_the_tensors(laptop: Laptop) -> None:
    backend = backend_of(laptop)
    saved: list[dict[str, Any]] = []

    class Recorder:
        def wait(self) -> None:
            """Nothing is in flight."""

        def save(self, state: dict[str, Any], *rest: object, **more: object) -> None:
            saved.append(state)

    recorder: Any = Recorder()
    backend.num_ranks = 3
    for backend.rank in range(3):
        backend.save(recorder, 1, {}, asynchronous=False)

    parts = [set(state["model"]) for state in saved]
    assert set.union(*parts) == set(backend._masters)
    assert sum(map(len, parts)) == len(backend._masters)
    for state in saved:
        assert set(state["optimizer"]["exp_avg"]) == set(state["model"])


def test_mnist_trains_in_fp32_on_it(laptop: Laptop) -> None:
    from tests.training.mnist.test_mnist import SMALL, write_images

    mnist = Laptop(laptop.folder, workload="mnist", words=SMALL)
    write_images(mnist, "small", train=100, test=7)
    mnist.train(run="xla-mnist", kind=DeviceKind.XLA)
    mnist.train(run="native-mnist")

    assert mnist.losses("xla-mnist") == pytest.approx(mnist.losses("native-mnist"), abs=1e-5)
    assert mnist.file(f"checkpoints/{checkpoint_name(10)}/complete.json", "xla-mnist").exists()
