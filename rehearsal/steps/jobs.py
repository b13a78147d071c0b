"""Submits jobs with `python -m jobs`, like a user, and reads their outcomes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from shlex import join
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.deployment import cdk
from rehearsal.deployment.aws import DeploymentBucket, EmulatedAccount
from rehearsal.deployment.state import DEPLOYMENT, ROOT, Settings
from rehearsal.proofs.endings import (
    FAULTS,
    PARAMETER,
    SUCCESS,
    ExpectedOutcome,
    describe,
    differences,
)
from rehearsal.receipt import NodeAttempt, RunRecord, Size
from rehearsal.steps.runner import Runner, Step, step
from trainium_catalogue import contract
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, find_workload

ALL_REDUCE = "all-reduce"
# Small enough for a laptop, long enough for a fault to occur while the workers are running.
DEFAULTS = {
    "max-bytes": "16777216",
    "warmup-iterations": "2",
    "iterations": "10",
    "seconds-per-size": "2",
    "total-seconds": "30",
}
LAUNCH_DEFAULTS = {"peer-timeout-s": "10", "join-timeout-s": "120", "stop-grace-s": "5"}
# Short, because a fault's first attempt waits for them.
FAULT_DEFAULTS = {"peer-timeout-s": "5", "hang-limit-s": "60", "max-bytes": "1048576"}


def own_parameters(pairs: Iterable[str], workload: str) -> dict[str, str]:
    """Select a workload's pairs from ``key=value`` pairs of all workloads."""
    known = {p.name for p in (*find_workload(workload).parameters, *LAUNCH_PARAMETERS)}
    values = dict(pair.split("=", 1) for pair in pairs)
    return {name: value for name, value in values.items() if name in known}


def parameters(settings: Settings, fault: str | None) -> tuple[str, ...]:
    """Return the values for ``--set``: the rehearsal's, overridden by fault and user."""
    merged = {**DEFAULTS, **LAUNCH_DEFAULTS}
    pairs = list(settings.parameters)
    if fault is not None:
        merged |= FAULT_DEFAULTS
        pairs += FAULTS[fault].parameters
    merged |= own_parameters(pairs, ALL_REDUCE)
    return tuple(f"{name}={value}" for name, value in merged.items())


def submission(settings: Settings, *, run: str, fault: str | None) -> Step:
    """Return the command as a user would type it."""
    outcome = SUCCESS if fault is None else FAULTS[fault].outcome
    pairs = join(word for pair in parameters(settings, fault) for word in ("--set", pair))
    return step(
        run,
        f"jobs submit {ALL_REDUCE} --nodes {settings.nodes} --name {run} --yes --follow {pairs}",
        exit_code=outcome.jobs_exit_code,
    )


def submit(
    settings: Settings, *, run: str, fault: str | None, aws: EmulatedAccount, runner: Runner
) -> RunRecord:
    """Arm the fault, if any, submit the job, follow it to its end, and read the outcome."""
    is_armed = fault is not None and FAULTS[fault].armed
    with armed(aws, run=run, kind=fault) if fault is not None and is_armed else nullcontext():
        record = runner.run_one(submission(settings, run=run, fault=fault))
    if record.exit_code not in (0, 1):  # refused: there is no job
        raise cdk.StepFailed(f"{record.problem}; {runner.last_lines(run)}")
    status = job_status(run, runner.environment)
    return judge(
        run=run,
        fault=fault,
        status=status,
        jobs_exit_code=record.exit_code,
        sizes=_sizes(aws, run) if status["status"] == "SUCCEEDED" else [],
        seconds=record.seconds,
    )


@contextmanager
def armed(
    aws: EmulatedAccount,
    *,
    run: str,
    kind: str,
    after: int | None = None,
    after_key: str | None = None,
    after_path: str | None = None,
) -> Iterator[None]:
    """Arm a fault for a run's first attempt.

    It is injected after the first all-reduce, after a training step, or once the bucket has an
    object with a key that matches ``after_key`` and a listed file that matches ``after_path``.
    """
    fault = {"kind": kind, "run": run}
    if after is not None:
        fault["after"] = f"training: step {after} "
    if after_key is not None:
        fault["after_key"] = after_key
    if after_path is not None:
        fault["after_path"] = after_path
    ssm, name = aws.client("ssm"), f"{PARAMETER}/{run}"
    ssm.put_parameter(Name=name, Value=json.dumps(fault), Type="String")
    try:
        yield
    finally:
        # Otherwise an uninjected fault would stay armed.
        with suppress(ClientError):
            ssm.delete_parameter(Name=name)


