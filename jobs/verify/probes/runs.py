"""Claims about jobs, checked afterwards by their outcomes and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from jobs.job import Attempt, Job, JobKind
from jobs.verify.probes.context import PROBES, ClientContext
from trainium_catalogue.contract import ATTEMPTS, TRAIN_METRICS, Orchestrator, run_key
from trainium_catalogue.exit_codes import EXIT_CODES, RETRIED
from trainium_catalogue.probing import ProbeResult, SubjectMissing
from trainium_catalogue.wording import counted

_METRICS_NAMESPACE = "Trainium/Training"
_PUBLISHED_MFU = 0.308
_TOGETHER_S = 120
"""Up to a minute for detection, plus the grace periods of workers and agent."""
_DATA_PARALLEL = ("bert", "bert-tiny", "mnist")


def _multi_node(jobs: list[Job]) -> list[Job]:
    """Select multi-node jobs on Batch, since jobs on the cluster prove nothing about Batch."""
    on_batch = (job for job in jobs if job.orchestrator is Orchestrator.BATCH)
    return [job for job in on_batch if job.shape.kind is JobKind.NODES]


def _verify_on_batch(context: ClientContext) -> Job:
    """Return the verify run if it ran on several Batch nodes."""
    assert context.job is not None
    for job in _multi_node([context.job]):
        if job.num_nodes > 1:
            return job
    raise SubjectMissing("a run of verify on two nodes of Batch")


@PROBES.probe("child-description", needs=("Batch", "a run of verify"))
def child(context: ClientContext) -> ProbeResult:
    """A child node can be described as ``<job id>#<index>`` and has a log stream."""
    job = _verify_on_batch(context)
    name = f"{job.job_id}#1"
    found = context.client("batch").describe_jobs(jobs=[name])["jobs"]
    stream = found[0].get("container", {}).get("logStreamName") if found else None
    return ProbeResult(
        ok=bool(stream),
        seen=f"{name}: log stream {stream or 'unknown'}" if found else f"{name} is unknown",
        expected=f"{name} with a log stream",
    )


@PROBES.probe("children-start-after-main", needs=("AWS", "Batch", "a run of verify"))
def children_after_main(context: ClientContext) -> ProbeResult:
    """Each child node started after the main node."""
    nodes = _verify_on_batch(context).nodes
    starts = [node.last.started_at_ms for node in nodes if node.last is not None]
    times = [start for start in starts if start is not None]
    if len(times) < 2:
        raise SubjectMissing("start times of the nodes of a run of verify")
    later = [(time - times[0]) / 1000 for time in times[1:]]
    return ProbeResult(
        ok=min(later) >= 0,
        seen=f"children {min(later):.0f} to {max(later):.0f} s after the main node",
        expected="after the main node",
    )


def _retries(jobs: list[Job]) -> Iterator[tuple[Job, Attempt, bool]]:
    """Yield attempts that failed with a launcher's exit code, and whether they were retried."""
    for job in jobs:
        max_attempts = job.max_attempts or ATTEMPTS
        for position, attempt in enumerate(job.attempts):
            was_retried = position + 1 < len(job.attempts)
            is_last = position + 1 == max_attempts
            if attempt.exit_code in EXIT_CODES and attempt.exit_code != 0 and not is_last:
                yield job, attempt, was_retried


@PROBES.probe("retry-by-exit-code", needs=("Batch",))
def retry(context: ClientContext) -> ProbeResult:
    """Attempts were retried after retryable exit codes, and after no others."""
    seen = [
        (job, attempt.exit_code, was_retried, attempt.exit_code in RETRIED)
        for job, attempt, was_retried in _retries(_multi_node(context.jobs))
    ]
    if not seen:
        raise SubjectMissing("a run with a failed attempt")
    mismatched = [entry for entry in seen if entry[2] is not entry[3]]
    shown = mismatched or seen
    return ProbeResult(
        ok=not mismatched,
        seen="; ".join(
            f"{job.run}: {code} {'was retried' if was_retried else 'ended the job'}"
            for job, code, was_retried, _ in shown[:5]
        ),
        expected="; ".join(
            f"{code} {'was retried' if again else 'ended the job'}"
            for code, again in dict.fromkeys((code, again) for _, code, _, again in shown[:5])
        ),
    )


