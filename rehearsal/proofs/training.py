"""Reads a training run's results from the bucket, and checks them against the plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.deployment.aws import DeploymentBucket, EmulatedAccount
from rehearsal.receipt import ReceiptCheck, TrainingAttempt
from trainium_catalogue import contract
from trainium_catalogue.probing import RECORD, State
from trainium_catalogue.wording import counted

Json = dict[str, Any]
_LOGGED = re.compile(r"training: step (\d+) of \d+: loss (\S+),")
_BAD = (State.RED, State.CRASHED)
_ENDS = 5
"""Number of steps at each end of the run whose mean losses are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTraining:
    """The plan of a run: its steps, saves and killed node."""

    max_steps: int
    save_every: int
    killed_after: int
    eval_every: int = 0
    """0: no held-out split."""


@dataclass(slots=True, kw_only=True)
class TrainingEvidence:
    """The results of the actual run."""

    attempts: list[TrainingAttempt] = field(default_factory=list)
    resumed_from: int | None = None
    tokens_per_second: float | None = None
    checks: list[ReceiptCheck] = field(default_factory=list)


def gather(
    aws: EmulatedAccount, *, run: str, log: Path, download: Path, plan: ExpectedTraining
) -> TrainingEvidence:
    """Read and check metrics, status, checkpoints and the exported model."""
    results = gather_training(aws, run=run, log=log, plan=plan)
    results.checks.append(judge_export(download))
    return results


def gather_training(
    aws: EmulatedAccount, *, run: str, log: Path, plan: ExpectedTraining
) -> TrainingEvidence:
    """Read and check metrics, status and checkpoints."""
    bucket = DeploymentBucket(aws)
    lines = bucket.text(contract.run_key(run, contract.TRAIN_METRICS)).splitlines()
    events = [json.loads(line) for line in lines]
    resumed = [event["step"] for event in events if event["event"] == "resume"]
    results = TrainingEvidence(
        attempts=attempts(events),
        resumed_from=resumed[-1] if resumed else None,
        tokens_per_second=_rate(events),
    )
    name = contract.checkpoint_name(plan.max_steps)
    prefix = f"{contract.run_prefix(run, 'checkpoints')}{name}/"
    results.checks = [
        *judge_steps(events, plan, resumed_from=results.resumed_from),
        *([judge_validation(events, plan)] if plan.eval_every else []),
        judge_repeated(log.read_text(encoding="utf-8") if log.exists() else ""),
        judge_marker(bucket.text(prefix + contract.CHECKPOINT_MARKER), bucket.sizes(prefix), plan),
        judge_finished(aws, run, step=plan.max_steps),
    ]
    return results


def judge_finished(aws: EmulatedAccount, run: str, *, step: int | None = None) -> ReceiptCheck:
    """Check that the run has finished at the expected step."""
    status = DeploymentBucket(aws).document(contract.run_key(run, contract.RUN_STATUS))
    return ReceiptCheck(
        name="the run's status is finished",
        ok=status.get("state") == "finished" and step in (None, status.get("step")),
        detail=f"{status.get('state')} at step {status.get('step')}",
    )


def judge_probes(aws: EmulatedAccount, run: str) -> ReceiptCheck:
    """Check that all probes that need no hardware passed, and none crashed."""
    return judge_record(
        DeploymentBucket(aws).text(f"{contract.run_prefix(run, 'results')}{RECORD}")
    )


def judge_record(text: str) -> ReceiptCheck:
    """Check a record of probes, in which probes that need hardware or an account were not run."""
    findings = json.loads(text)["findings"] if text else []
    states = [finding["state"] for finding in findings]
    bad = [f"{f['id']} {f['state']}: {f['seen']}" for f in findings if f["state"] in _BAD]
    summary = (
        f"{states.count(State.GREEN)} green, {states.count(State.NOT_RUN)} need hardware or AWS"
    )
    return ReceiptCheck(
        name="probes that need no hardware are green, and none crashed",
        ok=State.GREEN in states and not bad,
        detail="; ".join([summary, *bad]),
    )


def attempts(events: Sequence[Json]) -> list[TrainingAttempt]:
    """Group steps and losses by attempt; the metrics list a step only in its last attempt."""
    by_attempt: dict[int, dict[int, float]] = {}
    for event in events:
        if event["event"] == "step":
            by_attempt.setdefault(event["attempt"], {})[event["step"]] = event["loss"]
    return [
        TrainingAttempt(
            attempt=number, steps=sorted(losses), losses=[losses[step] for step in sorted(losses)]
        )
        for number, losses in sorted(by_attempt.items())
    ]


