"""Training of Llama and similar decoders on packed tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from training.backends import open_backend
from training.datasets.samples.packed import open_dataset
from training.models.llama.data import packed_batches, random_batches
from training.models.llama.network import LlamaNetwork
from training.models.llama.pretrained import PretrainedModel
from training.trainer.runs import INIT_SHA256
from training.trainer.task import Dataset, HeldOutSplit, Report, StagingParameters, Task
from training.trainer.trainer import train
from trainium_catalogue.parameters.parameter import Value

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.core.config import TrainConfig
    from training.core.device import Device
    from training.core.job import Job
    from training.core.ranks import Ranks
    from training.storage import StorageAccess


def run(job: Job) -> None:
    """Train; the workload's entry point."""
    train(job, LlamaTask())


class LlamaTask(Task):
    """Training of a decoder as a ``Task``."""

    _pretrained: PretrainedModel | None = None
    """The pretrained weights, if any."""

    @property
    def first_lines(self) -> tuple[str, ...]:
        """Log lines about the pretrained weights."""
        return () if self._pretrained is None else (self._pretrained.line,)

    def begin_from(
        self, values: Mapping[str, Value], storage: StorageAccess, ranks: Ranks, *, report: Report
    ) -> Mapping[str, Any]:
        """Open the model of ``--init-from``."""
        if not values["init-from"]:
            return {}
        self._pretrained = PretrainedModel.open(values, storage, ranks, report=report)
        return {INIT_SHA256: self._pretrained.sha256}

    def open_data(self, staging: StagingParameters, values: Mapping[str, Value]) -> Dataset:
        """Open a dataset that the tokenize workload created."""
        seq_len = int(values["seq-len"])
        packed = open_dataset(
            staging.objects,
            staging.cache,
            is_leader=staging.is_leader,
            wait=staging.wait,
            report=staging.report,
        )
        packed.require(
            vocab_size=int(values["vocab-size"]),
            seq_len=seq_len,
            responses=bool(values["responses"]),
        )
        if int(values["eval-every"]):
            packed.require_validation(seq_len=seq_len)
        manifest = packed.manifest
        return Dataset(
            samples=packed.num_sequences(seq_len),
            facts={
                "tokenizer_sha256": manifest.tokenizer_sha256,
                "num_tokens": manifest.num_tokens,
                "eos_id": manifest.eos_id,
            },
            tokenizer_sha256=manifest.tokenizer_sha256,
            content=packed,
        )

    def backend(self, config: TrainConfig, device: Device, *, report: Report) -> Backend:
        """Open a backend with tensor parallelism."""
        network = LlamaNetwork(config, self._pretrained)
        return open_backend(config, device, network, report=report)

    def batches(
        self, config: TrainConfig, dataset: Dataset, backend: Any
    ) -> Callable[[range], Any]:
        """Return a function that reads tokens of the dataset."""
        return packed_batches(
            dataset.content,
            seed=config.seed,
            seq_len=config.plan.seq_len,
            document_eos_id=_document_eos_id(config, dataset),
            group=config.plan.global_batch,
        )

    def held_out(self, config: TrainConfig, dataset: Dataset) -> HeldOutSplit | None:
        """Return the dataset's validation split, unless evaluation is off."""
        if config.eval_every == 0:
            return None
        seq_len = config.plan.seq_len
        split = dataset.content.require_validation(seq_len=seq_len)
        num_sequences = min(config.eval_sequences, split.num_sequences(seq_len))
        return HeldOutSplit(
            batch=packed_batches(
                split,
                # A constant, so that losses are comparable across runs.
                seed=0,
                seq_len=seq_len,
                document_eos_id=_document_eos_id(config, dataset),
                group=num_sequences,
            ),
            num_sequences=num_sequences,
        )

    def random_batches(self, config: TrainConfig, backend: Any) -> Callable[[range], Any]:
        """Return a function that makes random tokens."""
        return random_batches(
            vocab_size=config.shape.vocab_size,
            seed=config.seed,
            seq_len=config.plan.seq_len,
            # Any id will do, since it is not part of the graph.
            document_eos_id=0 if config.document_masks else None,
            has_weights=config.responses,
        )


def _document_eos_id(config: TrainConfig, dataset: Dataset) -> int | None:
    """Return the end-of-document id if documents must not attend to each other, else None."""
    return dataset.content.manifest.eos_id if config.document_masks else None
