"""The receipt of a destroyed deployment: what was done, what stays, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table

from jobs.deployment import OfDeployment
from jobs.errors import Refusal
from jobs.job import JobStatus
from jobs.teardown.remains import RemainingResource, UncheckedKind, goes_by_itself
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Amount, Natural, Timestamp, as_document
from trainium_catalogue.prices import PRICES_OF

if TYPE_CHECKING:
    from jobs.output.terminal import Terminal

ASKED_TO_STAY = "asked to stay (retain_data)"
DownOutcome = Literal["planned", "interrupted", "empty", "left", "unproven"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToEnd:
    """A job that has not ended when the deployment goes."""

    run: str
    job_id: str
    orchestrator: Orchestrator
    status: JobStatus
    unsaved: str | None
    """What it has made since it last saved, before it was stopped; null if nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptiedBucket:
    """A bucket that goes with its stack."""

    bucket: str
    versions: Natural
    """Versions of objects that were deleted."""


@dataclass(frozen=True, kw_only=True)
class DownDocument(OfDeployment):
    """What `jobs down` did, and what is left of the deployment."""

    outcome: DownOutcome
    """empty: nothing is left but what was asked to stay; unproven: neither is anything, as far as
    could be looked; planned: of --dry-run."""
    phase: str
    """What it did last."""
    began_at: Timestamp
    ended_at: Timestamp
    jobs: tuple[JobToEnd, ...]
    stacks: tuple[str, ...]
    """Stacks that were there, first to go first."""
    emptied: tuple[EmptiedBucket, ...]
    kept: tuple[RemainingResource, ...]
    """Asked to stay by the deployed templates (retain_data)."""
    left: tuple[RemainingResource, ...]
    """Neither asked to stay nor deleted."""
    going: tuple[RemainingResource, ...]
    """Being deleted by AWS, at no price."""
    unchecked: tuple[UncheckedKind, ...]
    kept_usd_per_month: Amount
    left_usd_per_month: Amount
    prices_of: str
    """Month of the list prices (us-east-1) that the estimates use."""


def sorted_out(
    found: Iterable[RemainingResource], kept: Iterable[str]
) -> tuple[tuple[RemainingResource, ...], ...]:
    """Split what was found into what was asked to stay, what is left, and what AWS deletes."""
    names = set(kept)
    stay: list[RemainingResource] = []
    left: list[RemainingResource] = []
    going: list[RemainingResource] = []
    for item in found:
        if item.id in names:
            stay.append(replace(item, why=ASKED_TO_STAY))
        else:
            (going if goes_by_itself(item.state) else left).append(item)
    return tuple(stay), tuple(left), tuple(going)


def total(items: Iterable[RemainingResource]) -> float:
    """Add up the known prices."""
    return round(sum(item.usd_per_month or 0.0 for item in items), 2)


def check_path(path: Path) -> None:
    """Refuse a receipt that could not be written, while nothing is changed."""
    if path.suffix.lower() == ".txt":
        raise Refusal(
            "not-a-receipt",
            f"receipt {path}: its table goes to the file that ends with .txt; name the receipt "
            f"itself {path.with_suffix('.json')}",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_writable(path)
    _check_writable(path.with_suffix(".txt"))


def _check_writable(path: Path) -> None:
    existed = path.exists()
    path.open("a").close()
    if not existed:
        path.unlink()


def write_receipt(path: Path, document: DownDocument) -> None:
    """Write the receipt: JSON, and the table with the same name and `.txt`."""
    from jobs.output.terminal import Terminal

    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2, default=as_document)
    path.write_text(f"{text}\n", encoding="utf-8")
    with path.with_suffix(".txt").open("w", encoding="utf-8") as file:
        show(document, Terminal(file=file, width=160))


def show(document: DownDocument, console: Terminal) -> None:
    """Print the table of what remains, and the sum."""
    rows = [
        *(("stays", item) for item in document.kept),
        *(("left", item) for item in document.left),
        *(("goes by itself", item) for item in document.going),
    ]
    if rows:
        table = Table()
        for heading in ("what", "service", "kind", "id", "state", "why", "USD a month"):
            is_price = heading == "USD a month"
            table.add_column(heading, overflow="fold", justify="right" if is_price else "left")
        for what, item in rows:
            usd = "?" if item.usd_per_month is None else f"{item.usd_per_month:,.2f}"
            why = f"{item.why} (by {item.seen_by})"
            table.add_row(what, item.service, item.kind, item.id, item.state or "", why, usd)
        console.print(table)
    for missing in document.unchecked:
        console.print(
            f"not looked for: {missing.service} {missing.kind} ({missing.right}: {missing.reason})",
            soft_wrap=True,
        )
    if document.outcome == "interrupted":
        verdict = f"interrupted ({document.phase}): run the same command again to finish"
    elif document.outcome == "planned":
        verdict = "nothing was changed"
    elif document.left:
        verdict = (
            f"{len(document.left)} left over, about "
            f"${document.left_usd_per_month:,.2f} a month; delete them, then run this again"
        )
    elif document.unchecked:
        verdict = "nothing is left as far as could be seen; ask for the rights above to know"
    else:
        verdict = "nothing is left but what was asked to stay"
    kept = f"; what stays costs about ${document.kept_usd_per_month:,.2f} a month"
    note = f" (estimates, list prices of {PRICES_OF})" if rows else ""
    console.print(f"{verdict}{kept if document.kept else ''}{note}", soft_wrap=True)
