"""Reads back what a training run left in the bucket, and checks it against the plan."""

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

Json = dict[str, Any]
_LOGGED = re.compile(r"training: step (\d+) of \d+: loss (\S+),")
_BAD = (State.RED, State.CRASHED)
_ENDS = 5
"""Number of steps at each end of the run whose mean losses are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTraining:
    """The plan for a run: its steps, its saves, and when a node is killed."""

    max_steps: int
    save_every: int
    killed_after: int
    eval_every: int = 0
    """0: no text is held out."""


@dataclass(slots=True, kw_only=True)
class TrainingEvidence:
    """The run as it actually went."""

    attempts: list[TrainingAttempt] = field(default_factory=list)
    resumed_from: int | None = None
    tokens_per_second: float | None = None
    checks: list[ReceiptCheck] = field(default_factory=list)


def gather(
    aws: EmulatedAccount, *, run: str, log: Path, download: Path, plan: ExpectedTraining
) -> TrainingEvidence:
    """Read metrics, status, checkpoints and the exported model, and judge them."""
    found = gather_training(aws, run=run, log=log, plan=plan)
    found.checks.append(judge_export(download))
    return found


def gather_training(
    aws: EmulatedAccount, *, run: str, log: Path, plan: ExpectedTraining
) -> TrainingEvidence:
    """Read metrics, status and checkpoints, and judge them."""
    bucket = DeploymentBucket(aws)
    lines = bucket.text(contract.run_key(run, contract.TRAIN_METRICS)).splitlines()
    events = [json.loads(line) for line in lines]
    resumed = [event["step"] for event in events if event["event"] == "resume"]
    found = TrainingEvidence(
        attempts=attempts(events),
        resumed_from=resumed[-1] if resumed else None,
        tokens_per_second=_rate(events),
    )
    name = contract.checkpoint_name(plan.max_steps)
    prefix = f"{contract.run_prefix(run, 'checkpoints')}{name}/"
    found.checks = [
        *judge_steps(events, plan, resumed_from=found.resumed_from),
        *([judge_validation(events, plan)] if plan.eval_every else []),
        judge_repeated(log.read_text(encoding="utf-8") if log.exists() else ""),
        judge_marker(bucket.text(prefix + contract.CHECKPOINT_MARKER), bucket.sizes(prefix), plan),
        judge_finished(aws, run, step=plan.max_steps),
    ]
    return found


def judge_finished(aws: EmulatedAccount, run: str, *, step: int | None = None) -> ReceiptCheck:
    """Check that the run's own status says it finished, at the step it was meant to reach."""
    status = DeploymentBucket(aws).document(contract.run_key(run, contract.RUN_STATUS))
    return ReceiptCheck(
        name="the run's status says that it finished",
        ok=status.get("state") == "finished" and step in (None, status.get("step")),
        detail=f"{status.get('state')} at step {status.get('step')}",
    )


def judge_probes(aws: EmulatedAccount, run: str) -> ReceiptCheck:
    """Check that every probe that is meaningful without hardware passed, and none crashed."""
    return judge_record(
        DeploymentBucket(aws).text(f"{contract.run_prefix(run, 'results')}{RECORD}")
    )


def judge_record(text: str) -> ReceiptCheck:
    """Judge a record of probes; those that need hardware or an account are not run."""
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
    """Group steps and losses by attempt; a repeated step belongs to the attempt that counts."""
    made: dict[int, dict[int, float]] = {}
    for event in events:
        if event["event"] == "step":
            made.setdefault(event["attempt"], {})[event["step"]] = event["loss"]
    return [
        TrainingAttempt(
            attempt=number, steps=sorted(losses), losses=[losses[step] for step in sorted(losses)]
        )
        for number, losses in sorted(made.items())
    ]


