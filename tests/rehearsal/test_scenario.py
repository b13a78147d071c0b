"""The scenario of a rehearsal: the order of deployments and destroys, with and without failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rehearsal.cli import options
from rehearsal.deployment.cdk import CloudAssembly, StepFailed
from rehearsal.deployment.state import RehearsalFolder
from rehearsal.receipt import Receipt
from rehearsal.report.progress import ProgressDisplay
from rehearsal.scenario import Rehearsal

NEEDED = ("x-network", "x-batch")


class Rehearsed:
    """A rehearsal whose parts only record that they were reached."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> None:
        given = {"orchestrators": None, "nodes": None, "processes_per_node": None,
                 "instance_type": "trn1.32xlarge", "containers": False, "addresses": "127.0.0",
                 "path": "", **asked}  # fmt: skip
        self.reached: list[Any] = []
        self.failing = ""

        def part(name: str) -> Any:
            def reach(rehearsal: Rehearsal, *given: Any) -> None:
                self.reached.append((name, *given))
                rehearsal._is_up = True
                if name == self.failing:
                    raise StepFailed("no")

            return reach

        for name in ("start", "deploy", "destroy", "_all_reduce", "_both_halves"):
            monkeypatch.setattr(Rehearsal, name, part(name))
        settings = options.check(**given)
        self.receipt = Receipt(settings=settings)
        self.rehearsal = Rehearsal(
            settings=settings,
            folder=RehearsalFolder(folder),
            base_environment={},
            progress=ProgressDisplay(Console(quiet=True)),
            receipt=self.receipt,
        )
        self.rehearsal._assembly = CloudAssembly(region="r", stacks=(*NEEDED, "x-eks"))

    def go(self, **how: Any) -> list[Any]:
        self.rehearsal.run(**{"jobs": True, "stay": None, **how})
        return self.reached


def test_first_result_has_separate_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = Rehearsed(tmp_path, monkeypatch)

    assert rehearsed.go() == [
        ("start",),
        *(("deploy", NEEDED), ("_all_reduce",), ("destroy", NEEDED)),
        *(("deploy", None), ("_both_halves", {"llama-tiny", "program", "mnist", "bert-tiny"})),
        ("destroy", None),
    ]
    assert rehearsed.receipt.first_result is not None
    assert rehearsed.receipt.first_result.stacks == 2


def test_quick_rehearsal_ends_after_first_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = Rehearsed(tmp_path, monkeypatch, quick=True).go()

    assert reached == [("start",), ("deploy", None), ("_all_reduce",), ("destroy", None)]


def test_failed_first_job_ends_rehearsal_after_destroy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = Rehearsed(tmp_path, monkeypatch)
    rehearsed.failing = "_all_reduce"

    assert rehearsed.go()[-1] == ("destroy", NEEDED)
    assert rehearsed.receipt.errors == ["no"]
    assert rehearsed.receipt.first_result is None


def test_visit_keeps_everything_deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = Rehearsed(tmp_path, monkeypatch)

    def stay() -> None:
        rehearsed.reached.append("stays")

    reached = rehearsed.go(jobs=False, stay=stay)

    assert reached == [("start",), ("deploy", None), ("_both_halves", set()), "stays",
                       ("destroy", None)]  # fmt: skip
