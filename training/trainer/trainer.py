"""A job of a run on one rank: set up, resume, train, finish."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.checkpoint import Checkpoints
from training.checkpoint.folders import CheckpointFolders
from training.core.job import StopRequested
from training.core.ranks import Ranks
from training.storage import StorageAccess, StorageUnavailable
from training.storage.run_lock import RunLock, RunLost
from training.trainer.compiling import compile_graphs
from training.trainer.loop import EVALUATED, Loop, LoopEnd
from training.trainer.metrics import MetricsRecorder
from training.trainer.records import TrainingEndLine
from training.trainer.run_files import RunFiles, reference_parameters
from training.trainer.runs import INIT_SHA256, RANKS, RunConfig, checkpoint_root
from training.trainer.task import Dataset, FinalReport, StagingParameters, Task, WrongOutcome
from trainium_catalogue.contract import CACHE_PREFIX, DATASETS_PREFIX, RUNS_PREFIX
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.models.shapes import defaults_of

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.core.config import TrainConfig
    from training.core.job import Job

log = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0
_HISTORY = "train.jsonl"
"""Name of the run's metrics in a checkpoint."""
_FAILURE_UPLOAD_TIMEOUT_S = 5.0
"""Time limit for a failing job to upload its last metrics."""


class NoDataset(ValueError):
    """A new run was submitted without a dataset."""


def train(job: Job, task: Task) -> None:
    """Train, or only compile the graphs for training."""
    if job.values.get("compile-only"):
        compile_graphs(job, task)
    else:
        Trainer(job, task).run()


