"""Claims about jobs, checked after the fact: how they ended and what they left in the bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from jobs.job import Attempt, Job, JobKind
from jobs.verify.probes.desk import PROBES, Desk
from trainium_catalogue.contract import (
    ATTEMPTS,
    TRAIN_METRICS,
    Orchestrator,
    run_key,
)
from trainium_catalogue.exit_codes import EXIT_CODES, RETRIED
from trainium_catalogue.probing import Missing, Seen

_METRICS_NAMESPACE = "Trainium/Training"
_PUBLISHED_MFU = 0.308
_TOGETHER_S = 120
"""Detection takes up to a minute; then come the workers' grace period and the agent's own time."""
_DATA_PARALLEL = ("bert", "bert-tiny", "mnist")


def _multi_node(jobs: list[Job]) -> list[Job]:
    """Select Batch's multi-node jobs: jobs on the cluster prove nothing about Batch."""
    on_batch = (job for job in jobs if job.orchestrator is Orchestrator.BATCH)
    return [job for job in on_batch if job.shape.kind is JobKind.NODES]


def _verify_on_batch(desk: Desk) -> Job:
    """Return the verify run, if it ran on several Batch nodes."""
    assert desk.job is not None
    for job in _multi_node([desk.job]):
        if job.num_nodes > 1:
            return job
    raise Missing("a run of verify on two nodes of Batch")


@PROBES.probe("child-description", needs=("Batch", "a run of verify"))
def child(desk: Desk) -> Seen:
    """A child is described by ``<job id>#<index>`` and has a log stream."""
    job = _verify_on_batch(desk)
    name = f"{job.job_id}#1"
    found = desk.client("batch").describe_jobs(jobs=[name])["jobs"]
    stream = found[0].get("container", {}).get("logStreamName") if found else None
    return Seen(
        ok=bool(stream),
        seen=f"{name}: log stream {stream or 'unknown'}" if found else f"{name} is not known",
        expected=f"{name} with a log stream",
    )


@PROBES.probe("children-start-after-main", needs=("AWS", "Batch", "a run of verify"))
def children_after_main(desk: Desk) -> Seen:
    """Each child started after the main node."""
    nodes = _verify_on_batch(desk).nodes
    starts = [node.last.started_at_ms for node in nodes if node.last is not None]
    times = [start for start in starts if start is not None]
    if len(times) < 2:
        raise Missing("times at which the nodes of a run of verify started")
    later = [(time - times[0]) / 1000 for time in times[1:]]
    return Seen(
        ok=min(later) >= 0,
        seen=f"children {min(later):.0f} to {max(later):.0f} s after the main node",
        expected="after the main node",
    )


def _retries(jobs: list[Job]) -> Iterator[tuple[Job, Attempt, bool]]:
    """Yield attempts that failed with an exit code of ours, and whether another one followed."""
    for job in jobs:
        most = job.max_attempts or ATTEMPTS
        for position, attempt in enumerate(job.attempts):
            followed = position + 1 < len(job.attempts)
            is_last_anyway = position + 1 == most
            if attempt.exit_code in EXIT_CODES and attempt.exit_code != 0 and not is_last_anyway:
                yield job, attempt, followed


@PROBES.probe("retry-by-exit-code", needs=("Batch",))
def retry(desk: Desk) -> Seen:
    """Attempts were retried after the codes that ask for it, and after no others."""
    seen = [
        (job, attempt.exit_code, followed, attempt.exit_code in RETRIED)
        for job, attempt, followed in _retries(_multi_node(desk.jobs))
    ]
    if not seen:
        raise Missing("a run of which an attempt failed")
    wrong = [entry for entry in seen if entry[2] is not entry[3]]
    shown = wrong or seen
    return Seen(
        ok=not wrong,
        seen="; ".join(
            f"{job.run}: {code} {'was repeated' if followed else 'ended it'}"
            for job, code, followed, _ in shown[:5]
        ),
        expected="; ".join(
            f"{code} {'was repeated' if again else 'ended it'}"
            for code, again in dict.fromkeys((code, again) for _, code, _, again in shown[:5])
        ),
    )


@PROBES.probe("failure-model-on-device", needs=("AWS",))
def nodes_end_together(desk: Desk) -> Seen:
    """After a failure on one node, all others soon ended too."""
    for job in desk.jobs:
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
                return Seen(
                    ok=seconds <= _TOGETHER_S,
                    seen=f"{job.run}: {len(ends)} nodes ended within {seconds:.0f} s, "
                    f"code {attempt.exit_code}",
                    expected=f"within {_TOGETHER_S} s",
                )
    raise Missing("a run on several nodes of which an attempt failed")


@PROBES.probe("same-hosts-on-retry", needs=("Batch",))
def same_hosts(desk: Desk) -> Seen:
    """All attempts of a job ran on the same container instances."""
    for job in _multi_node(desk.jobs):
        if len(job.attempts) < 2:
            continue
        hosts: dict[int, set[str]] = {}
        described = desk.client("batch").describe_jobs(jobs=job.shape.part_ids(job.job_id)[:100])
        for node in described["jobs"]:
            for number, attempt in enumerate(node.get("attempts", ()), start=1):
                arn = attempt.get("container", {}).get("containerInstanceArn")
                if arn:
                    hosts.setdefault(number, set()).add(str(arn))
        if len(hosts) > 1:
            first, second, *_ = hosts.values()
            return Seen(
                ok=first == second,
                seen=f"{job.run}: {len(first & second)} of {len(first)} hosts again",
                expected=f"{len(first)} of {len(first)} hosts again",
            )
    raise Missing("a run with two attempts")


