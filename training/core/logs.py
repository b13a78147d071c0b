"""Logging for launcher and workers: plain messages, errors on standard error, unbuffered."""

from __future__ import annotations

import logging
import sys


class _StandardStreams(logging.Handler):
    """Writes to the current streams and propagates their exceptions."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.levelno >= logging.ERROR else sys.stdout
        # A single write, so that lines of different ranks are not interleaved.
        stream.write(f"{self.format(record)}\n")
        stream.flush()


def set_up_logging() -> None:
    """Send this project's log records to the container's log; other libraries are unaffected."""
    logger = logging.getLogger("training")
    logger.handlers = [_StandardStreams()]
    logger.setLevel(logging.INFO)
    logger.propagate = False
