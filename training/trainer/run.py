"""One job of a run, on one rank: open what it needs, continue it, train, leave it complete."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.checkpoint import Checkpoints
from training.core.ranks import Ranks
from training.core.stopping import Stopped
from training.storage import Objects, open_objects
from training.trainer.evaluation import evaluation_of
from training.trainer.loop import Ending, Loop
from training.trainer.metrics_files import RunFiles
from training.trainer.recipe import Material, Outcome, Recipe, Staging, WrongOutcome
from training.trainer.report import first_status, place, plan_line, reference_parameters
from training.trainer.runs import RANKS, RunConfig, RunLock, RunLost, checkpoint_root
from training.trainer.vote import Vote
from training.trainer.watch import Watch
from trainium_catalogue.contract import CACHE_PREFIX, DATASETS_PREFIX, RUNS_PREFIX
from trainium_catalogue.instances import find_instance_type

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.core.config import TrainConfig
    from training.workloads import Job

_BEAT_S = 1.0


class NoDataset(ValueError):
    """A new run that does not say what to train on."""


class Run:
    """One rank's part in one job of a run."""

    def __init__(self, job: Job, recipe: Recipe) -> None:
        self._job, self._context, self._recipe = job, job.context, recipe
        self._ranks = Ranks()
        self._leads = job.device.rank == 0
        context = job.context
        # Beside the launcher's other files, or below build/ where there is no bucket.
        self._cache = job.store.root / "cache"
        self._all = self._open(f"s3://{context.bucket}" if context.bucket else str(job.store.root))
        self._root = self._all.at(f"{RUNS_PREFIX}{context.run}")
        self._files: RunFiles | None = None
        self._lock: RunLock | None = None

    def go(self) -> None:
        """Hold the run's name while training, and say how it ended."""
        if self._leads:
            self._lock = RunLock(
                self._root,
                self._context.job_id,
                self._context.attempt,
                run=self._context.run,
                node=f"node {self._context.node_index}",
                say=_say,
                report=self._job.progress.report,
            )
        self._patiently("waiting for the run's lock", lambda: self._ranks.agree(self._acquire))
        try:
            ending = self._train()
        except RunLost:
            if self._files is not None:
                self._files.abandon()
            raise
        except BaseException as error:
            if self._files is not None:
                self._files.status(now=True, state="failed", error=str(error))
                self._files.close(within_s=_BEAT_S * 5)
            raise
        finally:
            # A lock that is not released is free again when its heartbeat is old.
            if self._lock is not None:
                self._lock.release()
        if ending is Ending.STOPPED:
            raise Stopped

    def _acquire(self) -> None:
        assert self._lock is not None
        self._lock.acquire()

    def _train(self) -> Ending:
        job, context = self._job, self._context
        settled = self._ranks.agree(self._settle)
        recipe, values, num_ranks = self._recipe, settled.values, job.device.num_ranks
        recipe.check(values, num_ranks)
        name = str(values["dataset"])
        material = recipe.open_data(self._staging(name), values)
        config = recipe.config(values, num_ranks, material)
        peak_flops = _peak_flops(job)
        backend = recipe.backend(
            config, job.device, peak_flops=peak_flops, report=job.progress.report
        )
        if self._leads:
            self._files = RunFiles(
                self._root,
                self._cache / "runs" / context.run,
                context=context,
                workload=job.store.workload,
                lustre=Path(context.lustre) / RUNS_PREFIX / context.run if context.lustre else None,
            )
            self._files.status(
                now=True,
                **first_status(context, workload=job.store.workload, max_steps=config.max_steps),
            )
        ranks = {RANKS: num_ranks} if recipe.follows_ranks else {}
        settled = settled.with_facts(run=context.run, facts={**ranks, **material.facts})
        self._ranks.agree(lambda: settled.save(self._root))
        watch = Watch(
            config,
            self._files,
            sequences_per_epoch=material.samples,
            peak_flops=peak_flops,
        )
        checkpoints = Checkpoints(
            checkpoint_root(
                self._all,
                context.run,
                settled,
                region=context.region,
                endpoint_url=context.endpoint_url,
            ),
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            say=_say,
            report=job.progress.report,
            # A job that has lost the run's name completes no checkpoint under it.
            guard=self._lock.check if self._lock is not None else lambda: None,
            on_saved=watch.saved,
            on_failed=watch.save_failed,
        )
        job.progress.report("building the model")
        backend.build()
        meta = self._meta(config, backend, material)
        done = self._resume(backend, checkpoints, meta)
        self._begin(config, backend, done)
        loop = Loop(
            config=config,
            backend=backend,
            batch=recipe.batches(config, material, backend),
            checkpoints=checkpoints,
            meta=meta,
            watch=watch,
            stop=job.stop,
            vote=Vote(self._ranks, job.progress.report),
            report=job.progress.report,
            say=_say if self._leads else lambda text: None,
            check=self._lock.check if self._lock is not None else lambda: None,
            evaluate=evaluation_of(
                recipe.held_out(config, material),
                config=config,
                backend=backend,
                watch=watch,
                report=job.progress.report,
            ),
        )
        job.stop.defer()
        ending = loop.run(done)
        outcome = Outcome()
        if ending is Ending.FINISHED:
            outcome = recipe.finish(config, material, backend, watch.last, values)
        self._end(config, ending, outcome, dataset=name)
        if outcome.problem is not None:
            raise WrongOutcome(outcome.problem)
        return ending

    def _settle(self) -> RunConfig:
        """What the run is: this submission's words, and what earlier ones have left."""
        settled = RunConfig.settle(
            RunConfig.load(self._root),
            run=self._context.run,
            workload=self._job.store.workload,
            values=self._job.values,
            given=self._job.given,
        )
        if not settled.values["dataset"]:
            raise NoDataset(
                f"run {self._context.run} is new and names no dataset; submit with --dataset, the "
                "name that tokenize gave it"
            )
        return settled

    def _staging(self, name: str) -> Staging:
        """Where the dataset is, and where it goes on this node."""
        context = self._context
        is_leader = self._job.device.rank % context.processes_per_node == 0
        folder = self._cache / "datasets" / name
        if context.lustre is not None:
            # All nodes see the same files. Not below datasets/: a file system of the user's own may
            # export that to the bucket, and to replace a damaged file would delete the object.
            is_leader = self._leads
            folder = Path(context.lustre) / CACHE_PREFIX / DATASETS_PREFIX / name
        return Staging(
            objects=self._all.at(f"{DATASETS_PREFIX}{name}"),
            cache=folder,
            is_leader=is_leader,
            wait=lambda: self._patiently(f"waiting for dataset {name}", self._meet),
            report=self._job.progress.report,
        )

    def _meet(self) -> None:
        self._ranks.gather(None)

    def _meta(self, config: TrainConfig, backend: Backend, material: Material) -> dict[str, Any]:
        """What every checkpoint says about itself."""
        tokenizer = {"tokenizer_sha256": material.tokenizer_sha256}
        return {
            "run": self._context.run,
            "model": dataclasses.asdict(config.shape),
            **(tokenizer if material.tokenizer_sha256 is not None else {}),
            "world_size": backend.num_ranks,
            "tensor_parallel": config.plan.tensor_parallel,
            "data_parallel": config.plan.data_parallel,
        }

    def _resume(self, backend: Backend, checkpoints: Checkpoints, meta: dict[str, Any]) -> int:
        """Load the newest complete checkpoint; returns the steps that it holds."""
        self._job.progress.report("looking for checkpoints")
        info = checkpoints.latest()
        if info is None:
            return 0
        info.refuse_other(model=meta["model"], tokenizer_sha256=meta.get("tokenizer_sha256"))
        began_s = time.monotonic()
        loaded = backend.load(checkpoints, info)
        if self._leads:
            _say(
                f"continuing from {loaded.name} ({loaded.num_bytes >> 20} MiB, loaded in "
                f"{time.monotonic() - began_s:.1f} s)"
            )
        return loaded.step

    def _begin(self, config: TrainConfig, backend: Backend, done: int) -> None:
        if self._files is None:
            return
        _say(plan_line(config, done=done, backend=backend.name))
        self._files.begin(
            done, place(self._context, num_ranks=backend.num_ranks, backend=backend.name)
        )
        compiles = self._context.device != "cpu"
        self._files.status(now=True, step=done, state="compiling" if compiles else "training")
        _print(self._recipe.first_lines)

    def _end(self, config: TrainConfig, ending: Ending, outcome: Outcome, *, dataset: str) -> None:
        if self._files is None:
            return
        self._files.event("end", {"status": ending.value})
        state = "finished" if ending is Ending.FINISHED else "stopped"
        if outcome.problem is not None:
            state = "failed"
        self._files.status(now=True, state=state, eta_seconds=None, error=outcome.problem)
        self._job.progress.report("writing results")
        parameters = reference_parameters(
            config,
            workload=self._job.store.workload,
            dataset=dataset,
            device=self._context.device,
            environment=self._job.environment,
        )
        self._files.finish(parameters=parameters, log_every=config.log_every, more=outcome.metrics)
        # Complete: nothing is added any more.
        self._files = None
        _print(outcome.lines)
        _say(f"{ending.value}; results are in {self._root.uri}")

    def _patiently(self, text: str, action: Callable[[], None]) -> None:
        """Wait for other ranks, which may download or wait themselves; only they can hang."""
        errors: list[BaseException] = []

        def act() -> None:
            try:
                action()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_BEAT_S)
            self._job.progress.report(text)
        if errors:
            raise errors[0]

    def _open(self, uri: str) -> Objects:
        return open_objects(
            uri, region=self._context.region, endpoint_url=self._context.endpoint_url
        )


def _peak_flops(job: Job) -> float | None:
    """Of one rank; unknown on CPUs."""
    if job.context.device == "cpu" or job.context.instance_type is None:
        return None
    return find_instance_type(job.context.instance_type).peak_flops_per_process


def _say(text: str) -> None:
    """One line into the log, of rank 0."""
    print(f"training: {text}", flush=True)


def _print(lines: Iterable[str]) -> None:
    """As the reference writes them."""
    for line in lines:
        print(line, flush=True)
