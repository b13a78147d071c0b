"""One job of a run, on one rank: open what it needs, continue it, train, leave it complete."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.backends import open_backend
from training.checkpoint import Checkpoints
from training.checkpoint.ranks import Ranks
from training.config import TrainConfig
from training.data.packed import PackedDataset, open_dataset
from training.llama.data import packed_batches
from training.loop import Ending, Loop
from training.metrics_files import RunFiles
from training.objects import Objects, open_objects
from training.report import first_status, place, plan_line, reference_parameters
from training.runs import RunConfig, RunLock, RunLost, checkpoint_root
from training.stopping import Stopped
from training.watch import Watch
from trainium_catalogue.contract import DATASETS_PREFIX, RUNS_PREFIX
from trainium_catalogue.instances import find_instance_type

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.workloads import Job

_BEAT_S = 1.0


class NoDataset(ValueError):
    """A new run that does not say what to train on."""


class Run:
    """One rank's part in one job of a run."""

    def __init__(self, job: Job) -> None:
        self._job, self._context = job, job.context
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
        config = TrainConfig.from_values(settled.values, job.device.num_ranks)
        peak_flops = _peak_flops(job)
        backend = open_backend(
            config, job.device, peak_flops=peak_flops, report=job.progress.report
        )
        dataset = self._dataset(str(settled.values["dataset"]), backend, config)
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
        manifest = dataset.manifest
        facts = {
            "tokenizer_sha256": manifest.tokenizer_sha256,
            "num_tokens": manifest.num_tokens,
            "eos_id": manifest.eos_id,
        }
        settled = settled.with_facts(run=context.run, facts=facts)
        self._ranks.agree(lambda: settled.save(self._root))
        watch = Watch(
            config,
            self._files,
            sequences_per_epoch=dataset.num_sequences(config.plan.seq_len),
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
        meta = self._meta(config, backend, manifest.tokenizer_sha256)
        done = self._resume(backend, checkpoints, meta)
        self._begin(config, backend, done)
        loop = Loop(
            config=config,
            backend=backend,
            batch=packed_batches(dataset, seed=config.seed, seq_len=config.plan.seq_len),
            checkpoints=checkpoints,
            meta=meta,
            watch=watch,
            stop=job.stop,
            report=job.progress.report,
            check=self._lock.check if self._lock is not None else lambda: None,
        )
        job.stop.defer()
        ending = loop.run(done)
        self._end(config, ending, dataset=str(settled.values["dataset"]))
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

    def _dataset(self, name: str, backend: Backend, config: TrainConfig) -> PackedDataset:
        """The dataset on this node, refused if the model cannot read it."""
        context = self._context
        is_leader = self._job.device.rank % context.processes_per_node == 0
        folder = self._cache / "datasets" / name
        if context.lustre is not None:
            # All nodes see the same files.
            is_leader, folder = self._leads, Path(context.lustre) / DATASETS_PREFIX / name
        dataset = open_dataset(
            self._all.at(f"{DATASETS_PREFIX}{name}"),
            folder,
            is_leader=is_leader,
            wait=lambda: self._patiently(f"waiting for dataset {name}", backend.barrier),
            report=self._job.progress.report,
        )
        dataset.require(vocab_size=config.shape.vocab_size, seq_len=config.plan.seq_len)
        return dataset

    def _meta(self, config: TrainConfig, backend: Backend, tokenizer_sha256: str) -> dict[str, Any]:
        """What every checkpoint says about itself."""
        return {
            "run": self._context.run,
            "model": dataclasses.asdict(config.shape),
            "tokenizer_sha256": tokenizer_sha256,
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
        info.refuse_other(model=meta["model"], tokenizer_sha256=meta["tokenizer_sha256"])
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

    def _end(self, config: TrainConfig, ending: Ending, *, dataset: str) -> None:
        if self._files is None:
            return
        self._files.event("end", {"status": ending.value})
        state = "finished" if ending is Ending.FINISHED else "stopped"
        self._files.status(now=True, state=state, eta_seconds=None)
        self._job.progress.report("writing results")
        parameters = reference_parameters(
            config,
            workload=self._job.store.workload,
            dataset=dataset,
            device=self._context.device,
        )
        self._files.finish(parameters=parameters, log_every=config.log_every)
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
