# src/neuronx_distributed/trainer/checkpoint.py, v2.28.0.
from concurrent.futures import Future
from typing import Any

class CheckpointIOState:
    # Only there when saves are asynchronous; None when this rank has nothing to write.
    _save_task: Future[Any] | None
    def __init__(self, async_save: bool = ...) -> None: ...
    def wait_all(self) -> None: ...

g_iostate: CheckpointIOState | None