def judge_steps(
    events: Sequence[Json], plan: ExpectedTraining, *, resumed_from: int | None
) -> list[ReceiptCheck]:
    """Check that each step occurs once, the run resumed at the right step, and the loss fell."""
    steps = [event for event in events if event["event"] == "step"]
    numbers = [event["step"] for event in steps]
    losses = [event["loss"] for event in sorted(steps, key=lambda event: event["step"])]
    first = _mean(losses[:_ENDS])
    last = _mean(losses[-_ENDS:])
    complete = (plan.killed_after // plan.save_every) * plan.save_every
    return [
        ReceiptCheck(
            name="the metrics have every step exactly once",
            ok=numbers == list(range(1, plan.max_steps + 1)),
            detail=(
                f"{counted(len(numbers), 'line')}, {counted(len(set(numbers)), 'step')} of "
                f"{plan.max_steps}"
            ),
        ),
        ReceiptCheck(
            name="the second attempt resumed from the newest complete checkpoint",
            ok=resumed_from == complete,
            detail=f"killed after step {plan.killed_after}, resumed from step {resumed_from}, "
            f"previous save at step {complete}",
        ),
        ReceiptCheck(
            name="the loss fell",
            ok=last < first,
            detail=f"mean of the first {_ENDS} steps {first:.3f}, of the last {last:.3f}",
        ),
    ]


def judge_validation(events: Sequence[Json], plan: ExpectedTraining) -> ReceiptCheck:
    """Check that the held-out split was evaluated at the right steps, and its loss fell."""
    evaluations = [(e["step"], e["val_loss"]) for e in events if e["event"] == "evaluation"]
    summary = [
        f"{'none' if loss is None else f'{loss:.3f}'} after step {step}"
        for step, loss in evaluations
    ]
    steps = sorted({*range(plan.eval_every, plan.max_steps + 1, plan.eval_every), plan.max_steps})
    losses = [loss for _, loss in evaluations]
    return ReceiptCheck(
        name="the validation loss was computed, and fell",
        ok=[step for step, _ in evaluations] == steps
        and None not in losses
        and losses[-1] <= losses[0],
        detail=", ".join(summary) or "none",
    )


def judge_repeated(log: str) -> ReceiptCheck:
    """Check that steps of both attempts have the same loss, to the last logged digit."""
    logged: dict[int, list[str]] = {}
    for step, loss in _LOGGED.findall(log):
        logged.setdefault(int(step), []).append(loss)
    repeated = {step: losses for step, losses in logged.items() if len(losses) > 1}
    differing = {step: losses for step, losses in repeated.items() if len(set(losses)) > 1}
    return ReceiptCheck(
        name="recomputed steps have the same loss in both attempts",
        ok=bool(repeated) and not differing,
        detail=f"differing: {differing}" if differing else f"steps {_span(repeated)}",
    )


def judge_report(log: Path, *, of: Path) -> ReceiptCheck:
    """Check that the report's steps match ``of``, the training's log, and its goodput is valid."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    logged = _LOGGED.findall(of.read_text(encoding="utf-8")) if of.exists() else []
    steps = {step for step, _ in logged}
    twice = len(logged) - len(steps)
    try:
        document: Json = json.JSONDecoder().raw_decode(text, text.index("{"))[0]
    except ValueError:
        document = {}
    goodput = document.get("goodput") or 0.0
    reported = (document.get("steps"), document.get("repeated_steps"))
    return ReceiptCheck(
        name="the report counts completed and repeated steps as the log does",
        ok=reported == (len(steps), twice) and 0 < goodput < 1,
        detail=f"report: {reported[0]} steps, {reported[1]} repeated; log: {len(steps)}, {twice}; "
        f"goodput {goodput:.1%}, about {document.get('usd') or 0.0:.2f} USD",
    )


def judge_marker(text: str, sizes: dict[str, int], plan: ExpectedTraining) -> ReceiptCheck:
    """Check that the last checkpoint's marker lists every file and its size."""
    marker = json.loads(text) if len(text) > contract.WITHDRAWN_BYTES else {}
    listed = {name: entry["bytes"] for name, entry in marker.get("files", {}).items()}
    stored = {name: size for name, size in sizes.items() if name != contract.CHECKPOINT_MARKER}
    return ReceiptCheck(
        name="the last checkpoint is complete",
        ok=bool(listed) and listed == stored and marker.get("step") == plan.max_steps,
        detail=f"step {marker.get('step')}, {counted(len(stored), 'file')}, "
        f"{sum(stored.values()):,} bytes",
    )


def judge_export(download: Path) -> ReceiptCheck:
    """Check that the model was downloaded in Hugging Face format."""
    weights = sorted(download.rglob("*.safetensors"))
    config = next(iter(sorted(download.rglob("config.json"))), None)
    kind = json.loads(config.read_text(encoding="utf-8")).get("model_type") if config else None
    total = sum(path.stat().st_size for path in weights)
    return ReceiptCheck(
        name="the exported model was downloaded",
        ok=kind == "llama" and total > 0,
        detail=f"{kind}, {counted(len(weights), 'weight file')}, {total:,} bytes",
    )


def _rate(events: Iterable[Json]) -> float | None:
    rates = [event["tokens_per_second"] for event in events if event["event"] == "step"]
    return round(sorted(rates)[len(rates) // 2], 1) if rates else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _span(steps: Iterable[int]) -> str:
    ordered = sorted(steps)
    return f"{ordered[0]} to {ordered[-1]}" if ordered else "none"
