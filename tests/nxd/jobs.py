"""Whole jobs on the real NxD: ``python -m training.launch`` as a user's image starts it.

Nodes are those of ``tests/training/conftest.py``, configured as trn1.32xlarge with a Neuron release
of the XLA line. Launcher, torchrun and workers are separate processes, each with the replacements
of ``on_cpu``.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.nxd import on_cpu
from tests.training.conftest import Cluster
from trainium_catalogue.contract import checkpoint_name

STEPS, SAVE_EVERY = 12, 3
SHAPE = (
    *("--vocab-size=256", "--hidden-size=32", "--intermediate-size=64", "--num-layers=2"),
    *("--num-heads=4", "--num-kv-heads=4", "--seq-len=16"),
)
WORDS = (
    *SHAPE,
    *("--dataset=words", "--global-batch=8", "--micro-batch=2", "--warmup-steps=2", "--lr=0.01"),
    *(f"--max-steps={STEPS}", f"--save-every={SAVE_EVERY}", "--keep-last=10"),
    *(f"--eval-every={SAVE_EVERY}", "--peer-timeout-s=5"),
)
_WITHIN_S = 240.0


class Nodes(Cluster):
    """Nodes of a job that look like Neuron nodes to the launcher."""

    def __init__(self, folder: Path, *, num_nodes: int, processes: int) -> None:
        super().__init__(folder, num_nodes=num_nodes)
        self._processes = processes

    def environment(self, index: int) -> dict[str, str]:
        """A node's."""
        env = super().environment(index)
        del env["TRAINIUM_DEVICE"]
        return {
            **env,
            **on_cpu.environment(),
            "TRAINIUM_INSTANCE_TYPE": on_cpu.INSTANCE_TYPE,
            "TRAINIUM_NEURON_RELEASE": on_cpu.RELEASE,
            "TRAINIUM_PROCESSES_PER_NODE": str(self._processes),
        }


@dataclass
class LocalRuns:
    """A folder with a dataset and its runs."""

    folder: Path
    clusters: list[Cluster] = field(default_factory=list)
    _attempts: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def root(self) -> Path:
        """Return the folder that replaces the bucket."""
        return self.folder / "build"

    def start(
        self,
        run: str,
        *words: str,
        nodes: int = 1,
        processes: int = 1,
        workload: str = "llama-tiny",
        native: bool = False,
        extra: Mapping[str, str] | None = None,
    ) -> Cluster:
        """Start an attempt of ``run``; ``native`` runs on the CPU without NxD."""
        cluster = (
            Cluster(self.folder, num_nodes=nodes)
            if native
            else Nodes(self.folder, num_nodes=nodes, processes=processes)
        )
        self.clusters.append(cluster)
        attempt = next(self._attempts)
        cluster.start(
            *(words if workload != "llama-tiny" else (*WORDS, *words)),
            workload=workload,
            extra={
                "TRAINIUM_RUN": run,
                "AWS_BATCH_JOB_ATTEMPT": str(attempt),
                "TRAINIUM_PROCESSES_PER_NODE": str(processes),
                **(extra or {}),
            },
        )
        return cluster

    def finish(self, run: str, *words: str, **where: Any) -> str:
        """Run an attempt to its end; return its log."""
        cluster = self.start(run, *words, **where)
        codes = cluster.end(within_s=_WITHIN_S)
        assert set(codes.values()) == {0}, cluster.all_logs()
        return cluster.all_logs()

    def copy(self, run: str, name: str, *, up_to: int) -> None:
        """Copy ``run`` with its checkpoints up to ``up_to``."""
        source, target = self.root / "runs" / run, self.root / "runs" / name
        shutil.copytree(source / "checkpoints", target / "checkpoints")
        for folder in (target / "checkpoints").iterdir():
            if folder.name > checkpoint_name(up_to):
                shutil.rmtree(folder)
        for key in ("run.json", "metrics/train.jsonl"):
            (target / key).parent.mkdir(exist_ok=True)
            shutil.copy(source / key, target / key)

    def checkpoint(self, run: str, step: int) -> Path:
        """Its folder."""
        return self.root / "runs" / run / "checkpoints" / checkpoint_name(step)

    def lines(self, run: str, event: str) -> list[dict[str, Any]]:
        """Of train.jsonl."""
        text = (self.root / "runs" / run / "metrics/train.jsonl").read_text()
        return [line for line in map(json.loads, text.splitlines()) if line["event"] == event]

    def losses(self, run: str) -> list[float]:
        """Of the steps, each once and in order."""
        steps = self.lines(run, "step")
        assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
        return [line["loss"] for line in steps]

    def held_out(self, run: str) -> list[float]:
        """Return the losses of the validation split."""
        return [line["val_loss"] for line in self.lines(run, "evaluation")]

    def close(self) -> None:
        """Kill what still runs."""
        for cluster in self.clusters:
            cluster.kill()


def write_digits(root: Path) -> None:
    """Create a dataset ``digits`` of 80 images whose bright spot encodes the label."""
    import numpy as np

    from training.datasets.manifest import DatasetManifest, finish_dataset, store_file
    from training.datasets.prepared.images import KIND, SPLITS, images_name, labels_name, write_idx
    from training.storage import open_objects

    objects = open_objects(str(root / "datasets/digits"), region=None, endpoint_url=None)
    files = []
    for split, count in zip(SPLITS, (64, 16), strict=True):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), labels * 2] = 255
        for path, values in (
            (root / images_name(split), images),
            (root / labels_name(split), labels),
        ):
            write_idx(path, values)
            files.append(store_file(objects, path, samples=count, on_bytes=lambda n: None))
    facts = {"epochs": 3, "accuracy": [0.0, 1.0]}
    finish_dataset(objects, DatasetManifest(kind=KIND, source={}, facts=facts, shards=tuple(files)))


def flip_a_bit(folder: Path) -> str:
    """Flip a bit in the middle of a checkpoint's largest file; return its name."""
    path = max(folder.glob("*.distcp"), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path.name
