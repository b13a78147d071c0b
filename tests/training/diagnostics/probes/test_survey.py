"""The probes of all nodes become one tamper-evident record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.checkpoint.documents import assert_valid
from tests.training.diagnostics.probes.conftest import MakeNode
from training.diagnostics.probes.node import merged, record, run_probes
from trainium_catalogue.probing import (
    Finding,
    ProbeResult,
    Probes,
    ProbeSite,
    State,
    SubjectMissing,
    is_intact,
)


def finding(state: State, seen: str = "", name: str = "claim", *needs: str) -> Finding:
    return Finding(
        id=name, place=ProbeSite.NODE, state=state, seen=seen, expected="", needs=tuple(needs)
    )


def probes() -> Probes[int]:
    made: Probes[int] = Probes(ProbeSite.NODE)

    @made.probe("doubled", "twice", needs=("a number",))
    def doubled(number: int) -> ProbeResult:
        return ProbeResult(ok=number == 2, seen=f"{number}\n", expected="2")

    @made.probe("broken")
    def broken(number: int) -> ProbeResult:
        raise RuntimeError(f"no\nway: {'x' * 500}")

    @made.probe("absent")
    def absent(number: int) -> ProbeResult:
        raise SubjectMissing("a device")

    return made


@pytest.mark.parametrize(("number", "state"), [(2, State.GREEN), (3, State.RED)])
def test_one_function_may_check_several_claims(number: int, state: State) -> None:
    found = [probes().run(name, number, {"a number"}) for name in ("doubled", "twice")]

    assert [(f.id, f.state, f.seen) for f in found] == [
        ("doubled", state, str(number)),
        ("twice", state, str(number)),
    ]


def test_a_crash_is_one_line_without_an_exception() -> None:
    found = probes().run("broken", 1, ())

    assert found.state is State.CRASHED
    assert found.seen.startswith("RuntimeError: no way: xxx")
    assert "\n" not in found.seen and len(found.seen) <= 300


def test_missing_parts_are_reported() -> None:
    assert probes().run("doubled", 2, ()).needs == ("a number",)
    assert probes().run("absent", 2, ()).needs == ("a device",)
    assert probes().run("absent", 2, ()).state is State.NOT_RUN


def test_the_worst_node_decides_the_verdict() -> None:
    by_node = [
        [finding(State.GREEN, "fine"), finding(State.NOT_RUN), finding(State.GREEN, "fine")],
        [finding(State.RED, "no route"), finding(State.GREEN, "told"), finding(State.GREEN, "too")],
    ]

    found = merged(by_node)

    assert [(f.state, f.seen) for f in found] == [
        (State.RED, "node 1: no route"),
        (State.GREEN, "told"),
        (State.GREEN, "fine"),
    ]


def test_a_record_has_the_documented_format_and_a_checksum(make_node: MakeNode) -> None:
    node = make_node()
    reported: list[str] = []
    document: dict[str, Any] = record(node, run_probes(node, reported.append, ["node-dns"]))

    assert_valid(document, "verification-record.schema.json")
    assert reported == ["probing: node-dns"]
    assert is_intact(document)
    document["findings"][0]["state"] = "green"
    assert not is_intact(document)