@PROBES.probe("failure-model-on-device", needs=("AWS",))
def nodes_end_together(context: ClientContext) -> ProbeResult:
    """After one node failed, all others ended soon afterwards."""
    for job in context.jobs:
        if job.shape.kind is not JobKind.NODES or job.num_nodes < 2:
            continue
        for attempt in job.attempts:
            if not attempt.exit_code:
                continue
            ends = [
                each.stopped_at_ms
                for node in job.nodes
                for each in node.attempts
                if each.number == attempt.number and each.stopped_at_ms is not None
            ]
            if len(ends) == job.num_nodes:
                seconds = (max(ends) - min(ends)) / 1000
                return ProbeResult(
                    ok=seconds <= _TOGETHER_S,
                    seen=f"{job.run}: {counted(len(ends), 'node')} ended within {seconds:.0f} s, "
                    f"code {attempt.exit_code}",
                    expected=f"within {_TOGETHER_S} s",
                )
    raise SubjectMissing("a multi-node run with a failed attempt")


@PROBES.probe("same-hosts-on-retry", needs=("Batch",))
def same_hosts(context: ClientContext) -> ProbeResult:
    """The first two attempts of a job ran on the same container instances."""
    for job in _multi_node(context.jobs):
        if len(job.attempts) < 2:
            continue
        hosts: dict[int, set[str]] = {}
        described = context.client("batch").describe_jobs(jobs=job.shape.part_ids(job.job_id)[:100])
        for node in described["jobs"]:
            for number, attempt in enumerate(node.get("attempts", ()), start=1):
                arn = attempt.get("container", {}).get("containerInstanceArn")
                if arn:
                    hosts.setdefault(number, set()).add(str(arn))
        if len(hosts) > 1:
            first, second, *_ = hosts.values()
            return ProbeResult(
                ok=first == second,
                seen=f"{job.run}: {len(first & second)} of {counted(len(first), 'host')} reused",
                expected=f"{len(first)} of {counted(len(first), 'host')} reused",
            )
    raise SubjectMissing("a run with two attempts")


@PROBES.probe("cpu-container-memory")
def cpu_memory(context: ClientContext) -> ProbeResult:
    """A CPU job was placed, so its memory fits a host."""
    started = [
        job for job in context.jobs if job.shape.kind is not JobKind.NODES and job.started_at_ms
    ]
    if not started:
        raise SubjectMissing("a data or export job that started")
    return ProbeResult(ok=True, seen=f"{started[0].run} ran", expected="a CPU job that ran")


@PROBES.probe("mnist-accuracy", needs=("AWS",))
def mnist(context: ClientContext) -> ProbeResult:
    """A run of mnist reaches the accuracy of the reference."""
    for run, status in context.statuses.items():
        if status.get("workload") != "mnist":
            continue
        document = context.result(run, "results.json") or {}
        metrics = document.get("results", {}).get("metrics", ())
        found = [m["MeasuredValue"] for m in metrics if m.get("MetricName") == "Test accuracy"]
        if found:
            return ProbeResult(
                ok=0.92 <= float(found[-1]) <= 0.99,
                seen=f"{run}: {float(found[-1]):.4f}",
                expected="0.92 to 0.99 on MNIST",
            )
    raise SubjectMissing("a finished run of mnist")


@PROBES.probe("pass-bar")
def pass_bar(context: ClientContext) -> ProbeResult:
    """An all-reduce with the published size and number of nodes reaches the published bandwidth."""
    for run in context.runs:
        document = context.result(run, "all-reduce.json") or {}
        bar = document.get("bar") or {}
        if document.get("device") != "cpu" and bar.get("status") in ("met", "below"):
            return ProbeResult(
                ok=bar["status"] == "met",
                seen=f"{run}: {bar['busbw_gib_per_s']:.2f} GiB/s",
                expected=f"{bar['published_gib_per_s']:.2f} GiB/s or more",
            )
    raise SubjectMissing("an all-reduce of 1 GiB on two trn1.32xlarge instances")


