"""Describe the status of a user's own program: its last line, its pace, its snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jobs.output.console import age, duration, human, parse_time
from trainium_catalogue import contract
from trainium_catalogue.wording import counted

ENDED = "ended"
"""``state`` after the launcher's final report."""
NOTHING_KEPT = (
    "nothing was saved: the program ended without a snapshot, for example because it wrote nothing "
    f"to {contract.ENV_CHECKPOINT_DIR} or the folder of --checkpoint-dir"
)
_MAX_SHOWN = 5
_OLD_S = 60.0
"""Age at which a status is marked as old: the main node updates it every few seconds."""


def describe_program(
    status: Mapping[str, Any], *, submitted_at_ms: int | None, now: datetime
) -> str:
    """Describe the last line of output, progress and snapshots."""
    lines = [_progress(status)]
    if status.get("last_line"):
        at = age(status.get("last_line_at"), now)
        lines.append(f"last line{'' if at is None else f', {at} ago'}: {status['last_line']}")
    else:
        lines.append("no output yet")
    snapshots = status.get("snapshots") or []
    is_over = status.get("state") == ENDED
    lines.append(_snapshots(snapshots, now) if snapshots or not is_over else NOTHING_KEPT)
    if status.get("unpersisted"):
        lines.append(f"not saved: the program {status['unpersisted']}")
    if remark := _staleness(status, submitted_at_ms, now):
        lines.append(remark)
    return "\n".join(lines)


def _progress(status: Mapping[str, Any]) -> str:
    words = [f"program: {status.get('state')}"]
    if status.get("step") is not None:
        words.append(f"step {int(status['step']):,}")
    if status.get("loss") is not None:
        words.append(f"loss {float(status['loss']):.4f}")
    elif status.get("loss_text"):
        words.append(f"loss {status['loss_text']}")
    pace = status.get("steps_per_second")
    if pace:
        slow = float(pace) < 1
        words.append(f"{1 / float(pace):.3g} s per step" if slow else f"{float(pace):.3g} steps/s")
    return ", ".join(words)


def _snapshots(snapshots: list[Mapping[str, Any]], now: datetime) -> str:
    if not snapshots:
        return "no snapshot yet"
    newest, *older = sorted(snapshots, key=lambda item: -int(item.get("number") or 0))
    since = age(newest.get("at"), now)
    text = f"newest snapshot: {newest.get('number')}"
    if (chosen := newest.get("chosen")) is not None:
        text += f" (a copy of {chosen})" if chosen else " (empty, to start over)"
    text += "" if since is None else f", {since} ago"
    text += f", {counted(int(newest.get('files') or 0), 'file')}"
    text += f", {human(int(newest.get('bytes') or 0))}"
    shown = []
    for item in older[:_MAX_SHOWN]:
        since = age(item.get("at"), now)
        shown.append(f"{item.get('number')}" + ("" if since is None else f" ({since} ago)"))
    more = len(older) - len(shown)
    text += f"; older: {', '.join(shown)}" if shown else ""
    return text + (f" and {more} more" if more else "")


def _staleness(status: Mapping[str, Any], submitted_at_ms: int | None, now: datetime) -> str | None:
    """Describe a status that is old or from an earlier job; None for a current one."""
    at = parse_time(status.get("updated_at"))
    if at is None:
        return None
    if submitted_at_ms is not None and at.timestamp() * 1000 < submitted_at_ms:
        return "this is from an earlier job of the run; the current job has not reported yet"
    age_s = (now - at).total_seconds()
    if status.get("state") == "running" and age_s > _OLD_S:
        return f"as of {duration(age_s)} ago"
    return None
