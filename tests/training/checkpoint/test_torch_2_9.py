"""Differences of torch 2.9, of the Neuron images, from the laptop's torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from training.checkpoint import Checkpoints
from training.core.ranks import Ranks
from training.storage import open_objects

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_a_checkpoint_is_complete_when_torch_writes_a_copy_of_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # File locations are then only in the copy (2.9.1, checkpoint/filesystem.py, finish).
    finish = FileSystemWriter.finish

    def finish_a_copy(self: FileSystemWriter, metadata: Any, results: Any) -> None:
        finish(self, dataclasses.replace(metadata), results)

    monkeypatch.setattr(FileSystemWriter, "finish", finish_a_copy)
    objects = open_objects(str(tmp_path), region=None, endpoint_url=None)
    checkpoints = Checkpoints(objects, Ranks.open(), keep_last=1, keep_every=0)
    checkpoints.save({"model": {"w": torch.ones(3)}}, 7, {}, asynchronous=False)
    checkpoints.wait()

    info = checkpoints.latest()
    assert info is not None and info.step == 7