def _find_trained_run(context: ClientContext, workload: str) -> tuple[str, dict[str, Any]]:
    """Find a run of the workload with steps on the device, and its status."""
    for run, status in context.statuses.items():
        # Runs on CPUs report no utilization.
        if status.get("workload") == workload and status.get("mfu") is not None:
            return run, status
    raise SubjectMissing(f"a run of {workload} with steps on the device")


@PROBES.probe("bert-large-memory")
def bert_memory(context: ClientContext) -> ProbeResult:
    """BERT-large completed optimizer steps, so it fits into memory."""
    return _check_completed_steps(*_find_trained_run(context, "bert"))


@PROBES.probe("llama-7b-memory")
def llama_memory(context: ClientContext) -> ProbeResult:
    """Llama-2-7B completed optimizer steps, so it fits into memory."""
    return _check_completed_steps(*_find_trained_run(context, "llama2-7b"))


@PROBES.probe("xla-without-nxd", needs=("AWS",))
def without_nxd(context: ClientContext) -> ProbeResult:
    """A model was trained on the device without NxD."""
    for workload in _DATA_PARALLEL:
        try:
            run, status = _find_trained_run(context, workload)
        except SubjectMissing:
            continue
        state, loss = status["state"], status.get("loss")
        return ProbeResult(
            ok=state != "failed" and loss is not None,
            seen=f"{run}: step {status['step']}, {state}, loss {loss}",
            expected="steps on the device, a loss, and no failure",
        )
    raise SubjectMissing(f"a run of {' or '.join(_DATA_PARALLEL)} on the device")


def _check_completed_steps(run: str, status: dict[str, Any]) -> ProbeResult:
    return ProbeResult(
        ok=int(status["step"]) > 0 and status["state"] != "failed",
        seen=f"{run}: step {status['step']}, {status['state']}",
        expected="steps on the device, and no failure",
    )


@PROBES.probe("throughput")
def throughput(context: ClientContext) -> ProbeResult:
    """Llama-2-7B reaches the published model FLOPs utilization."""
    run, status = _find_trained_run(context, "llama2-7b")
    found = float(status["mfu"])
    return ProbeResult(
        ok=found >= _PUBLISHED_MFU,
        seen=f"{run}: {100 * found:.1f}% MFU",
        expected=f"{100 * _PUBLISHED_MFU:.1f}% MFU, as published",
    )


@PROBES.probe("upload-beside-training")
def upload(context: ClientContext) -> ProbeResult:
    """Each Llama-2-7B checkpoint was complete before the next save started."""
    run, _ = _find_trained_run(context, "llama2-7b")
    data = context.bucket.read(run_key(run, TRAIN_METRICS)) or b""
    events = [json.loads(line) for line in data.splitlines() if line.strip()]
    saves = [event["event"] for event in events if event["event"] in ("save", "saved")]
    if saves.count("saved") < 2:
        raise SubjectMissing("a run of llama2-7b with two checkpoints")
    late = sum(a == b == "save" for a, b in pairwise(saves))
    return ProbeResult(
        ok=late == 0,
        seen=(
            f"{run}: {saves.count('saved')} checkpoints, {late} started before the previous one "
            "completed"
        ),
        expected="none started before the previous one completed",
    )


@PROBES.probe("embedded-metrics", needs=("AWS",))
def embedded_metrics(context: ClientContext) -> ProbeResult:
    """CloudWatch lists metrics that were only written as log lines."""
    found = context.client("cloudwatch").list_metrics(Namespace=_METRICS_NAMESPACE)["Metrics"]
    if not found and not context.runs:
        raise SubjectMissing("a training run")
    names = sorted({metric["MetricName"] for metric in found})
    return ProbeResult(
        ok=bool(names),
        seen=", ".join(names) or "no metrics",
        expected=f"metrics in {_METRICS_NAMESPACE}",
    )
