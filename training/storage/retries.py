"""Repeat an operation on storage while its failure may pass, for a bounded time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long one request may be retried, and how fast.

    botocore's own retries end after seconds, too soon for a bucket that answers SlowDown while S3
    splits its partitions: that takes minutes
    (docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html).
    """

    total_s: float = 300.0
    """Below the launcher's hang limit, so that the storage is blamed and not a hang."""
    first_delay_s: float = 0.5
    longest_delay_s: float = 20.0

    def delay_s(self, attempt: int) -> float:
        """Wait after failure number ``attempt`` (from 0): random, so that ranks do not meet."""
        return random.uniform(
            0.0, min(self.longest_delay_s, self.first_delay_s * 2 ** min(attempt, 16))
        )


def retrying(
    action: Callable[[int], T],
    *,
    is_transient: Callable[[Exception], bool],
    patience: Patience,
) -> T:
    """Call ``action(attempt)`` until it succeeds, fails for good, or patience ends.

    The last exception is raised as it is.
    """
    deadline = time.monotonic() + patience.total_s
    attempt = 0
    while True:
        try:
            return action(attempt)
        except Exception as error:
            delay = patience.delay_s(attempt)
            if not is_transient(error) or time.monotonic() + delay > deadline:
                raise
        time.sleep(delay)
        attempt += 1
