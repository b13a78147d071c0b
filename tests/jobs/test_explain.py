"""Explanations of reasons and exit codes."""

from __future__ import annotations

import pytest

from jobs.output.explain import explain, explain_exit, explain_reason, is_informative


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        (
            "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity "
            "requested for instance type trn1.32xlarge",
            "insufficient capacity",
        ),
        (
            "Canceled by JobStateTimeLimit action due to reason: "
            "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
            "insufficient capacity",
        ),
        ("MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE - CE(s)", "more vCPUs"),
        ("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job", "vCPUs and memory"),
        ("MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS - Batch", "service role"),
        ("Host EC2 (instance i-0123456789) terminated.", "lost the instance"),
        ("Job attempt duration exceeded timeout", "time limit"),
        ("stopped by ann with jobs stop", "stopped the run"),
        ("OutOfMemoryError: Container killed due to memory usage", "memory"),
        ("CannotPullContainerError: pull image manifest has been retried", "pull the image"),
        (
            "CannotStartContainerError: Error response from daemon: error gathering device "
            'information while adding custom device "/dev/neuron0": no such file or directory',
            "device or the program is missing",
        ),
    ],
)
def test_known_reason_is_explained(reason: str, meaning: str) -> None:
    found = explain_reason(reason)

    assert found is not None
    assert meaning in found.meaning


def test_unknown_reason_is_not_explained() -> None:
    assert explain_reason("something new") is None


def test_signal_is_named() -> None:
    found = explain_exit(139)

    assert found is not None
    assert found.meaning == "ended by signal 11"


def test_reason_takes_precedence_over_exit_code() -> None:
    found = explain(exit_code=137, reasons=[None, "OutOfMemoryError: Container killed"])

    assert found is not None
    assert "more memory than its limit" in found.meaning


def test_container_exit_is_not_news() -> None:
    assert not is_informative("Essential container in task exited")
