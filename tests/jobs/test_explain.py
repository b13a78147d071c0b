"""Explanations of reasons and exit codes."""

from __future__ import annotations

from jobs.output.explain import explain, explain_exit, explain_reason


def test_more_specific_reason_comes_first() -> None:
    found = explain_reason(
        "CannotStartContainerError: Error response from daemon: error gathering device "
        'information while adding custom device "/dev/neuron0": no such file or directory'
    )

    assert found is not None
    assert "device or the program is missing" in found.meaning


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