def judge_steps(
    events: Sequence[Json], plan: ExpectedTraining, *, resumed_from: int | None
) -> list[ReceiptCheck]:
    """Check that every step counts once, the run resumed at the right step, and the loss fell."""
    steps = [event for event in events if event["event"] == "step"]
    numbers = [event["step"] for event in steps]
    losses = [event["loss"] for event in sorted(steps, key=lambda event: event["step"])]
    first = _mean(losses[:_ENDS])
    last = _mean(losses[-_ENDS:])
    complete = (plan.killed_after // plan.save_every) * plan.save_every
    return [
        ReceiptCheck(
            name="every step was made, and counts once",
            ok=numbers == list(range(1, plan.max_steps + 1)),
            detail=f"{len(numbers)} lines, {len(set(numbers))} steps of {plan.max_steps}",
        ),
        ReceiptCheck(
            name="the second attempt continued from the newest complete checkpoint",
            ok=resumed_from == complete,
            detail=f"killed after step {plan.killed_after}, continued from step {resumed_from}, "
            f"the save before was of step {complete}",
        ),
        ReceiptCheck(
            name="the loss fell",
            ok=last < first,
            detail=f"mean of the first {_ENDS} steps {first:.3f}, of the last {last:.3f}",
        ),
    ]


def judge_validation(events: Sequence[Json], plan: ExpectedTraining) -> ReceiptCheck:
    """Check that held-out text was evaluated after the right steps, and that its loss fell."""
    found = [(e["step"], e["val_loss"]) for e in events if e["event"] == "evaluation"]
    summary = [
        f"{'none' if loss is None else f'{loss:.3f}'} after step {step}" for step, loss in found
    ]
    wanted = sorted({*range(plan.eval_every, plan.max_steps + 1, plan.eval_every), plan.max_steps})
    losses = [loss for _, loss in found]
    return ReceiptCheck(
        name="the validation loss was computed, and fell",
        ok=[step for step, _ in found] == wanted and None not in losses and losses[-1] <= losses[0],
        detail=", ".join(summary) or "none",
    )


def judge_repeated(log: str) -> ReceiptCheck:
    """Check that steps made by both attempts have the same loss, to the last logged digit."""
    seen: dict[int, list[str]] = {}
    for step, loss in _LOGGED.findall(log):
        seen.setdefault(int(step), []).append(loss)
    repeated = {step: losses for step, losses in seen.items() if len(losses) > 1}
    other = {step: losses for step, losses in repeated.items() if len(set(losses)) > 1}
    return ReceiptCheck(
        name="steps that were made twice have the same loss twice",
        ok=bool(repeated) and not other,
        detail=f"differing: {other}" if other else f"steps {_span(repeated)}",
    )


def judge_marker(text: str, sizes: dict[str, int], plan: ExpectedTraining) -> ReceiptCheck:
    """Check that the last checkpoint's marker lists every file with its size."""
    marker = json.loads(text) if len(text) > contract.WITHDRAWN_BYTES else {}
    named = {name: entry["bytes"] for name, entry in marker.get("files", {}).items()}
    there = {name: size for name, size in sizes.items() if name != contract.CHECKPOINT_MARKER}
    return ReceiptCheck(
        name="the last checkpoint is complete",
        ok=bool(named) and named == there and marker.get("step") == plan.max_steps,
        detail=f"step {marker.get('step')}, {len(there)} files, {sum(there.values()):,} bytes",
    )


def judge_export(download: Path) -> ReceiptCheck:
    """Check that the model is on this machine, in Hugging Face's layout."""
    weights = sorted(download.rglob("*.safetensors"))
    config = next(iter(sorted(download.rglob("config.json"))), None)
    kind = json.loads(config.read_text(encoding="utf-8")).get("model_type") if config else None
    total = sum(path.stat().st_size for path in weights)
    return ReceiptCheck(
        name="the exported model was downloaded",
        ok=kind == "llama" and total > 0,
        detail=f"{kind}, {len(weights)} files of weights, {total:,} bytes",
    )


def _rate(events: Iterable[Json]) -> float | None:
    rates = [event["tokens_per_second"] for event in events if event["event"] == "step"]
    return round(sorted(rates)[len(rates) // 2], 1) if rates else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _span(steps: Iterable[int]) -> str:
    found = sorted(steps)
    return f"{found[0]} to {found[-1]}" if found else "none"
