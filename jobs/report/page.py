"""A report as one self-contained HTML page, without external scripts, fonts, styles or images.

Names, reasons and log lines come from programs and from the bucket: everything is escaped, and the
page's content security policy blocks scripts and all external resources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template

from jobs.job import JobKind
from jobs.output.console import timestamp
from jobs.report import figures
from jobs.report.curves import parse_timestamp
from jobs.report.document import ReportDocument, ReportedAttempt
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.wording import counted

_TEMPLATE = Path(__file__).with_name("page.html")
_WIDTH, _HEIGHT = 1000, 240
"""Coordinates of a chart, which is stretched to the available space."""
_TICKS = 5
_GAP = 0.08
"""Longest idle gap shown on the timeline, as a fraction of the busy time."""
_CLASSES = {"started": "time", "complete": "time", "end": "time", "reason": "reason",
            "failure": "reason"}  # fmt: skip
"""CSS classes of table cells, by heading."""
_MAX_ROWS = 500
"""Maximum number of checkpoints and attempts shown; the rest are only in `--json`."""


def page(document: ReportDocument) -> str:
    """Render the page."""
    parts = [
        _head(document),
        _tiles(document),
        _timeline(document),
        _charts(document),
        _spent(document),
        _attempts(document),
        _checkpoints(document),
        _cost(document),
        _unknown(document),
        f"<footer>Created {figures.time(document.made_at)} by <code>python -m jobs report "
        f"{escape(document.run)}</code>. Times are local to the machine that created it.</footer>",
    ]
    title = escape(f"{document.run}: {document.state}")
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute(title=title, body="\n".join(part for part in parts if part))


def _head(document: ReportDocument) -> str:
    began = f"submitted {figures.time(document.began_at)}" if document.began_at else "time unknown"
    ended = f", ended {figures.time(document.ended_at)}" if document.ended_at else ""
    where = f"deployment {document.deployment}, {document.region}"
    return (
        f'<h1>{escape(document.run)} <span class="state {document.state}">{document.state}</span>'
        f'</h1><p class="soft">{escape(document.workload or "unknown workload")} &middot; '
        f"{escape(where)} &middot; {began}{ended}</p>"
    )


def _tiles(document: ReportDocument) -> str:
    least, size = figures.at_least(document).strip(), figures.attempt_count(document)
    tiles: list[tuple[str, str, str]] = []
    if document.steps is not None:
        of = f"of {document.max_steps:,}, " if document.max_steps else ""
        repeated = f"{of}{figures.repeated_steps(document)} repeated"
        tiles.append(("Steps", f"{document.steps:,}", repeated))
        if document.last_loss is not None:
            held_out = document.last_validation
            more = "" if held_out is None else f"validation {figures.loss(held_out.loss)}"
            tiles.append(("Loss", figures.loss(document.last_loss), more))
        pace = (
            "" if document.steps_per_second is None else f"{document.steps_per_second:.3g} steps/s"
        )
        mfu = "" if document.mfu is None else f", MFU {document.mfu:.1%}"
        if document.tokens_per_second is not None:
            speed = f"{document.tokens_per_second:,.0f}"
            tiles.append(("Tokens per second", speed, f"{pace}{mfu}"))
        elif pace:
            tiles.append(("Speed", pace, ""))
        goodput = "unknown" if document.goodput is None else f"{document.goodput:.1%}"
        tiles.append(("Goodput", goodput, "of paid time spent on steps that count"))
    hours = f"{figures.node_hours(document)} h"
    tiles.append(("Paid node-hours", hours, f"{least}, {size}" if least else size))
    note = f"{least}; an estimate" if least else "an estimate"
    tiles.append(("Cost", figures.usd(document.usd), note))
    if document.usd_per_million_tokens is not None:
        cost = figures.usd(document.usd_per_million_tokens)
        tiles.append(("Cost per million tokens", cost, f"{document.tokens or 0:,} tokens"))
    return '<dl class="tiles">' + "".join(
        f'<div class="tile"><dt>{name}</dt><dd class="figure">{escape(figure)}</dd>'
        f'<dd class="detail">{escape(detail)}</dd></div>'
        for name, figure, detail in tiles
    ) + "</dl>"  # fmt: skip


class _TimeScale:
    """Maps times to positions from 0 to 100, with long idle gaps shortened."""

    def __init__(self, attempts: Sequence[ReportedAttempt]) -> None:
        spans = sorted(_span(attempt) for attempt in attempts)
        first = min(
            parse_timestamp(attempt.waited_since) or _span(attempt)[0] for attempt in attempts
        )
        busy: list[tuple[float, float]] = []
        for start, end in spans:
            if busy and start <= busy[-1][1]:
                busy[-1] = (busy[-1][0], max(busy[-1][1], end))
            else:
                busy.append((start, end))
        max_gap = max(1.0, _GAP * sum(end - start for start, end in busy))
        self._points = [(first, 0.0)]
        """Times and their positions, not yet scaled to 100."""
        self.is_shortened = False
        for start, end in busy:
            before, at = self._points[-1]
            self.is_shortened = self.is_shortened or start - before > max_gap
            self._points.append((start, at + min(start - before, max_gap)))
            self._points.append((end, self._points[-1][1] + end - start))
        self._total = self._points[-1][1] or 1.0

    def at(self, seconds: float) -> float:
        """Return the position of a time."""
        for (before, low), (after, high) in pairwise(self._points):
            if seconds <= after:
                part = (seconds - before) / (after - before) if after > before else 0.0
                return 100 * (low + max(0.0, part) * (high - low)) / self._total
        return 100.0


def _span(attempt: ReportedAttempt) -> tuple[float, float]:
    start = parse_timestamp(attempt.started_at) or 0.0
    return start, start + figures.attempt_seconds(attempt)


def _timeline(document: ReportDocument) -> str:
    if not document.attempts:
        waits = "".join(
            f"<p>Job {escape(job.job_id)}: {escape(job.status or 'no known attempts')}"
            f"{escape(f', {job.status_reason}' if job.status_reason else '')}</p>"
            for job in document.jobs
        )
        return _section("Timeline", waits or "<p>No known attempts.</p>")
    scale = _TimeScale(document.attempts)
    shown = document.attempts[:_MAX_ROWS]
    rows = "".join(_timeline_row(document, attempt, scale) for attempt in shown)
    first = min((a.waited_since or a.started_at for a in document.attempts), key=_seconds)
    last = max(document.attempts, key=lambda attempt: _span(attempt)[1])
    end = timestamp(round(_span(last)[1] * 1000))
    shortened = " (long waits are shortened)" if scale.is_shortened else ""
    colors = [("wait", "waiting"), ("starting", "starting")]
    colors += [("steps", "running" if document.steps is None else "training")]
    if any(item.at for item in document.checkpoints):
        colors += [("saved", "checkpoint complete")]
    colors += [("repeated", "node lost")] if any(a.lost for a in document.attempts) else []
    clock = "".join(f"<span>{text}</span>" for text in (figures.time(first), shortened, end))
    clock = f'<div class="clock">{clock}</div>'
    return _section("Timeline", f"{rows}{clock}{_legend(colors)}")


def _timeline_row(document: ReportDocument, attempt: ReportedAttempt, scale: _TimeScale) -> str:
    start, end = _span(attempt)
    began = attempt.joined_at if document.steps is None else attempt.trained_at
    working = min(max(start, parse_timestamp(began) or end), end)
    waited = parse_timestamp(attempt.waited_since)
    bars = [] if waited is None else [("wait", waited, start)]
    bars += [("starting", start, working), ("steps", working, end)]
    drawn = "".join(
        f'<span class="bar {kind}" style="left:{scale.at(begin):.2f}%;'
        f'width:{scale.at(until) - scale.at(begin):.2f}%"></span>'
        for kind, begin, until in bars
        if until > begin
    )
    saved = [parse_timestamp(item.at) for item in document.checkpoints]
    marks = [("saved", at) for at in saved if at is not None and start <= at <= end]
    marks += [("lost", at) for loss in attempt.lost if (at := parse_timestamp(loss.at)) is not None]
    drawn += "".join(
        f'<span class="mark {kind}" style="left:{scale.at(at):.2f}%"></span>' for kind, at in marks
    )
    name = figures.attempt_name(document, attempt).capitalize()
    nodes = counted(attempt.num_nodes, "node")
    ending, reason = figures.ending(attempt), figures.reason(attempt)
    is_bad = attempt.code not in (None, ExitCode.OK, ExitCode.STOPPED)
    color = "failed-word" if is_bad else "good-word" if attempt.code == 0 else "soft"
    length = figures.length(figures.attempt_seconds(attempt))
    note = f'<div class="soft">{escape(reason)}</div>' if attempt.code and reason else ""
    return (
        f'<div class="attempt"><div class="words"><span><strong>{name}</strong>'
        f" on {nodes}, {length}</span>"
        f'<span class="{color}">{escape(ending)}</span></div>'
        f'<div class="track" aria-hidden="true">{drawn}</div>{note}</div>'
    )


def _charts(document: ReportDocument) -> str:
    resumed = [a.from_step for a in document.attempts if a.from_step]
    losses = [(point.step, point.loss) for point in document.curve if point.loss is not None]
    held_out = [(point.step, point.loss) for point in document.validation]
    speeds = [(p.step, p.tokens_per_second) for p in document.curve if p.tokens_per_second]
    unit = "tokens per second"
    if not speeds:
        speeds = [(p.step, p.steps_per_second) for p in document.curve if p.steps_per_second]
        unit = "steps per second"
    name = "Loss and validation loss by step" if held_out else "Loss by step"
    return _chart(name, losses, resumed, dots=held_out) + _chart(
        f"Speed by step, in {unit}", speeds, resumed, from_zero=True
    )


def _chart(
    name: str,
    points: Sequence[tuple[int, float]],
    resumed: Sequence[int],
    *,
    dots: Sequence[tuple[int, float]] = (),
    from_zero: bool = False,
) -> str:
    """Draw a curve by step, with lines where attempts resumed; "" for fewer than two points."""
    if len(points) < 2:
        return ""
    values = [value for _, value in (*points, *dots)]
    ticks = _ticks(0.0 if from_zero else min(values), max(values))
    (low, *_, high), first = ticks, points[0][0]
    last = max(points[-1][0], first + 1)

    def place(step: float, value: float) -> str:
        across = _WIDTH * min(1.0, max(0.0, (step - first) / (last - first)))
        return f"{across:.1f} {_HEIGHT * (high - value) / (high - low):.1f}"

    lines = "".join(f'<path class="grid" d="M{place(first, y)}H{_WIDTH}"/>' for y in ticks)
    lines += "".join(
        f'<path class="resume" d="M{place(step, high)}V{_HEIGHT}"/>'
        for step in resumed
        if first <= step <= last
    )
    curve = "L".join(place(step, value) for step, value in points)
    lines += f'<path class="curve" d="M{curve}"/>'
    if dots:
        spots = "".join(f"M{place(step, value)}h0" for step, value in dots)
        lines += f'<path class="dots" d="{spots}"/>'
    y_labels = "".join(f"<span>{_figure(value)}</span>" for value in reversed(ticks))
    x_labels = "".join(
        f'<span style="left:{100 * (step - first) / (last - first):.2f}%">{_figure(step)}</span>'
        for step in _ticks(first, last)
        if first <= step <= last
    )
    label = (
        f"{name}: {_figure(points[0][1])} at step {points[0][0]:,}, "
        f"{_figure(points[-1][1])} at step {points[-1][0]:,}"
    )
    colors = [("steps", "loss"), ("validation", "validation loss")] if dots else []
    colors += [("repeated", "an attempt resumed")] if resumed else []
    return _section(
        name,
        f'<div class="chart"><div class="up" aria-hidden="true">{y_labels}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{lines}</svg>'
        f'<div class="along" aria-hidden="true">{x_labels}</div></div>{_legend(colors)}',
    )


def _ticks(low: float, high: float) -> list[float]:
    """Choose evenly spaced round numbers that enclose the values."""
    spacing = (high - low or abs(high) or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(spacing))
    spacing = next(size * power for size in (1, 2, 5, 10) if size * power >= 0.999 * spacing)
    first = math.floor(low / spacing)
    last = max(math.ceil(high / spacing), first + 1)
    return [spacing * number for number in range(first, last + 1)]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _spent(document: ReportDocument) -> str:
    parts = [part for part in document.spent if part.node_seconds > 0]
    total = sum(part.node_seconds for part in parts)
    if not total:
        return ""
    stack = "".join(
        f'<span class="{part.on}" style="width:{100 * part.node_seconds / total:.2f}%"></span>'
        for part in parts
    )
    rows = [
        (
            figures.SPENT[part.on],
            figures.length(part.node_seconds),
            f"{part.node_seconds / total:.1%}",
        )
        for part in parts
    ]
    content = figures.TextTable.of(("paid time spent on", "node-time", "share"), rows)
    table = _table(figures.GOODPUT, content, swatches=[part.on for part in parts])
    return _section("Goodput", f'<div class="stack" aria-hidden="true">{stack}</div><br>{table}')


def _attempts(document: ReportDocument) -> str:
    if not document.attempts:
        return ""
    part = JobKind.ARRAY if figures.is_of_array(document) else JobKind.NODES
    ids = ", ".join(
        f"{number}: {job.job_id}"
        + (f" on {job.orchestrator}" if job.orchestrator else "")
        + (f", {part.sized(job.num_nodes)}" if job.num_nodes else "")
        for number, job in enumerate(document.jobs, start=1)
    )
    caption = f"Jobs: {ids}" if ids else "The jobs are no longer known."
    return _section("Attempts", _table(caption, figures.attempts_table(document)))


def _checkpoints(document: ReportDocument) -> str:
    if not document.checkpoints:
        return ""
    hidden = len(document.checkpoints) - _MAX_ROWS
    caption = "Time that training paused for each one; the rest of a save overlaps with training."
    if document.checkpoints[0].number is not None:
        caption = "Retained snapshots; they are taken while the program runs."
    if hidden > 0:
        caption += f" {counted(hidden, 'earlier one')} not shown."
    shown = document.checkpoints[-_MAX_ROWS:]
    return _section("Checkpoints", _table(caption, figures.checkpoints_table(shown)))


def _cost(document: ReportDocument) -> str:
    total = f"{figures.at_least(document)}{figures.usd(document.usd)}"
    total = f"{total[0].upper()}{total[1:]}"
    return _section("Cost", f"<p>{total}. {escape(figures.cost_note(document))}.</p>")


def _unknown(document: ReportDocument) -> str:
    if not document.unknown:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in document.unknown)
    return _section("About these figures", f"<ul>{items}</ul>")


def _section(name: str, content: str) -> str:
    return f"<section><h2>{name}</h2>{content}</section>"


def _table(caption: str, content: figures.TextTable, *, swatches: Sequence[str] = ()) -> str:
    """Render a table; a row's first cell is its heading, optionally with a color swatch."""
    classes = [
        ' class="number"' if name in figures.NUMBERS else f' class="{_CLASSES.get(name, "")}"'
        for name in content.headings
    ]
    top = "".join(
        f'<th scope="col"{kind}>{name}</th>'
        for name, kind in zip(content.headings, classes, strict=True)
    )
    body = ""
    for index, (head, *cells) in enumerate(content.rows[:_MAX_ROWS]):
        swatch = f'<span class="swatch {swatches[index]}"></span>' if swatches else ""
        body += f'<tr><th scope="row">{swatch}{escape(head)}</th>' + "".join(
            f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(cells, classes[1:], strict=True)
        )
        body += "</tr>"
    return (
        f'<div class="wide" tabindex="0"><table><caption><div>{escape(caption)}</div></caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _legend(colors: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><span class="swatch {kind}"></span>{name}</li>' for kind, name in colors)
    return f'<ul class="legend">{items}</ul>' if items else ""


def _seconds(text: str) -> float:
    return parse_timestamp(text) or 0.0
