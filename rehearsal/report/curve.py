"""The loss curve, in the terminal and as an SVG figure such as docs/loss.svg."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from rehearsal.receipt import TrainingAttempt

_MARKERS = ("dot", "x", "+")
_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 24, 44, 40
_STYLE = (
    "text{font:13px sans-serif;fill:#475569}.title{font-size:15px;fill:#0f172a}"
    ".grid{stroke:#e2e8f0}.killed{stroke:#dc2626;stroke-dasharray:4 4}.note{fill:#dc2626}"
    ".first{fill:#2563eb;stroke:#2563eb}.second{fill:#ea580c;stroke:#ea580c}"
    "polyline{fill:none!important;stroke-width:2}text.first,text.second{stroke:none}"
)
_CLASSES = ("first", "second")


def as_text(attempts: Sequence[TrainingAttempt], *, width: int) -> str:
    """Draw the curve as text, without colors."""
    import plotext  # imported only if a curve is drawn

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(min(width, 76), 16)
    for number, attempt in enumerate(attempts):
        signal = figure.signal(attempt.steps, attempt.losses, marker=_MARKERS[number % 3])
        figure.draw(signal.label(f"attempt {attempt.attempt}"))
    # At the top right, where a falling curve leaves room; ``relative`` selects axis coordinates.
    last = max((step for attempt in attempts for step in attempt.steps), default=0)
    highest = max((loss for attempt in attempts for loss in attempt.losses), default=0.0)
    figure.legend(relative=True, x=last, y=highest, ha="right", va="top")
    figure.label("step")
    return str(plotext.uncolorize(str(figure.build())))


def write_svg(
    path: Path,
    attempts: Sequence[TrainingAttempt],
    *,
    title: str,
    killed_after: int,
    resumed_from: int | None,
) -> None:
    """Draw the curve as an SVG figure, unless there is nothing to show."""
    curves = [_points(attempt) for attempt in attempts]
    points = [point for curve in curves for point in curve]
    if len(points) < 2:
        return
    last_step = max(step for step, _ in points)
    low, high = int(min(loss for _, loss in points)), int(max(loss for _, loss in points)) + 1

    def x_of(step: float) -> float:
        return _LEFT + step / last_step * (_WIDTH - _LEFT - _RIGHT)

    def y_of(loss: float) -> float:
        return _TOP + (high - loss) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def lines() -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
            f"<style>{_STYLE}</style>"
        )
        yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
        yield f'<text class="title" x="{_LEFT}" y="22">{title}</text>'
        for loss in range(low, high + 1):
            y = y_of(loss)
            yield f'<path class="grid" d="M{_LEFT},{y:.1f}H{_WIDTH - _RIGHT}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss}</text>'
        for step in range(0, last_step + 1, max(1, last_step // 6)):
            x, y = x_of(step), _HEIGHT - _BOTTOM + 20
            yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{step}</text>'
        x = x_of(killed_after)
        yield f'<path class="killed" d="M{x:.1f},{_TOP}V{_HEIGHT - _BOTTOM}"/>'
        notes = [f"a node is killed after step {killed_after};"]
        if resumed_from is not None:
            notes.append(f"attempt 2 resumes from the checkpoint of step {resumed_from}")
        for line, note in enumerate(notes):
            yield f'<text class="note" x="{x + 8:.1f}" y="{_TOP + 16 + 18 * line}">{note}</text>'
        for number, (attempt, curve) in enumerate(zip(attempts, curves, strict=True)):
            if not curve:
                continue
            name = _CLASSES[number % len(_CLASSES)]
            coordinates = [(x_of(step), y_of(loss)) for step, loss in curve]
            polyline = " ".join(f"{x:.1f},{y:.1f}" for x, y in coordinates)
            yield f'<polyline class="{name}" points="{polyline}"/>'
            for x, y in coordinates:
                yield f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
            x, y = coordinates[len(coordinates) // 2]
            label = f"attempt {attempt.attempt}"
            yield f'<text class="{name}" x="{x + 10:.1f}" y="{y - 8:.1f}">{label}</text>'
        yield "</svg>"

    path.write_text("\n".join([*lines(), ""]), encoding="utf-8")


def _points(attempt: TrainingAttempt) -> list[tuple[int, float]]:
    """Return the steps and losses to draw, without NaN and infinite losses."""
    pairs = zip(attempt.steps, attempt.losses, strict=True)
    return [(step, loss) for step, loss in pairs if math.isfinite(loss)]
