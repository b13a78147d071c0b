"""Draw docs/loss.svg from the receipt of a rehearsal: `python tools/loss_curve.py [RECEIPT]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECEIPT = ROOT / "build" / "rehearsal" / "receipt.json"
FIGURE = ROOT / "docs" / "loss.svg"

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 48, 24, 44, 40
STYLE = (
    "text{font:13px sans-serif;fill:#475569}.title{font-size:15px;fill:#0f172a}"
    ".grid{stroke:#e2e8f0}.killed{stroke:#dc2626;stroke-dasharray:4 4}.note{fill:#dc2626}"
    ".first{fill:#2563eb;stroke:#2563eb}.second{fill:#ea580c;stroke:#ea580c}"
    "polyline{fill:none!important;stroke-width:2}text.first,text.second{stroke:none}"
)
CLASSES = ("first", "second")


def figure(training: dict[str, Any]) -> str:
    """Draw the losses of all attempts, and the step after which the node was killed."""
    attempts = training["attempts"]
    last_step: int = max(step for attempt in attempts for step in attempt["steps"])
    losses = [loss for attempt in attempts for loss in attempt["losses"]]
    low, high = int(min(losses)), int(max(losses)) + 1

    def across(step: float) -> float:
        return LEFT + step / last_step * (WIDTH - LEFT - RIGHT)

    def up(loss: float) -> float:
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def lines() -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
            f"<style>{STYLE}</style>"
        )
        yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        yield f'<text class="title" x="{LEFT}" y="22">llama-tiny on two nodes: loss by step</text>'
        for loss in range(low, high + 1):
            y = up(loss)
            yield f'<path class="grid" d="M{LEFT},{y:.1f}H{WIDTH - RIGHT}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss}</text>'
        for step in range(0, last_step + 1, max(1, last_step // 6)):
            x, y = across(step), HEIGHT - BOTTOM + 20
            yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{step}</text>'
        killed = training["killed_after"]
        x = across(killed)
        yield f'<path class="killed" d="M{x:.1f},{TOP}V{HEIGHT - BOTTOM}"/>'
        for line, text in enumerate(
            (
                f"a node is killed after step {killed};",
                f"attempt 2 goes on from the checkpoint of step {training['resumed_from']}",
            )
        ):
            yield f'<text class="note" x="{x + 8:.1f}" y="{TOP + 16 + 18 * line}">{text}</text>'
        for attempt, name in zip(attempts, CLASSES, strict=False):
            points = [
                (across(step), up(loss))
                for step, loss in zip(attempt["steps"], attempt["losses"], strict=True)
            ]
            drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            yield f'<polyline class="{name}" points="{drawn}"/>'
            for x, y in points:
                yield f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
            x, y = points[len(points) // 2]
            label = f"attempt {attempt['attempt']}"
            yield f'<text class="{name}" x="{x + 10:.1f}" y="{y - 8:.1f}">{label}</text>'
        yield "</svg>"

    return "\n".join([*lines(), ""])


if __name__ == "__main__":
    receipt = json.loads(Path(sys.argv[1] if sys.argv[1:] else RECEIPT).read_text())
    FIGURE.write_text(figure(receipt["training"]))
