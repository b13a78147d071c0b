"""How long tests wait for what comes, by one factor for machines that are slow or busy.

``TRAINIUM_TEST_TIMES=1`` is right for an idle machine like a developer's; the default leaves
room for one that is four times as slow. Nothing waits longer than it has to: these are limits.
"""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("TRAINIUM_TEST_TIMES", "4"))


def scaled(seconds: float) -> float:
    """A limit that is generous on an idle machine, for this one."""
    return seconds * FACTOR
