"""The mnist workload: data-parallel training on handwritten digits, then a test.

Network, learning rate, batch and epochs are as in the reference (aws-neuron-samples,
``mnist_mlp``), but the order changes every epoch, and padding of the last test batch does not
count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from training.backends import open_backend
from training.core.config import Optimizer, TrainConfig
from training.datasets.manifest import DatasetManifest
from training.datasets.prepared.images import (
    KIND,
    SPLITS,
    images_name,
    labels_name,
    read_idx,
)
from training.datasets.samples.staging import stage
from training.models.mnist.data import Digits, evaluation_batches, training_batches
from training.models.mnist.network import SHAPE, MlpNetwork, count_correct
from training.trainer.task import Dataset, FinalReport, Report, StagingParameters, Task
from training.trainer.trainer import train
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import TrainingPlan

if TYPE_CHECKING:
    from training.backends.base import Backend, DataParallel
    from training.core.device import Device
    from training.core.job import Job
    from training.trainer.records import StepRecord

_TEST_BATCH = 256
"""Images per worker and test batch."""


def run(job: Job) -> None:
    """Train; the workload's entry point."""
    train(job, MnistTask())


class MnistTask(Task):
    """MNIST training as a ``Task``."""

    @property
    def first_lines(self) -> tuple[str, ...]:
        """The reference's first log line."""
        return ("----------Training ---------------",)

    depends_on_num_ranks = True

    def check(self, values: Mapping[str, Value], num_ranks: int) -> None:
        """Accept any values, since every batch size works with any number of ranks."""

    def open_data(self, staging: StagingParameters, values: Mapping[str, Value]) -> Dataset:
        """Open the images that the prepare workload stored."""
        manifest = stage(
            staging.objects,
            staging.cache,
            parse=lambda data, name: DatasetManifest.from_json(data, name=name, kind=KIND),
            made_by="prepare",
            is_leader=staging.is_leader,
            wait=staging.wait,
            report=staging.report,
        )
        manifest.bounds("accuracy")  # fail now rather than after training
        train, test = (
            Digits(
                images=read_idx(staging.cache / images_name(split)).reshape(-1, SHAPE.num_inputs),
                labels=read_idx(staging.cache / labels_name(split)),
            )
            for split in SPLITS
        )
        return Dataset(
            samples=len(train.images),
            facts={"data_sha256": manifest.fingerprint},
            tokenizer_sha256=None,
            content=(train, test, manifest),
        )

    def config(
        self, values: Mapping[str, Value], num_ranks: int, dataset: Dataset | None
    ) -> TrainConfig:
        """Derive batch and learning rate from the number of workers, and steps from the images."""
        assert dataset is not None  # nothing is compiled ahead of time
        manifest: DatasetManifest = dataset.content[2]
        batch_size = int(values["batch-size"])
        plan = TrainingPlan(
            shape=SHAPE,
            num_ranks=num_ranks,
            tensor_parallel=1,
            global_batch=batch_size * num_ranks,
            micro_batch=batch_size,
            seq_len=1,
        )
        epochs = int(values["epochs"]) or manifest.fact("epochs")
        return TrainConfig(
            plan=plan,
            max_steps=math.ceil(epochs * dataset.samples / plan.global_batch),
            steps_this_run=0,
            learning_rate=float(values["lr"]) * num_ranks,
            warmup_steps=0,
            decays_learning_rate=False,
            optimizer=Optimizer.SGD,
            mixed=False,
            weight_decay=0.0,
            beta1=0.0,
            beta2=0.0,
            adam_eps=0.0,
            max_grad_norm=0.0,
            seed=int(values["seed"]),
            activation_checkpointing=False,
            save_every=int(values["save-every"]),
            keep_last=2,
            keep_every=0,
            async_save=True,
            checkpoint_uri="",
            log_every=int(values["log-every"]),
        )

    def backend(self, config: TrainConfig, device: Device, *, report: Report) -> Backend:
        """Open a data-parallel backend."""
        return open_backend(config, device, MlpNetwork(config), report=report)

    def batches(
        self, config: TrainConfig, dataset: Dataset, backend: Any
    ) -> Callable[[range], Any]:
        """Return a function that reads images of the training set."""
        return training_batches(dataset.content[0], seed=config.seed)

    def finish(
        self,
        config: TrainConfig,
        dataset: Dataset,
        backend: DataParallel,
        last: StepRecord | None,
        values: Mapping[str, Value],
    ) -> FinalReport:
        """Evaluate on the test set, and report the reference's metrics."""
        _, test, manifest = dataset.content
        batches = evaluation_batches(
            test, rank=backend.rank, num_ranks=backend.num_ranks, size=_TEST_BATCH
        )
        hits = sum(backend.evaluate(batch, count_correct) for batch in batches)
        accuracy = hits / len(test.images)
        low, high = manifest.bounds("accuracy")
        is_in_range = low <= accuracy <= high
        lines, metrics = [], [("Test accuracy", round(accuracy, 4), "")]
        if last is not None:
            steps_per_second = last.throughput / config.plan.global_batch
            lines += [
                f"Train throughput (iter/sec): {steps_per_second}",
                f"Final loss is {last.loss:0.4f}",
            ]
        lines += [
            f"Test accuracy: {accuracy:.4f} on {len(test.images)} images, "
            f"{'within' if is_in_range else 'OUTSIDE'} {low} to {high}",
            "----------End Training ---------------",
        ]
        problem = None
        if values["require-accuracy"] and not is_in_range:
            problem = (
                f"accuracy {accuracy:.4f} is outside {low} to {high}, the expected range for this "
                "dataset with the defaults; check the loss curve, or omit --require-accuracy"
            )
        return FinalReport(lines=tuple(lines), metrics=tuple(metrics), problem=problem)
