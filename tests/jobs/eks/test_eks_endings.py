"""What is known of attempts whose pods, and logs, are gone."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.eks.describe import node_of
from tests.jobs.eks.conftest import EksDesk
from tests.support.schemas import conforms
from trainium_catalogue.contract import attempts_prefix
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_emulators.kubernetes.resources import POD

REASON = "node 1: rank 33: ended without a word (killed, crashed or out of memory)"


def leave(eks: EksDesk, run: str, name: str, code: int, reason: str) -> None:
    key = f"{attempts_prefix(run, run)}{name}.json"
    eks.desk.put(key, {"schema": 1, "code": code, "reason": reason})


def test_status_tells_why_an_attempt_failed_that_another_one_followed(eks: EksDesk) -> None:
    leave(eks, "again", "1-node-1", 75, "the main node was lost")
    leave(eks, "again", "1-node-0", 75, REASON)
    eks.has("again", 'test "$TRAINIUM_ATTEMPT" = 1 || exit 75')
    eks.wait("again", "Completed")
    document = eks.document("status", "again")

    conforms("jobs-status", document)
    first = document["attempts"][0]
    assert (first["exit_code"], first["reason"]) == (75, REASON)
    assert first["meaning"] == "a peer was lost, a node hung or a host failed"


def test_a_run_whose_nodes_were_scaled_away_still_says_how_it_ended(eks: EksDesk) -> None:
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
def test_the_last_line_of_a_container_is_its_reason(
    ended: dict[str, Any], reason: str | None
) -> None:
    """``FallbackToLogsOnError``: the kubelet writes the end of the log into the pod."""
    status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
    pod = {"metadata": {"name": "pod", "uid": "7"}, "spec": {"nodeName": "node"}, "status": status}
    last = node_of(0, pod, "FAILED").last

    assert last is not None
    assert last.reason == reason