class Trainer:
    """A rank's part in a job of a run; all ranks call the same methods in the same order."""

    run_config: RunConfig
    dataset: Dataset
    config: TrainConfig
    backend: Backend
    metrics: MetricsRecorder
    checkpoints: Checkpoints

    def __init__(self, job: Job, task: Task) -> None:
        self.job, self.context, self.task = job, job.context, task
        self.report = job.progress.report
        self.is_leader = job.device.rank == 0
        # The cache is next to the launcher's other files or, without a bucket, below build/.
        self.cache = job.store.root / "cache"
        self.storage = StorageAccess.of(self.context, local=job.store.root)
        self.bucket = self.storage.open_root()
        self.root = self.bucket.at(f"{RUNS_PREFIX}{self.context.run}")
        self.lock: RunLock | None = None
        self.files: RunFiles | None = None
        """Set only on rank 0, until the files are complete."""
        self.has_pending_evaluation = False

    def run(self) -> None:
        """Train while holding the run's lock, and report the outcome."""
        self.ranks = Ranks.open()
        with self._run_lock(), self._record_failure():
            self.open()
            done = self.resume()
            outcome = self.train(done)
            self.finish(outcome)
        if outcome is LoopEnd.STOPPED:
            raise StopRequested

    def open(self) -> None:
        """Resolve the run's configuration, stage its data, and build its model."""
        job, task, num_ranks = self.job, self.task, self.job.device.num_ranks
        self.run_config = self.ranks.agree(self._resolve)
        values = self.run_config.values
        task.check(values, num_ranks)
        self.context.check_backend(values)
        pretrained_facts: Mapping[str, Any] = {}
        # Pretrained weights are not needed once there is a checkpoint, except for adapters.
        if values.get("init-from") and (values.get("lora-rank") or self.ranks.agree(self._is_new)):
            pretrained_facts = task.begin_from(values, self.storage, self.ranks, report=self.report)
        self.dataset = task.open_data(self._staging(str(values["dataset"])), values)
        self.config = config = task.config(values, num_ranks, self.dataset)
        self.backend = task.backend(config, job.device, report=self.report)
        if self.is_leader:
            self.files = self._open_files()
            self.files.announce(max_steps=config.max_steps)
        facts = {**({RANKS: num_ranks} if task.depends_on_num_ranks else {}), **self.dataset.facts}
        facts.update(pretrained_facts)
        self.run_config = self.run_config.with_facts(run=self.context.run, facts=facts)
        self.ranks.agree(lambda: self.run_config.save(self.root, self._confirm_lock))
        self.metrics = MetricsRecorder(
            config,
            self.files,
            sequences_per_epoch=self.dataset.samples,
            peak_flops=_peak_flops(job),
            on_step=job.progress.made,
        )
        self.checkpoints = Checkpoints(
            checkpoint_root(self.storage, self.bucket, self.context.run, self.run_config),
            Ranks.open(),
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            say=_say,
            report=self.report,
            # A job that has lost the run's lock must not complete a checkpoint.
            guard=self._confirm_lock,
            attached=self._attachments,
            on_saved=self.metrics.saved,
            on_failed=self.metrics.save_failed,
        )
        self.report("building the model")
        self.backend.build()

    def resume(self) -> int:
        """Resume from the newest complete checkpoint, if any; return the number of steps done."""
        self.report("looking for checkpoints")
        done, history = 0, None
        if (info := self.checkpoints.latest()) is not None:
            info.refuse_other(
                model=dataclasses.asdict(self.config.shape),
                tokenizer_sha256=self.dataset.tokenizer_sha256,
                assumed=defaults_of(self.config.shape),
            )
            began_s = time.monotonic()
            loaded = self.backend.load(self.checkpoints, info)
            done = loaded.step
            self.has_pending_evaluation = self.config.evaluates_after(done) and not loaded.meta.get(
                EVALUATED, True
            )
            if self.is_leader:
                history = self.checkpoints.attachment(loaded, _HISTORY)
                _say(
                    f"continuing from {loaded.name} ({loaded.num_bytes >> 20} MiB, loaded in "
                    f"{time.monotonic() - began_s:.1f} s)"
                )
        if self.files is not None:
            _say(_plan_line(self.config, done=done, backend=self.backend.name))
            self.files.begin(
                done,
                num_ranks=self.backend.num_ranks,
                backend=self.backend.name,
                history=history,
            )
            self._check_lock()
            self.files.status(
                now=True,
                step=done,
                # A run that already has more steps than requested is complete, not at 215%.
                max_steps=max(self.config.max_steps, done),
                state="training" if self.context.device == "cpu" else "compiling",
            )
            _print(self.task.first_lines)
        return done

    def train(self, done: int) -> LoopEnd:
        """Train after ``done`` steps; from now on, save before exiting on a stop request."""
        loop = Loop(
            config=self.config,
            backend=self.backend,
            batch=self.task.batches(self.config, self.dataset, self.backend),
            metrics=self.metrics,
            stop=self.job.stop,
            ranks=self.ranks,
            report=self.report,
            checkpoints=self.checkpoints,
            meta=self._meta(),
            held_out=self.task.held_out(self.config, self.dataset),
            has_pending_evaluation=self.has_pending_evaluation,
            say=_say if self.is_leader else lambda text: None,
            check=self._check_lock,
        )
        self.job.stop.defer()
        return loop.run(done)

    def finish(self, outcome: LoopEnd) -> None:
        """Finish the task and complete the run's files."""
        final = FinalReport()
        if outcome is LoopEnd.FINISHED:
            final = self.task.finish(
                self.config, self.dataset, self.backend, self.metrics.last, self.run_config.values
            )
        if self.files is not None:
            self.files.event(TrainingEndLine, {"status": outcome.value})
            state = "finished" if outcome is LoopEnd.FINISHED else "stopped"
            if final.problem is not None:
                state = "failed"
            self.files.status(now=True, state=state, eta_seconds=None, error=final.problem)
            self.report("writing results")
            parameters = reference_parameters(
                self.config,
                model=str(self.run_config.values.get("model") or self.job.store.workload),
                dataset=str(self.run_config.values["dataset"]),
                device=self.context.device,
                environment=self.job.environment,
            )
            self.files.finish(
                parameters=parameters, log_every=self.config.log_every, more=final.metrics
            )
            # The files are complete.
            self.files = None
            _print(final.lines)
            _say(f"{outcome.value}; results are in {self.root.uri}")
        if final.problem is not None:
            raise WrongOutcome(final.problem)

    @contextlib.contextmanager
    def _run_lock(self) -> Iterator[None]:
        """Hold the run's lock, or refuse to train."""
        if self.is_leader:
            self.lock = RunLock(
                self.root,
                self.context.job_id,
                self.context.attempt,
                run=self.context.run,
                node=f"node {self.context.node_index}",
                say=_say,
                report=self.report,
            )
        try:
            self._wait_with_progress(
                "waiting for the run's lock", lambda: self.ranks.agree(self._acquire)
            )
            yield
        finally:
            # Best effort: an unreleased lock becomes free once its heartbeat is stale.
            if self.lock is not None:
                self.lock.release()

    def _acquire(self) -> None:
        assert self.lock is not None
        self.lock.acquire()

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()

    def _confirm_lock(self) -> None:
        if self.lock is not None:
            self.lock.confirm()

    def _holds_run(self) -> bool:
        try:
            self._confirm_lock()
        except RunLost:
            return False
        return True

    def _attachments(self) -> Mapping[str, bytes]:
        """Return the files to attach to every checkpoint."""
        return {} if self.files is None else {_HISTORY: self.files.history()}

    @contextlib.contextmanager
    def _record_failure(self) -> Iterator[None]:
        """Record the failure in the run's files, unless they now belong to another job."""
        try:
            yield
        except RunLost:
            if self.files is not None:
                self.files.abandon()
            raise
        except BaseException as error:
            if self.files is not None:
                self.files.status(now=True, state="failed", error=str(error))
                with contextlib.suppress(StorageUnavailable):
                    self.files.close(within_s=_FAILURE_UPLOAD_TIMEOUT_S)
            raise

    def _resolve(self) -> RunConfig:
        """Resolve the run's configuration from this and earlier submissions."""
        resolved = RunConfig.resolve(
            RunConfig.load(self.root),
            run=self.context.run,
            workload=self.job.store.workload,
            values=self.job.values,
            given=self.job.given,
        )
        if not resolved.values["dataset"]:
            raise NoDataset(
                f"run {self.context.run} is new and has no dataset; submit with --dataset and the "
                "name used with tokenize"
            )
        return resolved

    def _is_new(self) -> bool:
        """Return whether the run has no checkpoint to resume from."""
        root = checkpoint_root(self.storage, self.bucket, self.context.run, self.run_config)
        # Nothing is deleted or logged here: ``resume`` checks again.
        return not CheckpointFolders(root, keep_last=1, keep_every=0, say=_say).complete_steps()

    def _staging(self, name: str) -> StagingParameters:
        """Locate the dataset and its folder on this node."""
        context = self.context
        is_leader = self.job.device.rank % context.processes_per_node == 0
        folder = self.cache / "datasets" / name
        if context.lustre is not None:
            # All nodes share the files. Not below datasets/, which a user's own file system may
            # export to the bucket: replacing a damaged file would then delete the object.
            is_leader = self.is_leader
            folder = Path(context.lustre) / CACHE_PREFIX / DATASETS_PREFIX / name
        return StagingParameters(
            objects=self.bucket.at(f"{DATASETS_PREFIX}{name}"),
            cache=folder,
            is_leader=is_leader,
            wait=lambda: self._wait_with_progress(
                f"waiting for dataset {name}", lambda: self.ranks.gather(None)
            ),
            report=self.report,
        )

    def _open_files(self) -> RunFiles:
        context = self.context
        return RunFiles(
            self.root,
            self.cache / "runs" / context.run,
            context=context,
            workload=self.job.store.workload,
            lustre=Path(context.lustre) / RUNS_PREFIX / context.run if context.lustre else None,
            holds=self._holds_run,
        )

    def _meta(self) -> dict[str, Any]:
        """Return the metadata of every checkpoint."""
        tokenizer = self.dataset.tokenizer_sha256
        init_sha256 = self.run_config.facts.get(INIT_SHA256)
        return {
            "run": self.context.run,
            **({INIT_SHA256: init_sha256} if init_sha256 is not None else {}),
            "model": dataclasses.asdict(self.config.shape),
            **({"tokenizer_sha256": tokenizer} if tokenizer is not None else {}),
            "world_size": self.backend.num_ranks,
            "tensor_parallel": self.config.plan.tensor_parallel,
            "data_parallel": self.config.plan.data_parallel,
        }

    def _wait_with_progress(self, text: str, action: Callable[[], object]) -> None:
        """Run ``action``, which waits for other ranks, while reporting progress.

        ``action`` runs in another thread, so that this one can still receive a stop request.
        """
        errors: list[BaseException] = []

        def act() -> None:
            try:
                action()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_HEARTBEAT_S)
            self.report(text)
        if errors:
            raise errors[0]


