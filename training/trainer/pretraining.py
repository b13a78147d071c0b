"""The workloads that train: train, or compile what training needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from training.core.ranks import Ranks
from training.trainer.evaluation import HeldOut, evaluation_of
from training.trainer.loop import Loop
from training.trainer.run import Run
from training.trainer.vote import Vote
from training.trainer.watch import Watch
from trainium_catalogue.models import LLAMA_PRESETS

if TYPE_CHECKING:
    from training.trainer.recipe import Recipe
    from training.workloads import Job

_COMPILED_STEPS = 3
"""The first step, the steady state, and one to see that nothing is compiled any more."""
_EVALUATED_AFTER = 2
"""Steps: where the run evaluates, its graph is compiled too, and a step is made after it."""


def _llama() -> Recipe:
    from training.models.llama.task import LlamaTask

    return LlamaTask()


def _bert() -> Recipe:
    from training.models.bert.task import BertTask

    return BertTask()


def _mnist() -> Recipe:
    from training.models.mnist.task import MnistTask

    return MnistTask()


RECIPES: Mapping[str, Callable[[], Recipe]] = MappingProxyType(
    {**dict.fromkeys(LLAMA_PRESETS, _llama), "bert": _bert, "bert-tiny": _bert, "mnist": _mnist}
)
"""Each workload that trains; its model is imported when it is made."""


def run(job: Job) -> None:
    """Entry point of the workloads that train."""
    recipe = RECIPES[job.store.workload]()
    if job.values.get("compile-only"):
        compile_graphs(job, recipe)
    else:
        Run(job, recipe).go()


def compile_graphs(job: Job, recipe: Recipe) -> None:
    """Make the steps of a run on random data, for the graphs alone; nothing is saved."""
    config = recipe.config(job.values, job.device.num_ranks, None)
    config = dataclasses.replace(
        config,
        max_steps=max(config.max_steps, _COMPILED_STEPS),
        steps_this_run=_COMPILED_STEPS,
        save_every=0,
        eval_every=_EVALUATED_AFTER if config.eval_every else 0,
    )
    backend = recipe.backend(config, job.device, peak_flops=None, report=job.progress.report)
    job.progress.report("building the model")
    backend.build()
    batch = recipe.random_batches(config, backend)
    watch = Watch(config, None, sequences_per_epoch=config.plan.global_batch, peak_flops=None)

    def report(text: str) -> None:
        job.progress.report(f"compiling: {text}")

    held_out = HeldOut(batch=batch, num_sequences=config.plan.global_batch)
    Loop(
        config=config,
        backend=backend,
        batch=batch,
        checkpoints=None,
        meta={},
        watch=watch,
        stop=job.stop,
        vote=Vote(Ranks(), report),
        report=report,
        evaluate=evaluation_of(
            held_out if config.eval_every else None,
            config=config,
            backend=backend,
            watch=watch,
            report=report,
        ),
    ).run(0)
    if job.device.rank == 0:
        print(f"compile: {_COMPILED_STEPS} steps were made", flush=True)
