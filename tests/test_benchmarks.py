"""`make bench` keeps its measurements when another comparison fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import __main__ as bench
from benchmarks import graph
from benchmarks.pairs import Comparison, MissingRequirement
from tests.support.schemas import conforms


def comparison(name: str, *, fails: bool = False) -> Comparison:
    def measure() -> float:
        if fails:
            raise RuntimeError(f"{name} cannot be measured")
        return 1.0

    return Comparison(
        name=name,
        product="ours",
        baseline="theirs",
        target=None,
        measure_product=measure,
        measure_baseline=measure,
    )


def broken() -> list[Comparison]:
    raise OSError("no deployment")


def impossible() -> list[Comparison]:
    raise MissingRequirement("it is not here; get it")


GROUPS = [
    bench.ComparisonGroup(("good",), lambda: [comparison("good")]),
    bench.ComparisonGroup(("bad",), lambda: [comparison("bad", fails=True)]),
    bench.ComparisonGroup(("unmade", "unmade-too"), broken),
    bench.ComparisonGroup(
        ("pair-bad", "pair-good"),
        lambda: [comparison("pair-bad", fails=True), comparison("pair-good")],
    ),
]
MADE = ["good", "pair-good"]
FAILED = ["bad", "unmade", "unmade-too", "pair-bad"]


def run(
    monkeypatch: pytest.MonkeyPatch, result: Path, *arguments: str, groups: Any = GROUPS
) -> tuple[int, str]:
    """Call `python -m benchmarks` with comparisons that take no time."""
    app = typer.Typer()
    app.command()(bench.main)
    monkeypatch.setattr(bench, "groups", lambda *_, **__: groups)
    monkeypatch.setattr(bench, "ROOT", result.parent)
    monkeypatch.setattr(bench, "RESULT", result)
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output


def written(result: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.read_text())
    conforms("bench", document)
    return document


def test_failed_comparison_does_not_stop_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, said = run(monkeypatch, tmp_path / "bench.json")
    document = written(tmp_path / "bench.json")

    assert code == 1
    assert [entry["name"] for entry in document["benchmarks"]] == MADE
    assert [entry["name"] for entry in document["failed"]] == FAILED
    assert f"failed: {', '.join(FAILED)}" in " ".join(said.split())
    assert "bad cannot be measured" in said


def test_exit_code_is_0_without_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, _ = run(monkeypatch, tmp_path / "bench.json", "--only", "good")

    assert code == 0
    assert written(tmp_path / "bench.json")["failed"] == []


@pytest.mark.parametrize(("first", "is_reported"), [({"seconds": 34.2}, True), (None, False)])
def test_first_result_of_last_rehearsal_is_reported(
    first: dict[str, float] | None,
    is_reported: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps({"first_result": first, "seconds": 222.0}))
    monkeypatch.setattr(bench, "RECEIPT", receipt)

    _, said = run(monkeypatch, tmp_path / "bench.json", "--only", "good")

    assert ("first result after 34 s" in " ".join(said.split())) is is_reported


def test_missing_requirement_skips_comparison_with_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups = [GROUPS[0], bench.ComparisonGroup(("absent",), impossible)]
    code, said = run(monkeypatch, tmp_path / "bench.json", groups=groups)
    document = written(tmp_path / "bench.json")

    assert code == 0
    assert [entry["name"] for entry in document["benchmarks"]] == ["good"]
    assert document["skipped"] == [{"name": "absent", "reason": "it is not here; get it"}]
    assert "absent skipped: it is not here; get it" in said


def test_graph_comparison_needs_nxd_source() -> None:
    comparison, *_ = graph.comparisons({})

    with pytest.raises(MissingRequirement, match="NXD_SOURCE is not set"):
        comparison.measure_product()


def test_smoke_run_writes_no_result_and_reports_failures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, said = run(monkeypatch, tmp_path / "bench.json", "--smoke")

    assert (code, (tmp_path / "bench.json").exists()) == (1, False)
    assert "2 comparisons ran once, 4 failed" in said


def test_unknown_comparison_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, said = run(monkeypatch, tmp_path / "bench.json", "--only", "god")

    assert code == 2
    assert "did you mean 'good'" in said


def test_names_match_comparisons() -> None:
    """Comparisons that are created quickly; the smoke run creates the others."""
    from contextlib import ExitStack

    from rich.console import Console

    with ExitStack() as stack:
        for group in bench.groups(stack, {}, Console(quiet=True)):
            if not group.names[0].startswith("submit"):
                assert tuple(made.name for made in group.make()) == group.names
