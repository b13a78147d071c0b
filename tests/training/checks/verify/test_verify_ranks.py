"""Verify on four real processes, TP 2 x DP 2: green as it is, red with each defect put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.ranks import results_of_ranks

PROGRAM = Path(__file__).with_name("rank_program.py")
RANKS = 4
Found = dict[str, tuple[bool, str]]


def findings(folder: Path, part: str) -> Found:
    """What every rank has found; they agree."""
    results = results_of_ranks(PROGRAM, str(folder), part, num_ranks=RANKS, timeout_s=240)
    assert all(result == results[0] for result in results)
    return {name: (ok, detail) for name, (ok, detail) in results[0].items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Each model that is right, and every defect once."""
    return findings(tmp_path_factory.mktemp("verify-ranks"), "essence")


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The others."""
    return findings(tmp_path_factory.mktemp("verify-rest"), "rest")


@pytest.mark.parametrize("name", ["gradients", "BERT", "digits", "Qwen3"])
def test_what_is_right_passes(found: Found, name: str) -> None:
    ok, detail = found[name]

    assert ok, detail


@pytest.mark.parametrize(
    "name",
    [
        "llama: lost sum", "llama: sum, not mean", "llama: one rank's data", "llama: local norm",
        "llama: ranks swapped", "Qwen3: local gradients", "Qwen3: untied",
    ],
)  # fmt: skip
def test_a_defect_fails(found: Found, name: str) -> None:
    ok, detail = found[name]

    assert not ok, detail


# The same on other models and at another degree; ranks also resume in test_killed_and_resumed.py.
@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("resume", True), ("gradients at 4", True),
        ("Llama 3.2", True), ("Llama 3.2 at 4", True), ("Qwen3 at 4", True),
        # It has no norm of heads.
        ("Llama 3.2: local gradients", True),
        ("Llama 3.2: untied", False),
        ("BERT: sum, not mean", False), ("BERT: one rank's data", False),
        ("digits: sum, not mean", False), ("digits: one rank's data", False),
    ],
)  # fmt: skip
def test_other_models_and_degrees_are_judged_the_same(rest: Found, name: str, right: bool) -> None:
    ok, detail = rest[name]

    assert ok is right, detail