def read_finished_run(
    runner: Runner, step: str, *, run: str, fault: str | None, on_cluster: bool = False
) -> RunRecord:
    """Read the outcome of a step's job from ``jobs status``."""
    record = runner.step(step)
    if record is None:
        problems = [known.problem for known in runner.steps if known.problem]
        raise cdk.StepFailed("; ".join([f"{step} was not run", *problems]))
    return judge(
        run=run,
        fault=fault,
        status=job_status(run, runner.environment),
        jobs_exit_code=record.exit_code,
        sizes=None,
        seconds=record.seconds,
        on_cluster=on_cluster,
    )


def judge(
    *,
    run: str,
    fault: str | None,
    status: dict[str, Any],
    jobs_exit_code: int,
    sizes: list[Size] | None,
    seconds: float,
    on_cluster: bool = False,
) -> RunRecord:
    """Compare the output of ``jobs status --json`` with the expected outcome.

    ``sizes`` is None for a workload without a sweep.
    """
    outcome: ExpectedOutcome = SUCCESS if fault is None else FAULTS[fault].outcome
    if on_cluster:
        outcome = outcome.on_cluster
    exit_codes = [attempt["exit_code"] for attempt in status["attempts"]]
    problems = differences(
        outcome,
        exit_codes=exit_codes,
        status=status["status"],
        jobs_exit_code=jobs_exit_code,
        reasons=[status["status_reason"]],
    )
    nodes = _nodes(status)
    known = 1 if on_cluster else len(exit_codes)
    # Volcano deletes an attempt's pods, and thereby their exit codes, once one has failed.
    is_cut = on_cluster and status["status"] == "FAILED"
    if outcome.exit_codes and not is_cut and len(nodes) != known * status["num_nodes"]:
        problems.append(
            f"{counted(len(nodes), 'node exit')} recorded instead of {counted(known, 'attempt')} x "
            f"{counted(status['num_nodes'], 'node')}"
        )
    if status["status"] == "SUCCEEDED" and sizes is not None and not sizes:
        problems.append("the job succeeded without a result in the bucket")
    if any(not size.correct for size in sizes or ()):
        problems.append("the result has a wrong sum")
    actual = ExpectedOutcome(
        exit_codes=tuple(exit_codes), status=status["status"], jobs_exit_code=jobs_exit_code
    )
    return RunRecord(
        run=run,
        fault=fault,
        summary="no fault" if fault is None else FAULTS[fault].summary,
        expected=describe(outcome),
        seen=describe(actual),
        differences=problems,
        job_id=status["job_id"],
        status=status["status"],
        status_reason=status["status_reason"],
        jobs_exit_code=jobs_exit_code,
        attempts=exit_codes,
        nodes=nodes,
        sizes=sizes or [],
        seconds=round(seconds, 2),
    )


def job_status(run: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run ``jobs status --json``."""
    command = (sys.executable, "-m", "jobs", "--deployment", DEPLOYMENT, "status", run, "--json")
    done = subprocess.run(command, cwd=ROOT, env=dict(environment), capture_output=True, text=True)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        document = {}
    if "status" not in document:
        raise cdk.StepFailed(f"jobs status {run} exited with {done.returncode}: {done.stderr}")
    return document


def _nodes(status: dict[str, Any]) -> list[NodeAttempt]:
    ends = [
        NodeAttempt(
            node=node["node"],
            attempt=attempt["number"],
            exit_code=attempt["exit_code"],
            reason=attempt["reason"],
            seconds=_seconds(attempt),
        )
        for node in status["nodes"]
        for attempt in node["attempts"]
    ]
    return sorted(ends, key=lambda end: (end.attempt, end.node))


def _seconds(attempt: dict[str, Any]) -> float | None:
    started, stopped = attempt["started_at_ms"], attempt["stopped_at_ms"]
    return None if started is None or stopped is None else round((stopped - started) / 1000, 2)


def _sizes(aws: EmulatedAccount, run: str) -> list[Size]:
    """Read the sweep's results from the deployment's bucket."""
    key = f"{contract.run_prefix(run, 'results')}{ALL_REDUCE}.json"
    result = DeploymentBucket(aws).document(key)
    fields = Size.__dataclass_fields__
    return [Size(**{name: size[name] for name in fields}) for size in result.get("sizes", [])]