def _plan_line(config: TrainConfig, *, done: int, backend: str) -> str:
    """Format the derived numbers for the log."""
    plan = config.plan
    return (
        f"{plan.shape.num_parameters:,} parameters; tensor parallel {plan.tensor_parallel} x data "
        f"parallel {plan.data_parallel}; global batch {plan.global_batch} = {plan.data_parallel} "
        f"data-parallel ranks x {plan.micro_batch} sequences x {plan.accumulation_steps} "
        f"accumulation steps; {plan.tokens_per_step:,} tokens per step; "
        f"steps {done + 1} to {config.last_step(done)} "
        f"of {config.max_steps}; a checkpoint takes {plan.checkpoint_bytes / 1e9:.3g} GB; backend "
        f"{backend}"
    )


def _peak_flops(job: Job) -> float | None:
    """Return the peak FLOPS of one rank; None on CPUs or if the instance type is unknown."""
    if job.context.device == "cpu" or job.context.instance_type is None:
        return None
    return find_instance_type(job.context.instance_type).peak_flops_per_process


def _say(text: str) -> None:
    """Write one line to the log, for rank 0."""
    log.info("training: %s", text)


def _print(lines: Iterable[str]) -> None:
    """Write lines in the reference's format."""
    for line in lines:
        log.info("%s", line)
