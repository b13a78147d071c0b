"""The receipt of a destroyed deployment: actions, remaining resources, and their cost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.table import Table

from jobs.deployment import DeploymentFields
from jobs.errors import Refusal
from jobs.job import JobStatus
from jobs.teardown.remains import RemainingResource, UncheckedKind, is_being_deleted
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Amount, Keywords, Natural, Timestamp, as_document
from trainium_catalogue.prices import PRICES_OF
from trainium_catalogue.typed_json import read_object, typed
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from jobs.output.terminal import Terminal

RETAINED = "retained on request (retain_data)"
DownOutcome = Literal["planned", "interrupted", "empty", "left", "unproven"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToEnd:
    """A job that is unfinished when the deployment is destroyed."""

    run: str
    job_id: str
    orchestrator: Orchestrator
    status: JobStatus
    unsaved: str | None
    """Progress since it last saved, before it was stopped; null if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptiedBucket:
    """A bucket that was emptied to be deleted with its stack."""

    bucket: str
    versions: Natural
    """Number of deleted object versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierDown:
    """An earlier command in the same receipt."""

    region: str
    outcome: Annotated[str, Keywords(enum=["interrupted", "empty", "left", "unproven"])]
    began_at: Timestamp
    ended_at: Timestamp
    stacks: tuple[str, ...]
    emptied: tuple[EmptiedBucket, ...]


@dataclass(frozen=True, kw_only=True)
class DownDocument(DeploymentFields):
    """Actions of `jobs down`, and what is left of the deployment."""

    outcome: DownOutcome
    """empty: nothing is left except retained resources; unproven: nothing was found, but some
    searches were not possible; planned: with --dry-run."""
    phase: str
    """Last phase."""
    began_at: Timestamp
    ended_at: Timestamp
    jobs: tuple[JobToEnd, ...]
    stacks: tuple[str, ...]
    """Stacks at the start, in order of deletion."""
    emptied: tuple[EmptiedBucket, ...]
    kept: tuple[RemainingResource, ...]
    """Resources retained by the deployed templates (retain_data)."""
    left: tuple[RemainingResource, ...]
    """Leftovers: neither retained on request nor deleted."""
    going: tuple[RemainingResource, ...]
    """Resources that AWS is deleting, at no cost."""
    unchecked: tuple[UncheckedKind, ...]
    kept_usd_per_month: Amount
    left_usd_per_month: Amount
    prices_of: str
    """Month of the list prices (us-east-1) behind the estimates."""
    earlier: tuple[EarlierDown, ...]
    """Earlier commands of this receipt, oldest first, without dry runs."""


def split(
    found: Iterable[RemainingResource], kept: Iterable[str]
) -> tuple[tuple[RemainingResource, ...], ...]:
    """Split remaining resources into retained ones, leftovers, and those AWS is deleting."""
    names = set(kept)
    stay: list[RemainingResource] = []
    left: list[RemainingResource] = []
    going: list[RemainingResource] = []
    for item in found:
        if item.id in names:
            stay.append(replace(item, why=RETAINED))
        else:
            (going if is_being_deleted(item.state) else left).append(item)
    return tuple(stay), tuple(left), tuple(going)


def total(items: Iterable[RemainingResource]) -> float:
    """Return the sum of the known costs."""
    return round(sum(item.usd_per_month or 0.0 for item in items), 2)


def check_path(path: Path) -> None:
    """Refuse a receipt that could not be written, before anything is changed."""
    if path.suffix.lower() == ".txt":
        raise Refusal(
            "not-a-receipt",
            f"receipt {path}: the suffix .txt is reserved for its table; specify "
            f"another name, such as {path.with_suffix('.json')}",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_writable(path)
    _check_writable(path.with_suffix(".txt"))


def read_earlier(path: Path, deployment: str) -> tuple[EarlierDown, ...]:
    """Read the earlier commands of a receipt; refuse any other file."""
    try:
        document = read_object(path.read_bytes())
        if document.get("deployment") != deployment:
            raise ValueError(f"it belongs to deployment {document.get('deployment')!r}")
        earlier = typed(document, _Receipt).earlier
        if document.get("outcome") == "planned":
            return earlier
        return (*earlier, typed(document, EarlierDown))
    except FileNotFoundError:
        return ()
    except ValueError as error:
        raise Refusal(
            "not-a-receipt",
            f"{path} exists and is not a receipt of deployment {deployment!r} ({error}); pass "
            "another path with --receipt",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Receipt:
    earlier: tuple[EarlierDown, ...] = ()


def _check_writable(path: Path) -> None:
    existed = path.exists()
    path.open("a").close()
    if not existed:
        path.unlink()


def write_receipt(path: Path, document: DownDocument) -> None:
    """Write the receipt as JSON, and its table as .txt next to it."""
    from jobs.output.terminal import Terminal

    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2, default=as_document)
    path.write_text(f"{text}\n", encoding="utf-8")
    with path.with_suffix(".txt").open("w", encoding="utf-8") as file:
        show(document, Terminal(file=file, width=160))


def show(document: DownDocument, console: Terminal) -> None:
    """Print the table of remaining resources, and the outcome."""
    rows = [
        *(("retained", item) for item in document.kept),
        *(("left", item) for item in document.left),
        *(("being deleted", item) for item in document.going),
    ]
    if rows:
        table = Table()
        for heading in ("result", "service", "kind", "id", "state", "reason", "USD/month"):
            is_price = heading == "USD/month"
            table.add_column(heading, overflow="fold", justify="right" if is_price else "left")
        for what, item in rows:
            usd = "?" if item.usd_per_month is None else f"{item.usd_per_month:,.2f}"
            why = f"{item.why} (by {item.seen_by})"
            table.add_row(what, item.service, item.kind, item.id, item.state or "", why, usd)
        console.print(table)
    for run in document.earlier:
        versions = ", ".join(f"{it.versions} of bucket {it.bucket}" for it in run.emptied)
        console.print(
            f"earlier, {run.began_at}: {run.outcome}, {counted(len(run.stacks), 'stack')}; deleted "
            f"object versions: {versions or 'none'}",
            soft_wrap=True,
        )
    for missing in document.unchecked:
        console.print(
            f"not checked: {missing.service} {missing.kind} "
            f"({missing.permission}: {missing.reason})",
            soft_wrap=True,
        )
    if document.outcome == "interrupted":
        verdict = f"interrupted ({document.phase}): run the same command again to finish"
    elif document.outcome == "planned":
        verdict = "nothing was changed"
    elif document.left:
        pronoun = "it" if len(document.left) == 1 else "them"
        verdict = (
            f"{counted(len(document.left), 'resource')} left over, about "
            f"${document.left_usd_per_month:,.2f} per month; delete {pronoun}, then run this again"
        )
    elif document.unchecked:
        verdict = "no leftovers were found; request the permissions above to check everything"
    else:
        verdict = "nothing is left except what you asked to retain"
    kept = f"; retained resources cost about ${document.kept_usd_per_month:,.2f} per month"
    note = f" (estimates, list prices of {PRICES_OF})" if rows else ""
    console.print(f"{verdict}{kept if document.kept else ''}{note}", soft_wrap=True)
