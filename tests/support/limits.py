"""Time limits of tests, scaled by one factor for slow or busy machines.

``TRAINIUM_TEST_TIMES=1`` suits an idle machine like a developer's; the default allows for one
that is four times as slow. These are upper bounds; nothing waits longer than necessary.
"""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("TRAINIUM_TEST_TIMES", "4"))


def scaled(seconds: float) -> float:
    """Scale a limit that is generous on an idle machine to this one."""
    return seconds * FACTOR