@PROBES.probe("cpu-container-memory")
def cpu_memory(desk: Desk) -> Seen:
    """A CPU job was placed, so its memory fits a host."""
    started = [
        job for job in desk.jobs if job.shape.kind is not JobKind.NODES and job.started_at_ms
    ]
    if not started:
        raise Missing("a data or export job that ended")
    return Seen(ok=True, seen=f"{started[0].run} ran", expected="a CPU job that ran")


@PROBES.probe("mnist-accuracy", needs=("AWS",))
def mnist(desk: Desk) -> Seen:
    """A run of mnist recognises as many digits as the reference."""
    for run, status in desk.statuses.items():
        if status.get("workload") != "mnist":
            continue
        document = desk.result(run, "results.json") or {}
        metrics = document.get("results", {}).get("metrics", ())
        found = [m["MeasuredValue"] for m in metrics if m.get("MetricName") == "Test accuracy"]
        if found:
            return Seen(
                ok=0.92 <= float(found[-1]) <= 0.99,
                seen=f"{run}: {float(found[-1]):.4f}",
                expected="0.92 to 0.99 on MNIST",
            )
    raise Missing("a finished run of mnist")


@PROBES.probe("pass-bar")
def pass_bar(desk: Desk) -> Seen:
    """An all-reduce of the published size and number of nodes is as fast as published."""
    for run in desk.runs:
        document = desk.result(run, "all-reduce.json") or {}
        bar = document.get("bar") or {}
        if document.get("device") != "cpu" and bar.get("status") in ("met", "below"):
            return Seen(
                ok=bar["status"] == "met",
                seen=f"{run}: {bar['busbw_gib_per_s']:.2f} GiB/s",
                expected=f"{bar['published_gib_per_s']:.2f} GiB/s or more",
            )
    raise Missing("an all-reduce of 1 GiB on two trn1.32xlarge")


def _trained(desk: Desk, workload: str) -> tuple[str, dict[str, Any]]:
    """Find a run of the workload that made steps on the device, and its status."""
    for run, status in desk.statuses.items():
        # Runs on CPUs report no utilization.
        if status.get("workload") == workload and status.get("mfu") is not None:
            return run, status
    raise Missing(f"a run of {workload} that made steps on the device")


@PROBES.probe("bert-large-memory")
def bert_memory(desk: Desk) -> Seen:
    """BERT-large made optimizer steps, so it fits."""
    return _made_steps(*_trained(desk, "bert"))


@PROBES.probe("llama-7b-memory")
def llama_memory(desk: Desk) -> Seen:
    """Llama-2-7B made optimizer steps, so it fits."""
    return _made_steps(*_trained(desk, "llama2-7b"))


@PROBES.probe("xla-without-nxd", needs=("AWS",))
def without_nxd(desk: Desk) -> Seen:
    """A model trained without NxD ran on the device without failing."""
    for workload in _DATA_PARALLEL:
        try:
            run, status = _trained(desk, workload)
        except Missing:
            continue
        state, loss = status["state"], status.get("loss")
        return Seen(
            ok=state != "failed" and loss is not None,
            seen=f"{run}: step {status['step']}, {state}, loss {loss}",
            expected="steps on the device, a loss, and no failure",
        )
    raise Missing(f"a run of {', '.join(_DATA_PARALLEL)} on the device")


def _made_steps(run: str, status: dict[str, Any]) -> Seen:
    return Seen(
        ok=int(status["step"]) > 0 and status["state"] != "failed",
        seen=f"{run}: step {status['step']}, {status['state']}",
        expected="steps on the device, and no failure",
    )


@PROBES.probe("throughput")
def throughput(desk: Desk) -> Seen:
    """Llama-2-7B reaches the published model FLOPs utilization."""
    run, status = _trained(desk, "llama2-7b")
    found = float(status["mfu"])
    return Seen(
        ok=found >= _PUBLISHED_MFU,
        seen=f"{run}: {100 * found:.1f} % MFU",
        expected=f"{100 * _PUBLISHED_MFU:.1f} % MFU, as published",
    )


@PROBES.probe("upload-beside-training")
def upload(desk: Desk) -> Seen:
    """Each Llama-2-7B checkpoint was complete before the next one began."""
    run, _ = _trained(desk, "llama2-7b")
    data = desk.bucket.read(run_key(run, TRAIN_METRICS)) or b""
    events = [json.loads(line) for line in data.splitlines() if line.strip()]
    saves = [event["event"] for event in events if event["event"] in ("save", "saved")]
    if saves.count("saved") < 2:
        raise Missing("a run of llama2-7b with two checkpoints")
    late = sum(a == b == "save" for a, b in pairwise(saves))
    return Seen(
        ok=late == 0,
        seen=f"{run}: {saves.count('saved')} checkpoints, {late} begun before the last was whole",
        expected="none begun before the last was whole",
    )


@PROBES.probe("embedded-metrics", needs=("AWS",))
def embedded_metrics(desk: Desk) -> Seen:
    """CloudWatch lists metrics that were only ever written as log lines."""
    found = desk.client("cloudwatch").list_metrics(Namespace=_METRICS_NAMESPACE)["Metrics"]
    if not found and not desk.runs:
        raise Missing("a training run")
    names = sorted({metric["MetricName"] for metric in found})
    return Seen(
        ok=bool(names),
        seen=", ".join(names) or "no metrics",
        expected=f"metrics in {_METRICS_NAMESPACE}",
    )
