"""Status of attempts whose pods and logs are gone."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.eks.describe import node_of
from tests.jobs.eks.conftest import EksCli
from tests.support.schemas import conforms
from trainium_catalogue.contract import attempts_prefix
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_emulators.kubernetes.resources import POD

RECORD = {
    "schema": 1, "workload": "all-reduce", "orchestrator": "eks", "job_id": "again", "attempt": 1,
    "child": 0, "num_nodes": 2, "device": "xla", "instance_type": "trn1.32xlarge",
}  # fmt: skip
"""Record of an attempt whose main node was killed, without its start."""
REASON = "node 1: rank 33: exited without reporting an error (killed, crashed or out of memory)"


def leave(eks: EksCli, run: str, name: str, code: int, reason: str) -> None:
    key = f"{attempts_prefix(run, run)}{name}.json"
    eks.cli.put(key, {"schema": 1, "code": code, "reason": reason})


def test_status_explains_failed_attempt_before_retry(eks: EksCli) -> None:
    leave(eks, "again", "1-node-1", 75, "the main node was lost")
    leave(eks, "again", "1-node-0", 75, REASON)
    eks.has("again", 'test "$TRAINIUM_ATTEMPT" = 1 || exit 75')
    eks.wait("again", "Completed")
    document = eks.document("status", "again")

    conforms("jobs-status", document)
    first = document["attempts"][0]
    assert (first["exit_code"], first["reason"]) == (75, REASON)
    assert first["meaning"] == "a peer was lost, a node hung or a host failed"

    report = eks.document("report", "again")
    conforms("jobs-report", report)
    assert [item["code_name"] for item in report["attempts"]] == ["OK"]
    assert "1 attempt not shown" in report["unknown"][0]  # neither pods nor a record
    assert report["is_time_lower_bound"] and report["state"] == "succeeded"
    key = f"{attempts_prefix('again', 'again')}1.json"
    eks.cli.put(key, {**RECORD, "started_at": report["attempts"][0]["started_at"]})
    first, second = eks.document("report", "again")["attempts"]
    assert (first["code"], first["reason"], first["ended_at"]) == (75, REASON, None)
    assert (second["code"], second["num_nodes"]) == (0, 2)


def test_run_without_nodes_still_shows_its_outcome(eks: EksCli) -> None:
    leave(eks, "broken", "1-node-0", 1, "node 0: rank 0: ValueError: no")
    eks.has("broken", "exit 1", nodes=1)
    eks.wait("broken", "Terminated")
    for pod in eks.pods():
        eks.cluster.store.delete(POD, NAMESPACE, pod["metadata"]["name"], grace_s=0)
    result = eks.run("status", "broken")

    assert "run broken failed" in result.stdout
    assert "exit code 1; node 0: rank 0: ValueError: no; the workload raised an error" in (
        result.stdout
    )


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (
            {
                "reason": "Error",
                "exitCode": 70,
                "message": "launch: one\nlaunch: exit 70 (a node failed preflight or did not "
                "join): node 1 has 15 of 16 devices\n",
            },
            "node 1 has 15 of 16 devices",
        ),
        ({"reason": "Error", "exitCode": 1, "message": "KeyError: 'a'\n"}, "KeyError: 'a'"),
        ({"reason": "OOMKilled", "exitCode": 137, "message": "step 3\n"}, "OOMKilled"),
        ({"reason": "Error", "exitCode": 1}, None),
        ({"reason": "Completed", "exitCode": 0}, None),
    ],
)
def test_last_line_of_container_is_its_reason(ended: dict[str, Any], reason: str | None) -> None:
    """``FallbackToLogsOnError``: the kubelet writes the end of the log into the pod."""
    status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
    pod = {"metadata": {"name": "pod", "uid": "7"}, "spec": {"nodeName": "node"}, "status": status}
    last = node_of(0, pod, "FAILED").last

    assert last is not None
    assert last.reason == reason
