"""A user's own program at the desk: submitted, ended, with snapshots that nodes would have made."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.jobs.conftest import Desk
from tests.support.schemas import conforms
from trainium_catalogue import contract


def dry_run(desk: Desk, *words: str) -> dict[str, Any]:
    result = desk.run("submit", "--dry-run", "--json", *words)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    conforms("jobs-submit", document)
    return document


def on_cluster(desk: Desk, *, image: str = "image") -> None:
    """Have a cluster beside Batch, as far as a dry run looks."""
    for name, value in {
        contract.SSM_ORCHESTRATORS: "batch,eks",
        contract.SSM_EKS_CLUSTER: "cluster",
        contract.SSM_EKS_NAMESPACE: "jobs",
        contract.SSM_EKS_QUEUE: "trainium",
        contract.SSM_EKS_NODE_GROUP: "nodes",
        contract.SSM_EKS_IMAGE: image,
        contract.SSM_EKS_JOB_TIME_LIMIT_HOURS: "24",
    }.items():
        desk.parameter(name, value)


def command_of(document: dict[str, Any]) -> list[str]:
    (node_range,) = document["payload"]["nodeOverrides"]["nodePropertyOverrides"]
    command: list[str] = node_range["containerOverrides"]["command"]
    return command


def submitted(desk: Desk, *words: str) -> str:
    """Submit; return what it said."""
    result = desk.run("submit", "--yes", *words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stderr


def record(desk: Desk, run: str = "x") -> list[dict[str, Any]]:
    key = contract.run_key(run, contract.RUN_PROGRAM)
    body = desk.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read()
    found: list[dict[str, Any]] = json.loads(body)["submissions"]
    return found


def ended(desk: Desk, run: str = "x") -> None:
    """End the jobs of a run."""
    for job in desk.jobs(run):
        desk.backend_job(job["jobId"]).status = "SUCCEEDED"


def running(desk: Desk, run: str = "x") -> None:
    """Have the newest job of a run go on; moto describes it without its command, as Batch does."""
    desk.backend_job(str(desk.jobs(run)[-1]["jobId"])).status = "RUNNING"


def snapshot(number: int, files: int) -> dict[str, Any]:
    """A manifest as nodes write it."""
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
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
