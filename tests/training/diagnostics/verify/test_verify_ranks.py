"""Verify on four real processes, TP 2 x DP 2: green as is, red with each defect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.ranks import results_of_ranks

# test_verify.py and test_defects.py show the same in one process.
pytestmark = pytest.mark.full

PROGRAM = Path(__file__).with_name("rank_program.py")
RANKS = 4
Found = dict[str, tuple[bool, str]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return the ranks' identical outcomes."""
    folder = tmp_path_factory.mktemp("verify-ranks")
    results = results_of_ranks(PROGRAM, str(folder), num_ranks=RANKS, timeout_s=240)
    assert all(result == results[0] for result in results)
    return {name: (ok, detail) for name, (ok, detail) in results[0].items()}


@pytest.mark.parametrize("name", ["gradients", "BERT", "digits", "Qwen3"])
def test_correct_code_passes(found: Found, name: str) -> None:
    ok, detail = found[name]

    assert ok, detail


@pytest.mark.parametrize(
    "name",
    [
        "llama: lost sum", "llama: sum, not mean", "llama: local norm", "llama: ranks swapped",
        "Qwen3: local gradients",
    ],
)  # fmt: skip
def test_a_defect_fails(found: Found, name: str) -> None:
    ok, detail = found[name]

    assert not ok, detail
