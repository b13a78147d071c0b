"""`jobs status --plot`: the curve in the terminal."""

import json

from jobs.commands.status import loss_plot, losses_of


def plotted(metrics: bytes) -> str | None:
    validation = losses_of(metrics, event="evaluation", field="val_loss")
    return loss_plot(losses_of(metrics), validation, width=60)


def lines(losses: dict[int, float]) -> bytes:
    events = [{"event": "step", "step": step, "loss": loss} for step, loss in losses.items()]
    return "\n".join(json.dumps(event) for event in events).encode()


def test_curve_shows_both_ends_of_loss() -> None:
    picture = plotted(lines({1: 10.4, 2: 9.0, 3: 7.6}))

    assert picture is not None
    assert "10.4" in picture and "7.6" in picture and "step" in picture


def test_validation_loss_is_plotted_too() -> None:
    evaluated = json.dumps({"event": "evaluation", "step": 2, "val_loss": 12.5}).encode()

    picture = plotted(lines({1: 10.4, 2: 9.0, 3: 7.6}) + b"\n" + evaluated)

    assert picture is not None
    assert "12.5" in picture and "validation loss (o)" in picture


def test_single_step_makes_no_curve() -> None:
    assert plotted(lines({1: 10.4})) is None
