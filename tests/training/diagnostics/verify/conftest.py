"""Checks in this process: one thread, as a worker has."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Threads that wait for each other take longer than such small matrices."""
    torch.set_num_threads(1)
