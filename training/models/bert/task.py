"""BERT pre-training on HDF5 shards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from training.backends import open_backend
from training.datasets.manifest import DatasetError, DatasetManifest
from training.datasets.prepared.bert_shards import KIND
from training.datasets.samples.staging import stage
from training.models.bert.data import Batch, ShardOrder, random_batches, shard_batches
from training.models.bert.network import BertNetwork
from training.trainer.task import Dataset, Report, StagingParameters, Task
from training.trainer.trainer import train
from trainium_catalogue.parameters.parameter import Value

if TYPE_CHECKING:
    from training.backends.base import Backend, DataParallel
    from training.core.config import TrainConfig
    from training.core.device import Device
    from training.core.job import Job

_MATCHING_FACTS = {"seq-len": "seq_len", "max-predictions": "max_predictions"}
"""Maps parameters to the facts of the dataset that must match."""


def run(job: Job) -> None:
    """Train; the workload's entry point."""
    train(job, BertTask())


class BertTask(Task):
    """BERT pre-training as a ``Task``."""

    def open_data(self, staging: StagingParameters, values: Mapping[str, Value]) -> Dataset:
        """Open a dataset made by prepare."""
        manifest = stage(
            staging.objects,
            staging.cache,
            parse=lambda data, name: DatasetManifest.from_json(data, name=name, kind=KIND),
            made_by="prepare",
            is_leader=staging.is_leader,
            wait=staging.wait,
            report=staging.report,
        )
        _require(manifest, values)
        return Dataset(
            samples=manifest.samples,
            facts={"data_sha256": manifest.fingerprint},
            tokenizer_sha256=None,
            content=([staging.cache / file.name for file in manifest.shards], manifest),
        )

    def backend(self, config: TrainConfig, device: Device, *, report: Report) -> Backend:
        """Open a data-parallel backend."""
        return open_backend(config, device, BertNetwork(config), report=report)

    def batches(
        self, config: TrainConfig, dataset: Dataset, backend: Any
    ) -> Callable[[range], Any]:
        """Return a function that reads sequences from the shards."""
        paths, manifest = dataset.content
        order = ShardOrder(
            seed=config.seed,
            sizes=tuple(file.samples for file in manifest.shards),
            global_batch=config.plan.global_batch,
        )
        batch = shard_batches(paths, order, positions_per_rank=config.positions_per_rank)
        return _seeded(batch, backend, config)

    def random_batches(self, config: TrainConfig, backend: Any) -> Callable[[range], Any]:
        """Return a function that makes random sequences."""
        batch = random_batches(
            vocab_size=config.shape.vocab_size,
            seed=config.seed,
            seq_len=config.plan.seq_len,
            max_predictions=config.max_predictions,
        )
        return _seeded(batch, backend, config)


def _seeded(
    batch: Callable[[range], Batch], backend: DataParallel, config: TrainConfig
) -> Callable[[range], Batch]:
    """Seed dropout by position, so that a resumed run drops the same elements."""

    def seeded(positions: range) -> Batch:
        if config.dropout:
            digest = hashlib.sha256(f"{config.seed}/dropout/{positions.start}".encode()).digest()
            backend.seed(int.from_bytes(digest[:4], "little"))
        return batch(positions)

    return seeded


def _require(manifest: DatasetManifest, values: Mapping[str, Value]) -> None:
    """Refuse a dataset that does not match the model."""
    for parameter, fact in _MATCHING_FACTS.items():
        value = manifest.fact(fact)
        if value != values[parameter]:
            raise DatasetError(
                f"the dataset has {fact}={value}, but the run has {parameter}={values[parameter]}; "
                f"submit with --{parameter} {value}"
            )
    vocab_size = manifest.fact("vocab_size")
    if vocab_size > int(values["vocab-size"]):
        raise DatasetError(
            f"the dataset has token IDs up to {vocab_size - 1:,}, but the model's vocabulary has "
            f"only {int(values['vocab-size']):,} tokens; train with --vocab-size {vocab_size}"
        )
