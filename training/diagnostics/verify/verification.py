"""Run one rank's part of the checks, in order, and write the results."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.backends import open_backend
from training.core.contract import DeviceKind
from training.core.failures import describe
from training.core.ranks import Ranks
from training.diagnostics.probes import PROBES, ProbedNode, VerifyResult
from training.diagnostics.probes.node import merged, record, run_probes, waiting
from training.diagnostics.verify import checks
from training.diagnostics.verify.checks import LlamaChecks
from training.diagnostics.verify.reference import Step
from training.diagnostics.verify.run import TrialRun, num_compiled_graphs
from training.diagnostics.verify.settings import (
    BF16,
    FP32,
    config_for,
    tokens,
)
from training.models.llama.network import LlamaNetwork
from training.storage import open_objects
from training.storage.s3 import SharedClient
from trainium_catalogue.contract import run_prefix
from trainium_catalogue.parameters.verify import ALL, CHECKS_OF_THE_LLAMA
from trainium_catalogue.probing import NODE_RECORD, Finding, State
from trainium_catalogue.torus import RANKS_OF_A_CHIP
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from training.backends.base import Network
    from training.core.config import TrainConfig
    from training.core.contract import NodeContract
    from training.core.job import Job

log = logging.getLogger(__name__)


class VerificationFailed(ValueError):
    """At least one check failed."""


class Verification:
    """Runs the checks; all ranks run the same ones in the same order."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks = job, ranks
        self._tolerance = FP32 if job.device.kind is DeviceKind.CPU else BF16
        self._results: dict[str, VerifyResult] = {}
        self._run: TrialRun | None = None
        self._llama: LlamaChecks | None = None
        context = job.context
        self._storage = open_objects(
            f"s3://{context.bucket}" if context.bucket else str(job.store.root),
            region=context.region,
            endpoint_url=context.endpoint_url,
        )
        self.checks: dict[str, Callable[[], VerifyResult]] = {
            "sums": lambda: checks.sums(job.device, self._ranks),
            **{name: self._llama_check(name) for name in CHECKS_OF_THE_LLAMA},
            "families": lambda: self._train_models("families"),
            "attention": lambda: checks.attention(job.device, self._tolerance, self._ranks),
            "data-parallel": lambda: self._train_models("data-parallel"),
            "cache": lambda: checks.cache(self._storage, context, self._ranks),
        }
        self._impossible = self._find_impossible()

    def run(self) -> None:
        """Run the requested checks; raise ``VerificationFailed`` with those that fail."""
        chosen = self._select_checks()
        if self._is_rank_zero:
            self._job.store.start_metrics()
            self._log(f"{counted(len(chosen), 'check')}: {', '.join(chosen)}")
            for name, reason in self._impossible.items():
                self._log(f"{name:<13} skipped: {reason}")
        # First, so that findings reach the bucket even if a check crashes. More follow below.
        findings = self._probe(list(PROBES.by_id))
        for name in chosen:
            self._job.progress.report(f"verifying: {name}")
            begin = time.monotonic()
            try:
                result = self.checks[name]()
            except Exception as error:
                # End the job, because other ranks may be waiting for this one.
                raise VerificationFailed(f"check {name} crashed: {describe(error)}") from error
            self._log(f"{name:<13} {'passed' if result.ok else 'FAILED'}: {result.detail}")
            self._results[name] = replace(result, seconds=time.monotonic() - begin)
        self._probe(waiting(findings), findings)
        if self._is_rank_zero:
            self._write()
        # Wait for the results to be written: the first rank to fail ends the job.
        self._ranks.gather(None)
        failed = [f"{name}: {each.detail}" for name, each in self._results.items() if not each.ok]
        if failed:
            raise VerificationFailed("; ".join(failed))

    def _probe(self, names: Sequence[str], before: Sequence[Finding] = ()) -> list[Finding]:
        """Run probes on the first worker of every node, and store all findings in the bucket."""
        context = self._job.context
        node = ProbedNode(
            context=context,
            num_ranks=self._job.device.num_ranks,
            hang_limit_s=self._job.hang_limit_s,
            env=self._job.variables,
            storage=self._storage,
            s3=lambda: _s3_client(context),
            checks=self._results,
        )
        first_of_node = self._job.device.rank % context.processes_per_node == 0
        mine = run_probes(node, self._job.progress.report, names) if first_of_node else None
        by_node = [each for each in self._ranks.gather(mine) if each is not None]
        by_id = {finding.id: finding for finding in (*before, *merged(by_node))}
        findings = list(by_id.values())
        if self._is_rank_zero:
            self._job.store.put(NODE_RECORD, record(node, findings))
            for finding in findings if before else ():
                if finding.state is not State.NOT_RUN:
                    self._log(f"probe {finding.id}: {finding.state}: {finding.seen}")
        return findings

    def _find_impossible(self) -> dict[str, str]:
        """Map checks that cannot run here to their reasons."""
        kind, reasons = self._job.device.kind, dict[str, str]()
        if kind is not DeviceKind.XLA:
            reasons["attention"] = f"on {kind} no model uses Neuron's kernel"
        try:
            self._config()
        except ValueError as error:
            if int(self._job.values["tensor-parallel"]):
                raise
            return reasons | dict.fromkeys((*CHECKS_OF_THE_LLAMA, "families"), str(error))
        if self._count_graphs() is None:
            reasons["graphs"] = f"on {kind} compilations cannot be counted"
        return reasons

    def _select_checks(self) -> list[str]:
        """Return the chosen checks in the order of ``self.checks``: some depend on earlier ones."""
        words = str(self._job.values["checks"])
        if words == ALL:
            return [name for name in self.checks if name not in self._impossible]
        requested = words.split(",")
        for name in requested:
            if reason := self._impossible.get(name):
                raise ValueError(f"checks={words}: {name} cannot run: {reason}")
        return [name for name in self.checks if name in requested]

    def _config(self) -> TrainConfig:
        return config_for(self._job.device.num_ranks, self._degree)

    @property
    def _degree(self) -> int:
        """Tensor-parallel degree; 0 means the default."""
        degree = int(self._job.values["tensor-parallel"])
        if degree or self._job.device.kind is not DeviceKind.TORCH_NEURON:
            return degree
        # A Trn2 instance's torus cannot route the groups of the default degree (torus.py).
        return math.gcd(RANKS_OF_A_CHIP, self._job.device.num_ranks)

    def _count_graphs(self) -> int | None:
        return num_compiled_graphs(self._job.device.kind)

    def _llama_check(self, name: str) -> Callable[[], VerifyResult]:
        def check() -> VerifyResult:
            if self._llama is None:
                config = self._config()
                self._run = self._open("llama", config, LlamaNetwork(config), tokens)
                self._llama = LlamaChecks(self._run, self._tolerance, Ranks.open())
            result: VerifyResult = getattr(self._llama, name)()
            return result

        return check

    def _train_models(self, check: str) -> VerifyResult:
        """Compare a few steps of several models on the same number of ranks."""
        results = []
        for case in checks.MODELS[check]:
            config = case.config(self._job.device.num_ranks, self._degree)
            run = self._open(case.folder, config, case.network(config), case.batches)
            results.append(checks.check_case(case, run, self._tolerance))
        return VerifyResult(
            ok=all(ok for ok, _ in results), detail=" | ".join(text for _, text in results)
        )

    def _open(
        self, folder: str, config: TrainConfig, network: Network, batches: Callable[[range], Any]
    ) -> TrialRun:
        report = self._job.progress.report
        return TrialRun(
            config,
            open_backend(config, self._job.device, network, report=report),
            batches,
            self._storage.at(f"{run_prefix(self._job.context.run, 'checkpoints')}{folder}"),
            count_graphs=self._count_graphs,
            log=self._log,
            report=report,
        )

    @property
    def _is_rank_zero(self) -> bool:
        return self._job.device.rank == 0

    def _write(self) -> None:
        context = self._job.context
        steps: list[Step] = self._run.steps if self._run else []
        document = {
            "run": context.run,
            "workload": "verify",
            "status": "passed" if all(each.ok for each in self._results.values()) else "failed",
            "device": context.device,
            "instance_type": context.instance_type,
            "neuron_release": context.neuron_release,
            "num_ranks": self._job.device.num_ranks,
            "tensor_parallel": self._run.config.plan.tensor_parallel if self._run else None,
            "checks": {
                name: {"ok": each.ok, "detail": each.detail} for name, each in self._results.items()
            },
            "steps": [{"loss": loss, "grad_norm": norm} for loss, norm in steps],
        }
        for place in self._job.store.finish(document):
            self._log(f"written: {place}")

    def _log(self, text: str) -> None:
        if self._is_rank_zero:
            log.info("verify: %s", text)


def _s3_client(context: NodeContract) -> Any:
    return SharedClient(
        region=context.region, endpoint_url=context.endpoint_url, num_connections=1
    ).get()


def run(job: Job) -> None:
    """Entry point of the workload."""
    Verification(job, Ranks.open()).run()
