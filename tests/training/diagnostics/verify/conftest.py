"""Checks in this process: one thread, like a worker."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use one thread: synchronization costs more than such small matrices."""
    torch.set_num_threads(1)
