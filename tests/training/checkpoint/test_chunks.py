"""Rectangles of tensors, saved by several ranks' plans and read by torch itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.default_planner import (
    create_default_global_save_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from training.backends.nxd_shards import Chunk

WHOLE = torch.arange(24.0).view(6, 4)


def chunk(rows: range, columns: range) -> Chunk:
    part = WHOLE[rows.start : rows.stop, columns.start : columns.stop]
    return Chunk.of(part, offsets=(rows.start, columns.start), whole=WHOLE.size())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("rows", [range(6), range(2, 5), range(6, 6)])
def test_any_rectangle_of_a_saved_tensor_can_be_loaded(tmp_path: Path, rows: range) -> None:
    save({"m": {"w": WHOLE}}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)

    part = torch.zeros(len(rows), 2)
    wanted = Chunk.of(part, offsets=(rows.start, 1), whole=WHOLE.size())
    load({"m": {"w": wanted}}, storage_reader=FileSystemReader(tmp_path), no_dist=True)

    assert torch.equal(part, WHOLE[rows.start : rows.stop, 1:3])


def test_torchs_planner_accepts_the_shards_of_four_ranks() -> None:
    ranks = [chunk(rows, columns) for rows in (range(4), range(4, 6))
             for columns in (range(3), range(3, 4))]  # fmt: skip
    empty = chunk(range(6, 6), range(4))
    plans = [create_default_local_save_plan({"w": part}, False) for part in (*ranks, empty)]
    _, metadata = create_default_global_save_plan(plans)

    known = metadata.state_dict_metadata["w"]
    assert isinstance(known, TensorStorageMetadata)
    assert known.size == WHOLE.size()
    assert sorted((tuple(c.offsets), tuple(c.sizes)) for c in known.chunks) == [
        ((0, 0), (4, 3)),
        ((0, 3), (4, 1)),
        ((4, 0), (2, 3)),
        ((4, 3), (2, 1)),
    ]
