"""Combining the nodes' verdicts into one decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.nodes import CPU_NODE
from training.launcher.verdict import Verdict, VerdictCollector, own_verdict
from trainium_catalogue.exit_codes import ExitCode

CODES = [
    ExitCode.OK,
    ExitCode.WORKLOAD,
    ExitCode.CONFIGURATION,
    ExitCode.PREFLIGHT,
    ExitCode.HOST,
    ExitCode.STOPPED,
]
VERDICTS = st.builds(
    Verdict,
    code=st.sampled_from(CODES),
    reason=st.text(max_size=5),
    graceful=st.booleans(),
    symptom=st.booleans(),
)
REPORTS = st.lists(st.tuples(st.integers(0, 3), VERDICTS, st.floats(0, 4)), max_size=12)


def verdict(code: ExitCode, reason: str = "", *, symptom: bool = False) -> Verdict:
    return Verdict(code=code, reason=reason, symptom=symptom)


def board(num_nodes: int = 4) -> VerdictCollector:
    return VerdictCollector(num_nodes=num_nodes, wait_s=5)


@given(REPORTS)
def test_the_best_evidence_of_any_node_decides_and_success_requires_every_node(
    reports: list[tuple[int, Verdict, float]],
) -> None:
    collected = board()
    for node, given_verdict, now_s in sorted(reports, key=lambda report: report[2]):
        collected.report(node, given_verdict, now_s)
    failures = [v for _, v, _ in reports if v.code is not ExitCode.OK]

    decision = collected.decision(4 + 5)

    if failures:
        assert decision is not None
        assert decision.precedence == min(v.precedence for v in failures)
    else:
        is_complete = {node for node, _, _ in reports} == set(range(4))
        assert decision == (verdict(ExitCode.OK, "every node finished") if is_complete else None)


def test_a_lost_connection_waits_for_better_evidence() -> None:
    collected = board()
    collected.report(1, verdict(ExitCode.HOST), 10)

    assert collected.decision(14.9) is None
    assert collected.decision(15) == verdict(ExitCode.HOST)


def test_no_wait_once_every_node_has_reported() -> None:
    collected = board(num_nodes=2)
    collected.report(0, verdict(ExitCode.HOST, "connection reset", symptom=True), 10)
    collected.report(1, verdict(ExitCode.HOST, "node 1 was lost"), 10)

    assert collected.decision(10) == verdict(ExitCode.HOST, "node 1 was lost")


def test_a_stop_request_explains_later_failures() -> None:
    collected = board()
    collected.report(1, verdict(ExitCode.WORKLOAD), 10)
    collected.report(0, verdict(ExitCode.STOPPED), 10)

    decision = collected.decision(10)

    assert decision is not None and decision.code is ExitCode.STOPPED


def test_findings_of_all_nodes_are_reported_once_all_joined() -> None:
    collected = board()
    collected.report(2, verdict(ExitCode.PREFLIGHT, "b"), 10)
    collected.report(1, verdict(ExitCode.PREFLIGHT, "a"), 10)
    assert collected.decision(10) is None

    collected.all_joined = True

    assert collected.decision(10) == verdict(ExitCode.PREFLIGHT, "a; b")


def test_the_reason_for_a_thousand_unfit_nodes_fits_into_a_message() -> None:
    collected = board(num_nodes=1000)
    collected.all_joined = True
    for node in range(1000):
        collected.report(node, verdict(ExitCode.PREFLIGHT, f"node {node}: {'x' * 1000}"), 10)

    decision = collected.decision(10)

    assert decision is not None
    assert decision.reason.startswith("node 0: x")
    assert decision.reason.endswith("x; and 992 more")
    assert len(decision.reason) < 16384  # a socket's smallest send buffer on Linux, tcp(7)


@pytest.mark.parametrize(("num_unfit", "is_unfit"), [(0, False), (1, True), (2, False)])
def test_hosts_are_unfit_only_if_others_are_fit(num_unfit: int, is_unfit: bool) -> None:
    collected = board(num_nodes=2)
    collected.all_joined = True
    for index in range(2):
        failed = replace(verdict(ExitCode.PREFLIGHT), unfit_host=index < num_unfit)
        collected.report(index, failed, 10)

    decision = collected.decision(10)

    assert decision is not None and decision.unfit_host is is_unfit


@pytest.mark.parametrize(("num_unfit", "is_unfit"), [(0, False), (1, True)])
def test_a_hardware_error_outweighs_broken_connections_and_lost_nodes(
    num_unfit: int, is_unfit: bool
) -> None:
    collected = board(num_nodes=3)
    collected.report(0, verdict(ExitCode.HOST, "connection closed", symptom=True), 10)
    collected.lose(2, verdict(ExitCode.HOST, "node 2 was lost"), 10)
    for index in range(num_unfit):
        broken = verdict(ExitCode.HOST, "NRT_EXEC_HW_ERR_HBM_UE")
        collected.report(index, replace(broken, unfit_host=True), 11)

    decision = collected.decision(15)

    assert decision is not None and decision.unfit_host is is_unfit
    assert decision.reason == ("NRT_EXEC_HW_ERR_HBM_UE" if num_unfit else "node 2 was lost")


UNFIT = replace(verdict(ExitCode.PREFLIGHT, "15 of 16 devices"), unfit_host=True)


@pytest.mark.parametrize(
    ("num_nodes", "on_cluster", "own", "others_fit", "code"),
    [
        (2, False, UNFIT, True, ExitCode.UNFIT_HOST),
        (2, False, UNFIT, False, ExitCode.PREFLIGHT),
        (2, False, None, True, ExitCode.PREFLIGHT),
        (2, False, replace(UNFIT, code=ExitCode.HOST), True, ExitCode.PREFLIGHT),
        (1, False, UNFIT, False, ExitCode.UNFIT_HOST),
        # Volcano ends a job whose pods have all failed while a delayed action is pending.
        (1, True, UNFIT, False, ExitCode.PREFLIGHT),
    ],
)
def test_only_a_node_with_an_unfit_host_ends_with_its_code(
    num_nodes: int, on_cluster: bool, own: Verdict | None, others_fit: bool, code: ExitCode
) -> None:
    node = replace(CPU_NODE, num_nodes=num_nodes, on_cluster=on_cluster)

    assert own_verdict(node, own, replace(UNFIT, unfit_host=others_fit)).code is code


def test_no_grace_period_once_a_node_is_lost() -> None:
    collected = board(num_nodes=2)
    collected.report(0, Verdict(code=ExitCode.HOST, reason="stop requested", graceful=True), 10)
    collected.report(1, verdict(ExitCode.HOST, "lost"), 10)

    decision = collected.decision(10)

    assert decision is not None and not decision.graceful


WEAK = Verdict(code=ExitCode.WORKLOAD, reason="ended with 1", weak=True)
LOST = Verdict(code=ExitCode.HOST, reason="node 1 was lost")


@pytest.mark.parametrize("is_lost_first", [True, False])
def test_a_lost_node_takes_precedence_over_an_exit_status(is_lost_first: bool) -> None:
    collected = VerdictCollector(num_nodes=3, wait_s=5, peer_timeout_s=30)
    if is_lost_first:
        collected.lose(1, LOST, 10)
    collected.report(0, WEAK, 10)
    assert collected.decision(39, oldest_contact_s=9) is None or is_lost_first
    if not is_lost_first:
        collected.lose(1, LOST, 40)

    assert collected.decision(40) == LOST


def test_an_exit_status_counts_once_every_node_has_reported_since() -> None:
    collected = VerdictCollector(num_nodes=3, wait_s=5, peer_timeout_s=30)
    collected.report(0, WEAK, 10)

    assert collected.decision(14.9, oldest_contact_s=11) is None
    assert collected.decision(15, oldest_contact_s=9) is None
    assert collected.decision(15, oldest_contact_s=11) == WEAK
    assert collected.decision(45, oldest_contact_s=9) == WEAK


def test_an_exception_takes_precedence_over_a_lost_node() -> None:
    collected = VerdictCollector(num_nodes=3, wait_s=5, peer_timeout_s=30)
    collected.lose(1, LOST, 10)
    collected.report(0, WEAK, 10)
    collected.report(2, verdict(ExitCode.WORKLOAD, "ValueError"), 11)

    assert collected.decision(11) == verdict(ExitCode.WORKLOAD, "ValueError")
