"""Is this device, with this release, right? Sums, losses, a resumed run and the cache, in minutes.

Then the probes, which look from here whether the claims of docs/claims.toml hold.

    python -m jobs submit verify --nodes 1

The losses to find were made on a CPU in fp32 and are part of the repository.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from training.backends import open_backend
from training.checkpoint import Checkpoints
from training.checkpoint.ranks import Ranks
from training.contract import DeviceKind
from training.failures import describe
from training.objects import open_objects
from training.objects.client import Client
from training.payload import compare, tile
from training.probes import PROBES, Check, Node
from training.probes.survey import look, merged, record, waiting
from training.sweep import rank_pattern, sum_pattern
from training.verify_model import (
    BF16,
    FP32,
    MOST_RANKS,
    STEPS,
    config_for,
    deviations,
    golden,
    train,
)
from trainium_catalogue.contract import CACHE_PREFIX, run_prefix
from trainium_catalogue.probing import NODE_RECORD, Finding, State

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.progress import RunContext
    from training.workloads import Job

_SAVED_STEP = 4
_TRAINING = ("parity", "resume")
_ELEMENTS = 2**18


class VerificationFailed(ValueError):
    """At least one check did not find what it should have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one check found."""

    check: str
    ok: bool
    detail: str


class Verification:
    """One rank's part in the checks; all ranks make the same ones in the same order."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ranks = Ranks()
        self._trains = job.device.num_ranks <= MOST_RANKS
        self._config = config_for(min(job.device.num_ranks, MOST_RANKS))
        self._tolerance = FP32 if job.device.kind is DeviceKind.CPU else BF16
        self._losses: list[tuple[float, float]] = []
        self._backend: Backend | None = None
        self._ended: dict[str, Check] = {}
        self._graphs: dict[int, int] = {}
        context = job.context
        self._storage = open_objects(
            f"s3://{context.bucket}" if context.bucket else str(job.store.root),
            region=context.region,
            endpoint_url=context.endpoint_url,
        )
        self.checks: dict[str, Callable[[], Outcome]] = {
            "sums": self.sums,
            "parity": self.parity,
            "resume": self.resume,
            "cache": self.cache,
        }

    def run(self) -> None:
        """Make the checks that were asked for; ``VerificationFailed`` names those that fail."""
        chosen = self._chosen()
        if self._leads:
            self._job.store.start_metrics()
            self._say(f"{len(chosen)} checks of {', '.join(self.checks)}")
        # Now, so that they are in the bucket also when a check breaks off; the rest afterwards.
        findings = self._probe(list(PROBES.by_id))
        outcomes = []
        for name in chosen:
            self._job.progress.report(f"verifying: {name}")
            begin = time.monotonic()
            try:
                outcome = self.checks[name]()
            except Exception as error:
                # Other ranks may be waiting for this one: the job ends here.
                raise VerificationFailed(f"check {name} broke off: {describe(error)}") from error
            self._say(f"{name:<8} {'passed' if outcome.ok else 'FAILED'}: {outcome.detail}")
            outcomes.append(outcome)
            self._ended[name] = Check(
                ok=outcome.ok, detail=outcome.detail, seconds=time.monotonic() - begin
            )
        self._probe(waiting(findings), findings)
        if self._leads:
            self._write(outcomes)
        # The first rank to fail ends the job: let the result be written first.
        self._ranks.gather(None)
        if failed := [outcome for outcome in outcomes if not outcome.ok]:
            raise VerificationFailed(
                "; ".join(f"{outcome.check}: {outcome.detail}" for outcome in failed)
            )

    def _probe(self, names: Sequence[str], before: Sequence[Finding] = ()) -> list[Finding]:
        """Run probes on the first worker of every node, and leave what all found in the bucket."""
        context = self._job.context
        node = Node(
            context=context,
            num_ranks=self._job.device.num_ranks,
            env=self._job.variables,
            storage=self._storage,
            s3=lambda: _s3_client(context),
            checks=self._ended,
            graphs=self._graphs,
        )
        first_of_node = self._job.device.rank % context.processes_per_node == 0
        mine = look(node, self._job.progress.report, names) if first_of_node else None
        by_node = [found for found in self._ranks.gather(mine) if found is not None]
        found = {finding.id: finding for finding in (*before, *merged(by_node))}
        findings = list(found.values())
        if self._leads:
            self._job.store.put(NODE_RECORD, record(node, findings))
            for finding in findings if before else ():
                if finding.state is not State.NOT_RUN:
                    self._say(f"probe {finding.id}: {finding.state}: {finding.seen}")
        return findings

    def _chosen(self) -> list[str]:
        words = str(self._job.values["checks"])
        possible = [name for name in self.checks if self._trains or name not in _TRAINING]
        chosen = possible if words == "all" else words.split(",")
        for name in chosen:
            if name not in self.checks:
                raise ValueError(
                    f"checks={words} names {name!r}; there are {', '.join(self.checks)}"
                )
            if name not in possible:
                raise ValueError(
                    f"checks={words}: {self._job.device.num_ranks} ranks cannot share the batch of "
                    f"{name}, {MOST_RANKS} can; submit with fewer nodes, or with "
                    f"--checks {','.join(possible)}"
                )
        return chosen

    def sums(self) -> Outcome:
        """Sums over all ranks, which are known exactly, in the types that carry them."""
        device, wrong, example = self._job.device, 0, ""
        for data_type in (torch.int32, torch.float32):
            mine = tile(rank_pattern(device.rank), _ELEMENTS, data_type)
            placed = device.place(mine)
            device.all_reduce(placed)
            device.synchronize()
            count, text = compare(device.fetch(placed), sum_pattern(device.num_ranks))
            wrong, example = wrong + count, example or text
        ranks = [(rank, text) for rank, text in enumerate(self._ranks.gather(example)) if text]
        if ranks:
            rank, text = ranks[0]
            return Outcome(
                check="sums",
                ok=False,
                detail=f"wrong on {len(ranks)} ranks, first on rank {rank}{text}",
            )
        detail = f"{_ELEMENTS} elements over {device.num_ranks} ranks are exact, int32 and fp32"
        return Outcome(check="sums", ok=True, detail=detail)

    def parity(self) -> Outcome:
        """Losses and norms are those of a CPU in fp32."""
        found = self._trained()
        loss, norm = deviations(found, golden())
        ok = loss <= self._tolerance.loss and norm <= self._tolerance.norm
        return Outcome(
            check="parity",
            ok=ok,
            detail=(
                f"loss {found[0][0]:.4f} to {found[-1][0]:.4f} in {STEPS} steps, off by "
                f"{loss:.1e} of {self._tolerance.loss:.0e}; norms by {norm:.1e} of "
                f"{self._tolerance.norm:.0e}"
            ),
        )

    def resume(self) -> Outcome:
        """A checkpoint brings back what it was made of: the next losses are the same again."""
        before = self._trained()[_SAVED_STEP:]
        assert self._backend is not None
        info = self._checkpoints.latest()
        if info is None:
            return Outcome(check="resume", ok=False, detail="the checkpoint is not there")
        loaded = self._backend.load(self._checkpoints, info)
        after = self._train(range(_SAVED_STEP + 1, STEPS + 1))
        loss, _ = deviations(after, before)
        ok = loaded.step == _SAVED_STEP and loss <= self._tolerance.resumed
        return Outcome(
            check="resume",
            ok=ok,
            detail=(
                f"after {loaded.name} ({self._backend.checkpoint_format}, "
                f"{loaded.num_bytes / 1e6:.1f} MB) the next {len(after)} losses are off by "
                f"{loss:.1e} of {self._tolerance.resumed:.0e}"
            ),
        )

    def cache(self) -> Outcome:
        """The place of compiled graphs takes an object and gives it back."""
        return self._ranks.agree(self._write_to_cache)

    def _write_to_cache(self) -> Outcome:
        key = f"{CACHE_PREFIX}verify/{self._job.context.job_id}"
        data = self._job.context.run.encode()
        self._storage.put(key, data)
        same = self._storage.get(key) == data
        self._storage.delete([key])
        detail = f"{self._storage.uri}/{CACHE_PREFIX} takes objects and gives them back"
        return Outcome(check="cache", ok=same, detail=detail if same else "other bytes came back")

    def _trained(self) -> list[tuple[float, float]]:
        """The uninterrupted steps, made once, with a checkpoint in between."""
        if self._losses:
            return self._losses
        backend = open_backend(
            self._config, self._job.device, peak_flops=None, report=self._job.progress.report
        )
        self._job.progress.report("building the model")
        backend.build()
        self._backend = backend
        context = self._job.context
        self._checkpoints = Checkpoints(
            self._storage.at(run_prefix(context.run, "checkpoints").rstrip("/")),
            keep_last=1,
            keep_every=0,
            say=self._say,
            report=self._job.progress.report,
        )
        self._losses = self._train(range(1, _SAVED_STEP + 1))
        plan = self._config.plan
        meta = {
            "run": context.run,
            "tensor_parallel": plan.tensor_parallel,
            "data_parallel": plan.data_parallel,
        }
        backend.save(self._checkpoints, _SAVED_STEP, meta, asynchronous=False)
        self._checkpoints.wait()
        self._losses += self._train(range(_SAVED_STEP + 1, STEPS + 1))
        return self._losses

    def _train(self, steps: range) -> list[tuple[float, float]]:
        assert self._backend is not None
        return train(self._backend, self._config, steps, self._begin_step)

    def _begin_step(self, text: str) -> None:
        self._job.progress.report(text)
        graphs = num_compiled_graphs(self._job.device.kind)
        if graphs is not None and len(self._graphs) < STEPS:
            self._graphs[len(self._graphs) + 1] = graphs

    @property
    def _leads(self) -> bool:
        return self._job.device.rank == 0

    def _write(self, outcomes: Sequence[Outcome]) -> None:
        context = self._job.context
        document = {
            "run": context.run,
            "workload": "verify",
            "status": "passed" if all(outcome.ok for outcome in outcomes) else "failed",
            "device": context.device,
            "instance_type": context.instance_type,
            "neuron_release": context.neuron_release,
            "num_ranks": self._job.device.num_ranks,
            "tensor_parallel": self._config.plan.tensor_parallel,
            "checks": {o.check: {"ok": o.ok, "detail": o.detail} for o in outcomes},
            "steps": [{"loss": loss, "grad_norm": norm} for loss, norm in self._losses],
        }
        for place in self._job.store.finish(document):
            self._say(f"written: {place}")

    def _say(self, text: str) -> None:
        if self._leads:
            print(f"verify: {text}", flush=True)


def num_compiled_graphs(kind: DeviceKind) -> int | None:
    """How many graphs torch_xla has compiled in this process; None where there is none."""
    if kind is not DeviceKind.XLA:
        return None
    try:
        from torch_xla.debug import metrics
    except ImportError:
        return None
    counted = metrics.metric_data("CompileTime")
    return int(counted[0]) if counted else 0


def _s3_client(context: RunContext) -> Any:
    return Client(region=context.region, endpoint_url=context.endpoint_url, num_connections=1).get()


def run(job: Job) -> None:
    """Entry point of the workload."""
    Verification(job).run()
