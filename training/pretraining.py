"""The pre-training workloads: train, or compile what training needs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from training.backends import open_backend
from training.config import TrainConfig
from training.llama.data import random_batches
from training.loop import Loop
from training.run import Run
from training.watch import Watch

if TYPE_CHECKING:
    from training.workloads import Job

_COMPILED_STEPS = 3
"""The first step, the steady state, and one to see that nothing is compiled any more."""


def run(job: Job) -> None:
    """Entry point of the workloads that train."""
    if job.values["compile-only"]:
        compile_graphs(job)
    else:
        Run(job).go()


def compile_graphs(job: Job) -> None:
    """Make the steps of a run on random tokens, for the graphs alone; nothing is saved."""
    config = TrainConfig.from_values(job.values, job.device.num_ranks)
    config = dataclasses.replace(
        config,
        max_steps=max(config.max_steps, _COMPILED_STEPS),
        steps_this_run=_COMPILED_STEPS,
        save_every=0,
    )
    backend = open_backend(config, job.device, peak_flops=None, report=job.progress.report)
    job.progress.report("building the model")
    backend.build()
    plan = config.plan
    Loop(
        config=config,
        backend=backend,
        batch=random_batches(
            vocab_size=plan.shape.vocab_size, seed=config.seed, seq_len=plan.seq_len
        ),
        checkpoints=None,
        meta={},
        watch=Watch(config, None, sequences_per_epoch=plan.global_batch, peak_flops=None),
        stop=job.stop,
        report=lambda text: job.progress.report(f"compiling: {text}"),
    ).run(0)
    if job.device.rank == 0:
        print(f"compile: {_COMPILED_STEPS} steps were made", flush=True)
