"""Terminal output with tables, styles and progress bars, and control characters escaped."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from jobs.output.console import LINES, printable

_COLORS = re.compile(r"(\x1b\[[0-9;:]*m)")
"""Select Graphic Rendition, the only kind of control sequence that merely styles text."""


class Terminal(Console):
    """Rich console that prints text literally, without markup or control characters.

    Names, messages and reasons come from programs and from the bucket.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **settings})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, and escape control characters."""
        for text, style, control in super().render(renderable, options):
            # Control segments come from Rich itself, for example to update a progress bar.
            yield Segment(text if control else printable(text, keep=LINES), style, control)

    def on_broken_pipe(self) -> None:
        """Raise the error of a closed pipe for `jobs.cli` to handle; Rich would exit with 1."""
        error = sys.exception()
        assert error is not None
        raise error


def with_colors(text: str) -> str:
    """Escape control characters except colors."""
    return "".join(
        part if number % 2 else printable(part, keep=LINES)
        for number, part in enumerate(_COLORS.split(text))
    )
