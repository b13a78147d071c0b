"""Tables, styled text and progress bars on a terminal, in which no text is a command for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from jobs.output.console import LINES, printable

_COLOURS = re.compile(r"(\x1b\[[0-9;:]*m)")
"""Select Graphic Rendition, the one kind of control sequence that only changes how text looks."""


class Terminal(Console):
    """Rich's console, whose text is plain: neither markup nor control characters have an effect.

    Names, messages and reasons come from programs and from the bucket.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **settings})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, and write out what a terminal would take for a command."""
        for text, style, control in super().render(renderable, options):
            # Segments with control codes are Rich's own, such as those that move a progress bar.
            yield Segment(text if control else printable(text, keep=LINES), style, control)

    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the frame of all commands, where Rich would exit with 1."""
        error = sys.exception()
        assert error is not None
        raise error


def with_colours(text: str) -> str:
    """Write out what a terminal would take for a command, except for colours."""
    return "".join(
        part if number % 2 else printable(part, keep=LINES)
        for number, part in enumerate(_COLOURS.split(text))
    )
