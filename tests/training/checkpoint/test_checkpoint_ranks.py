"""Checkpoints of several ranks in real processes: any topology, one decision for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checkpoint.rank_program import SIZES, whole
from tests.training.ranks import results_of_ranks
from training.checkpoint import Checkpoints
from training.core.ranks import Ranks
from training.storage import LocalObjects

PROGRAM = Path(__file__).with_name("rank_program.py")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(root: Path) -> list[dict[str, Any]]:
    """Return the results of four ranks, TP 2 x DP 2."""
    return results_of_ranks(PROGRAM, str(root), num_ranks=4)


def test_every_rank_writes_its_own_file(saved: list[dict[str, Any]]) -> None:
    assert saved[0]["files"] == [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]


def test_ranks_with_whole_tensors_or_none_load_all_of_them(
    saved: list[dict[str, Any]],
) -> None:
    assert [found["by_tensor"] for found in saved] == [True] * 4


def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_no_files(
    saved: list[dict[str, Any]],
) -> None:
    for found in saved:
        ((step, reason),) = found["failed"]
        assert step == 20
        assert reason.startswith("rank 3: ") and "File too large" in reason
        assert found["left"] == ["step-00000010"]


def test_damage_seen_by_one_rank_makes_all_ranks_load_the_previous_checkpoint(
    saved: list[dict[str, Any]],
) -> None:
    assert [(f["latest"], f["used"], f["matches"]) for f in saved] == [(30, 10, True)] * 4


def test_only_rank_0_logs(saved: list[dict[str, Any]]) -> None:
    assert [bool(found["lines"]) for found in saved] == [True, False, False, False]
    assert saved[0]["lines"][1].startswith(
        "skipping checkpoint step-00000030: __2_0.distcp has changed"
    )


def test_a_checkpoint_is_loaded_in_other_topologies(saved: list[dict[str, Any]]) -> None:
    assert [found["others"] for found in saved] == [{"4x1": True, "1x4": True}] * 4


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_rank_loads_a_checkpoint_of_four(root: Path, saved: list[dict[str, Any]]) -> None:
    checkpoints = Checkpoints(LocalObjects(root), Ranks.open(), keep_last=3, keep_every=0)
    info = checkpoints.latest(at_most=10)
    assert info is not None
    loaded = {
        "model": {name: torch.zeros(size) for name, size in SIZES.items()},
        "optimizer": {name: torch.zeros(size) for name, size in SIZES.items()},
    }

    checkpoints.load(loaded, info)

    for name in SIZES:
        assert torch.equal(loaded["model"][name], whole(name, 10))
        assert torch.equal(loaded["optimizer"][name], -whole(name, 10))
