"""Prints an emulator's events, one JSON object per line, for the process that started it."""

import json
import threading
from typing import Any

_LOCK = threading.Lock()


def emit(event: str, **details: Any) -> None:
    """Print one event immediately."""
    with _LOCK:
        print(json.dumps({"event": event, **details}), flush=True)
