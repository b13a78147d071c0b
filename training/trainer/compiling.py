"""Compile a run's graphs by training a few steps on random data; nothing is saved."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from training.core.ranks import Ranks
from training.trainer.loop import Loop
from training.trainer.metrics import MetricsRecorder
from training.trainer.task import HeldOutSplit

if TYPE_CHECKING:
    from training.core.job import Job
    from training.trainer.task import Task

log = logging.getLogger(__name__)

_COMPILED_STEPS = 3
"""The first step, a steady-state step, and one to verify that nothing else is compiled."""
_EVALUATED_AFTER = 2
"""Steps before the evaluation, which has its own graph; one step follows it."""


def compile_graphs(job: Job, task: Task) -> None:
    """Run the steps that cover all graphs of the run."""
    config = task.config(job.values, job.device.num_ranks, None)
    config = dataclasses.replace(
        config,
        max_steps=max(config.max_steps, _COMPILED_STEPS),
        steps_this_run=_COMPILED_STEPS,
        save_every=0,
        eval_every=_EVALUATED_AFTER if config.eval_every else 0,
    )
    backend = task.backend(config, job.device, report=job.progress.report)
    job.progress.report("building the model")
    backend.build()
    batch, num_sequences = task.random_batches(config, backend), config.plan.global_batch
    Loop(
        config=config,
        backend=backend,
        batch=batch,
        metrics=MetricsRecorder(config, None, sequences_per_epoch=num_sequences, peak_flops=None),
        stop=job.stop,
        ranks=Ranks.open(),
        report=lambda text: job.progress.report(f"compiling: {text}"),
        held_out=HeldOutSplit(batch=batch, num_sequences=num_sequences)
        if config.eval_every
        else None,
    ).run(0)
    if job.device.rank == 0:
        log.info("compile: ran %d steps", _COMPILED_STEPS)
