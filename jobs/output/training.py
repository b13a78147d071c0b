"""How training stands, for people: what results/status.json and metrics/train.jsonl say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jobs.output.show import duration

_PLOT_HEIGHT = 16
_VALIDATION_MARKER = "o"
_OLD_S = 60.0
"""Training renews its status every few seconds; an older one deserves a remark."""


def describe_training(status: Mapping[str, Any], *, job_id: str | None, now: datetime) -> str:
    """Step, loss, speed, time left and last checkpoint."""
    step, most = int(status.get("step") or 0), int(status.get("max_steps") or 0)
    part = f" ({step / most:.1%})" if most else ""
    first = [f"{status.get('state')}: step {step:,} of {most:,}{part}"]
    first += _known(
        status,
        ("loss", lambda v: f"loss {v:.4f}"),
        ("lr", lambda v: f"lr {v:.3g}"),
        ("grad_norm", lambda v: f"gradient norm {v:.3g}"),
        ("val_loss", lambda v: f"validation loss {v:.4f} after step {status.get('val_step')}"),
    )
    speed = _known(
        status,
        ("tokens_per_second", lambda v: f"{v:,.0f} tokens/s"),
        ("mfu", lambda v: f"MFU {v:.1%}"),
        ("step_seconds", lambda v: f"{v:.3g} s a step"),
        ("eta_seconds", lambda v: f"ETA {duration(v)}"),
    )
    lines = [", ".join(first)]
    if speed:
        lines.append(", ".join(speed))
    lines.append(_checkpoint(status, now))
    if status.get("error"):
        lines.append(f"error: {status['error']}")
    lines.append(_origin(status, job_id=job_id, now=now))
    return "\n".join(lines)


def loss_plot(metrics: bytes, *, width: int) -> str | None:
    """The loss curve as text, ``width`` characters wide; None without two logged steps."""
    losses = losses_of(metrics)
    if len(losses) < 2:
        return None
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, _PLOT_HEIGHT)
    figure.draw(figure.signal(list(losses), list(losses.values())))
    title = "loss"
    if validation := losses_of(metrics, event="evaluation", field="val_loss"):
        steps, values = list(validation), list(validation.values())
        figure.draw(figure.signal(steps, values, marker=_VALIDATION_MARKER))
        title = f"loss, and validation loss ({_VALIDATION_MARKER})"
    figure.title(title)
    figure.label("step")
    return str(plotext.uncolorize(str(figure.build())))


def losses_of(metrics: bytes, *, event: str = "step", field: str = "loss") -> dict[int, float]:
    """Loss by step; of a step that a later attempt made again, the later one."""
    losses: dict[int, float] = {}
    for line in metrics.decode(errors="replace").splitlines():
        try:
            document = json.loads(line)
            if document["event"] == event:
                losses[int(document["step"])] = float(document[field])
        except (KeyError, TypeError, ValueError):
            continue  # half a line, or a loss that is not finite
    return dict(sorted(losses.items()))


def _known(status: Mapping[str, Any], *shown: tuple[str, Any]) -> list[str]:
    return [show(status[name]) for name, show in shown if status.get(name) is not None]


def _checkpoint(status: Mapping[str, Any], now: datetime) -> str:
    step = status.get("last_checkpoint_step")
    text = "no checkpoint yet"
    if step is not None:
        age = _age(status.get("last_checkpoint_time"), now)
        when = "of an earlier attempt" if age is None else f"{age} ago"
        text = f"last checkpoint: step {step:,}, {when}"
    failed = int(status.get("failed_saves") or 0)
    return text + (f"; {failed} saves failed, see the log" if failed else "")


def _origin(status: Mapping[str, Any], *, job_id: str | None, now: datetime) -> str:
    age_s = _age_s(status.get("time"), now)
    text = f"attempt {status.get('attempt')} on {status.get('num_nodes')} nodes"
    if age_s is not None and age_s > _OLD_S:
        text += f", as of {duration(age_s)} ago"
    if job_id is not None and status.get("job_id") not in (None, job_id):
        text += ", by an earlier job of the run"
    return text


def _age(time: Any, now: datetime) -> str | None:
    seconds = _age_s(time, now)
    return None if seconds is None else duration(seconds)


def _age_s(time: Any, now: datetime) -> float | None:
    try:
        then = datetime.fromisoformat(str(time))
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (now - then).total_seconds())
