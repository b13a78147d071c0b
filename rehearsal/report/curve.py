"""The loss curve: in the terminal, and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rehearsal.receipt import TrainingAttempt

_WIDTH, _HEIGHT, _MARGIN = 720, 360, 56
_MARKERS = ("dot", "x", "+")
_COLOURS = ("#2563eb", "#ea580c", "#16a34a")


def text(attempts: Sequence[TrainingAttempt], *, width: int) -> str:
    """Draw the curve in text, without colours."""
    import plotext  # imported only when a curve is drawn

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(min(width, 76), 16)
    for number, attempt in enumerate(attempts):
        signal = figure.signal(attempt.steps, attempt.losses, marker=_MARKERS[number % 3])
        figure.draw(signal.label(f"attempt {attempt.attempt}"))
    # Top right, where a falling curve leaves room; relative: in the axes' coordinates.
    last = max((step for attempt in attempts for step in attempt.steps), default=0)
    highest = max((loss for attempt in attempts for loss in attempt.losses), default=0.0)
    figure.legend(relative=True, x=last, y=highest, ha="right", va="top")
    figure.label("step")
    return str(plotext.uncolorize(str(figure.build())))


def write_svg(path: Path, attempts: Sequence[TrainingAttempt]) -> None:
    """Write the curve as an SVG figure, unless there is nothing to show."""
    points = [
        point for attempt in attempts for point in zip(attempt.steps, attempt.losses, strict=True)
    ]
    if len(points) < 2:
        return
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    low_y, high_y = min(y for _, y in points), max(y for _, y in points)

    def place(x: float, y: float) -> str:
        across = (x - low_x) / max(high_x - low_x, 1)
        up = (y - low_y) / max(high_y - low_y, 1e-9)
        return (
            f"{_MARGIN + across * (_WIDTH - 2 * _MARGIN):.1f},"
            f"{_HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN):.1f}"
        )

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _label(_WIDTH / 2, _HEIGHT - 14, "step", "middle"),
        _label(_WIDTH / 2, 24, "loss", "middle"),
        _label(_MARGIN, _HEIGHT - _MARGIN + 18, str(low_x), "middle"),
        _label(_WIDTH - _MARGIN, _HEIGHT - _MARGIN + 18, str(high_x), "middle"),
        _label(_MARGIN - 8, _HEIGHT - _MARGIN, f"{low_y:.2f}", "end"),
        _label(_MARGIN - 8, _MARGIN + 4, f"{high_y:.2f}", "end"),
        f'<path d="M{_MARGIN},{_MARGIN} V{_HEIGHT - _MARGIN} H{_WIDTH - _MARGIN}" '
        'fill="none" stroke="#94a3b8"/>',
    ]
    for number, attempt in enumerate(attempts):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(place(x, y) for x, y in zip(attempt.steps, attempt.losses, strict=True))
        lines.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        name = f"attempt {attempt.attempt}"
        lines.append(_label(_WIDTH - _MARGIN, _MARGIN + 18 * number, name, "end", colour))
    path.write_text("\n".join([*lines, "</svg>", ""]), encoding="utf-8")


def _label(x: float, y: float, words: str, anchor: str, colour: str = "#334155") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'
