"""The table of faults, and the checks of a run against it."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.deployment.state import OptionsError
from rehearsal.proofs.endings import FAULTS, differences, find_faults
from rehearsal.receipt import Size
from rehearsal.steps.jobs import judge
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode

SIZE = Size(bytes=4, correct=True, p50_us=1, p99_us=1, algbw_gib_per_s=1, busbw_gib_per_s=1)


def status(*exit_codes: int, job: str = "SUCCEEDED", num_nodes: int = 2) -> dict[str, Any]:
    """The checked fields of `jobs status --json`."""
    attempts = [
        {
            "number": number,
            "exit_code": code,
            "reason": None,
            "started_at_ms": 1000,
            "stopped_at_ms": 3500,
        }
        for number, code in enumerate(exit_codes, start=1)
    ]
    return {
        "job_id": "id",
        "status": job,
        "status_reason": None,
        "num_nodes": num_nodes,
        "attempts": attempts,
        "nodes": [{"node": node, "attempts": attempts} for node in range(num_nodes)],
    }


def judged(
    document: dict[str, Any],
    *,
    fault: str | None = None,
    code: int = 0,
    on_cluster: bool = False,
) -> list[str]:
    sizes = [SIZE] if document["status"] == "SUCCEEDED" else []
    return judge(
        run="r",
        fault=fault,
        status=document,
        jobs_exit_code=code,
        sizes=sizes,
        seconds=1,
        on_cluster=on_cluster,
    ).differences


def test_misspelt_fault_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionsError, match="did you mean 'kill-child'"):
        find_faults(["kill-chld"])


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "reclaim-main"])
def test_fault_leads_to_attempt_iff_batch_retries(kind: str) -> None:
    codes = FAULTS[kind].outcome.exit_codes

    for number, code in enumerate(codes):
        assert code is not None
        assert EXIT_CODES[ExitCode(code)].retry == (number < len(codes) - 1)


def test_fault_without_effect_is_difference() -> None:
    assert judged(status(75, 0), fault="kill-child") == []
    assert judged(status(0), fault="kill-child") == ["the main node exited with 0 instead of 75, 0"]


def test_cluster_checks_only_last_exit_code() -> None:
    outcome = FAULTS["kill-child"].outcome.on_cluster

    def found(*codes: int | None) -> list[str]:
        return differences(
            outcome, exit_codes=codes, status="SUCCEEDED", jobs_exit_code=0, reasons=[]
        )

    assert found(None, 0) == found(75, 0) == found(143, 0) == []
    assert found(75, 1) == ["the main node exited with 75, 1 instead of ?, 0"]
    assert found(0) == ["the main node exited with 0 instead of ?, 0"]


def test_missing_node_end_is_difference() -> None:
    document = status(0)
    document["nodes"].pop()

    missing = ["1 node exit recorded instead of 1 attempt x 2 nodes"]
    assert judged(document) == judged(document, on_cluster=True) == missing


def test_failed_cluster_attempt_may_lack_node_end() -> None:
    document = status(1, job="FAILED")
    document["nodes"].pop()

    assert judged(document, fault="error-in-workload", code=1, on_cluster=True) == []


def test_success_without_a_result_is_a_difference() -> None:
    run = judge(run="r", fault=None, status=status(0), jobs_exit_code=0, sizes=[], seconds=1)

    assert run.differences == ["the job succeeded without a result in the bucket"]


def test_wrong_submit_exit_code_is_difference() -> None:
    found = judged(status(1, job="FAILED"), fault="error-in-workload", code=0)

    assert found == ["jobs submit exited with 0 instead of 1"]


def test_no_capacity_must_be_named_by_the_status_reason() -> None:
    outcome = FAULTS["no-capacity"].outcome

    assert differences(
        outcome, exit_codes=[], status="FAILED", jobs_exit_code=1, reasons=["cancelled", None]
    ) == ["no status reason names CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"]
