"""Helpers for a user's program: submitted and ended runs, with snapshots as nodes write them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.jobs.conftest import Cli
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_catalogue.workloads import Workload


def dry_run(cli: Cli, *words: str) -> dict[str, Any]:
    result = cli.run("submit", "--dry-run", "--json", *words)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    conforms("jobs-submit", document)
    return document


def on_cluster(cli: Cli, *, image: str = "image") -> None:
    """Add a cluster to the deployment, as far as a dry run reads it."""
    for name, value in {
        contract.SSM_ORCHESTRATORS: "batch,eks",
        contract.SSM_EKS_CLUSTER: "cluster",
        contract.SSM_EKS_NAMESPACE: "jobs",
        contract.SSM_EKS_QUEUE: "trainium",
        contract.SSM_EKS_NODE_GROUP: "nodes",
        contract.SSM_EKS_IMAGE: image,
        contract.SSM_EKS_JOB_TIME_LIMIT_HOURS: "24",
    }.items():
        cli.parameter(name, value)


def node_overrides(payload: dict[str, Any]) -> dict[str, Any]:
    """Return what a submission overrides in the container of every node."""
    (node_range,) = payload["nodeOverrides"]["nodePropertyOverrides"]
    assert node_range["targetNodes"] == "0:"
    overrides: dict[str, Any] = node_range["containerOverrides"]
    return overrides


def command_of(document: dict[str, Any]) -> list[str]:
    command: list[str] = node_overrides(document["payload"])["command"]
    return command


def submitted(cli: Cli, *words: str) -> str:
    """Submit, and return the messages."""
    result = cli.run("submit", "--yes", *words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stderr


def record(cli: Cli, run: str = "x") -> list[dict[str, Any]]:
    key = contract.run_key(run, contract.RUN_PROGRAM)
    found: list[dict[str, Any]] = json.loads(cli.read(key))["submissions"]
    return found


def ended(cli: Cli, run: str = "x") -> None:
    """End the jobs of a run."""
    for job in cli.jobs(run):
        cli.backend_job(job["jobId"]).status = "SUCCEEDED"


def running(cli: Cli, run: str = "x") -> None:
    """Set a run's newest job to running; moto, like Batch, describes it without its command."""
    cli.backend_job(str(cli.jobs(run)[-1]["jobId"])).status = "RUNNING"


def store_run(
    cli: Cli, workload: Workload, *steps: int, values: Mapping[str, object] | None = None
) -> None:
    """Write the settings and the complete checkpoints of the training run `my-run`."""
    defaults = {item.name: item.default for item in workload.parameters}
    stored = {**defaults, "dataset": "wiki", **(values or {})}
    cli.put("runs/my-run/run.json", {"schema": 1, "workload": workload.name, "values": stored})
    for step in steps:
        cli.put(f"runs/my-run/checkpoints/step-{step:08d}/complete.json")


def snapshot(number: int, files: int) -> dict[str, Any]:
    """Return a manifest as nodes write it."""
    return {
        "format": 1, "number": number, "at": f"2026-11-22T14:00:{number:02d}+00:00", "nodes": 1,
        "main": 0, "bytes": files * 1000,
        "files": [
            {"root": "checkpoints", "path": f"{i}.pt", "bytes": 1000, "sha256": "0" * 64,
             "mode": 0o644, "nodes": [0]}
            for i in range(files)
        ],
    }  # fmt: skip


def git(folder: Path, *words: str) -> None:
    """Run git in a folder."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)
