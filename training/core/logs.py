"""The log of launcher and workers: messages as they are, errors on standard error, at once."""

from __future__ import annotations

import logging
import sys


class _StandardStreams(logging.Handler):
    """Writes to whatever the streams are now, and raises what they raise."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.levelno >= logging.ERROR else sys.stdout
        # One write, so that the lines of several ranks do not mix.
        stream.write(f"{self.format(record)}\n")
        stream.flush()


def set_up_logging() -> None:
    """Send what this project logs to the container's log; other libraries keep their own ways."""
    logger = logging.getLogger("training")
    logger.handlers = [_StandardStreams()]
    logger.setLevel(logging.INFO)
    logger.propagate = False
