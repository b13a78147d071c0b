"""Tiny runs on one rank in this process, and their training data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.datasets.packed import put_manifest, put_shard
from tests.training.nodes import CPU_NODE
from training.core.arguments import parse
from training.core.contract import DeviceKind
from training.core.job import Job, StopSwitch
from training.core.lone_process import LoneProcess
from training.core.progress import WorkerProgress
from training.datasets.manifest import Shard, Validation
from training.storage import Objects, open_objects
from training.storage.results import ResultFiles
from training.workloads import IMPLEMENTATIONS

TINY = (
    *("--vocab-size=256", "--hidden-size=32", "--intermediate-size=64", "--num-layers=2"),
    *("--seq-len=16", "--global-batch=8", "--micro-batch=4", "--warmup-steps=2", "--lr=0.01"),
)
"""Shape and batch of every run here, unless a test overrides them."""

CONTEXT = replace(CPU_NODE, run="tiny")


def write_dataset(
    objects: Objects,
    *,
    num_tokens: int = 3000,
    validation_tokens: int = 0,
    vocab_size: int = 256,
    tokenizer: str = "b" * 64,
    seed: int = 0,
) -> None:
    """Write a dataset of skewed random ids, so that there is something to learn."""
    random = np.random.default_rng(seed)

    def put(name: str, count: int) -> Shard:
        return put_shard(objects, name, (random.zipf(1.5, count) % vocab_size).astype("<u2"))

    shard = put("shard-00000.bin", num_tokens)
    validation = None
    if validation_tokens:
        held_out = put("validation-00000.bin", validation_tokens)
        validation = Validation(
            fraction=0.1, num_tokens=validation_tokens, documents=1, shards=(held_out,)
        )
    put_manifest(
        objects, shard, vocab_size=vocab_size, tokenizer_sha256=tokenizer, validation=validation
    )


@dataclass
class LoneDevice(LoneProcess):
    """A device of any kind for a single rank, whose collectives do nothing."""

    kind: DeviceKind = DeviceKind.CPU
    rank: int = 0
    num_ranks: int = 1


class Watched(WorkerProgress):
    """Reporter that calls back with every report."""

    def __init__(self, scratch: Path, on_report: Callable[[str], None]) -> None:
        super().__init__(scratch, local_rank=0, rank=0)
        self._on_report = on_report

    def report(self, step: str) -> None:
        self._on_report(step)
        super().report(step)


@dataclass
class Laptop:
    """Runs on one rank, in this process, without a bucket."""

    folder: Path
    workload: str = "llama-tiny"
    words: tuple[str, ...] = (*TINY, "--tensor-parallel=1", "--dataset=words")
    """Parameters of every run, unless ``tiny`` is False."""

    @property
    def objects(self) -> Objects:
        return open_objects(str(self.folder), region=None, endpoint_url=None)

    def train(
        self,
        *words: str,
        run: str = "tiny",
        on_report: Callable[[str], None] = lambda text: None,
        stop: StopSwitch | None = None,
        tiny: bool = True,
        kind: DeviceKind = DeviceKind.CPU,
        **context: Any,
    ) -> None:
        """Run one job of ``run``."""
        shape = self.words if tiny else ()
        given = {word.partition("=")[0] for word in words}
        defaults = [word for word in shape if word.partition("=")[0] not in given]
        request = parse([self.workload, *defaults, *words])
        IMPLEMENTATIONS[self.workload].load()(
            Job(
                context=replace(CONTEXT, run=run, device=kind, **context),
                values=request.values,
                given=request.given,
                device=LoneDevice(kind),
                progress=Watched(self.folder, on_report),
                store=ResultFiles(
                    root=self.folder, run=run, workload=self.workload, attempt=1, bucket=None
                ),
                stop=stop or StopSwitch(),
            )
        )

    def file(self, key: str, run: str = "tiny") -> Path:
        return self.folder / "runs" / run / key

    def lines(self, run: str = "tiny", event: str | None = None) -> list[dict[str, Any]]:
        """Return the lines of train.jsonl, or only those of one event."""
        text = self.file("metrics/train.jsonl", run).read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if event in (None, line["event"])]

    def losses(self, run: str = "tiny") -> list[float]:
        steps = self.lines(run, "step")
        assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
        return [line["loss"] for line in steps]

    def status(self, run: str = "tiny") -> dict[str, Any]:
        document = json.loads(self.file("results/status.json", run).read_text())
        assert isinstance(document, dict)
        return document


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    """Create a folder with a dataset named ``words``; every test names its own run."""
    laptop = Laptop(tmp_path_factory.mktemp("laptop"))
    write_dataset(laptop.objects.at("datasets/words"))
    return laptop


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use one thread: synchronization costs more than such small matrices."""
    torch.set_num_threads(1)
