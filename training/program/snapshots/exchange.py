"""The thread that talks: to the main node, or on that one to all, and to the run's status."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal

from training.core.failures import describe
from training.program.reports import LOSSES_FILE, UNKEPT_FILE, OutputReport
from training.program.snapshots.barrier import Digests, Messages
from training.program.snapshots.coordinator import Coordinator, Patience
from training.program.snapshots.folder import look
from training.program.snapshots.manifest import JobSnapshot, SnapshotSummary, clock_text
from training.program.snapshots.process import FinalOrder, SnapshotSettings, open_snapshots
from training.program.snapshots.restore import too_large
from training.program.snapshots.uploader import Complaints, RefusalTimer, Uploader
from training.storage import (
    ObjectMissing,
    Objects,
    PreconditionFailed,
    StorageError,
    StorageRefused,
)
from training.storage.results import now_utc
from training.storage.run_lock import RunLost, check_holder
from trainium_catalogue.contract import PROGRAM_LOSSES, RUN_STATUS, run_key
from trainium_catalogue.documents import OPTIONAL, Keywords, Timestamp, as_document
from trainium_catalogue.typed_json import read_json

_TURN_S = 5.0
_HURRIED_TURN_S = 0.25
_UNTIL_S = 10.0
_STATUS_S = 5.0
_LAST_WORD_S = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatus:
    """The state of a user's own program, which the main node writes every few seconds."""

    kind: Literal["program"] = "program"
    state: Annotated[str, Keywords(enum=["running", "ended"])]
    last_line: str | None
    """Of its output."""
    last_line_at: Timestamp | None
    step: int | None
    """Null where no line names it."""
    loss: float | None
    """Null where no line names it, or it is not finite."""
    loss_text: Annotated[str | None, Keywords(enum=["nan", "inf", "-inf"])] = field(
        default=None, metadata=OPTIONAL
    )
    """The loss where it is not finite."""
    steps_per_second: float | None
    snapshots: tuple[SnapshotSummary, ...]
    unkept: str | None = field(default=None, metadata=OPTIONAL)
    """What the main node's program has written that is not kept, if anything."""
    updated_at: Timestamp


class Exchange:
    """Talks every few seconds, and more often at the end.

    Its public attributes are written by its own thread only, whole values at a time.
    """

    def __init__(
        self,
        settings: SnapshotSettings,
        bucket: Objects,
        messages: Messages,
        uploader: Uploader,
        complaints: Complaints,
    ) -> None:
        self._settings, self._bucket = settings, bucket
        self._objects = open_snapshots(bucket, settings.run)
        self._messages, self._uploader, self._complaints = messages, uploader, complaints
        self._coordinator: Coordinator | None = None
        if settings.is_main:
            self._coordinator = Coordinator(
                self._objects,
                messages,
                num_nodes=settings.num_nodes,
                main=settings.main,
                keep=settings.keep,
                confirm=self._confirm,
            )
        self._turn_s = min(_TURN_S, settings.every_s / 4)
        self._is_open = self._warned_of_size = False
        self._told_until: dict[str, float] = {}
        self._told_until_s = self._status_written_s = float("-inf")
        self._patience = Patience(settings.every_s)
        self._missing = self._losses = b""
        self._statuses: tuple[bytes, ...] = ()
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        place = f"{PROGRAM_LOSSES}{began}-attempt-{settings.attempt}.jsonl"
        self._losses_key = run_key(settings.run, place)
        self.lost: frozenset[str] = frozenset()
        """Contents that this node has listed and the bucket has lost; another object when more
        are."""
        self.refusal = RefusalTimer()
        self.ended: str | None = None
        """Empty once the last snapshot is complete, or the reason why it cannot be."""
        self.snapshots: tuple[SnapshotSummary, ...] = ()
        """The complete snapshots, oldest first; known on the main node only."""
        self.news = 0
        """Raised whenever another node tells something."""
        self.waits_for = ""
        """What the last snapshot waits for."""
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """The end has come."""
        self._turn_s = _HURRIED_TURN_S
        self._wake.set()

    @property
    def newest_text(self) -> str:
        """Time of the newest complete snapshot."""
        newest = self.snapshots[-1] if self.snapshots else None
        return clock_text(newest.at) if newest else "the beginning"

    @property
    def newest_stays(self) -> str:
        """What another attempt continues from."""
        if not self._settings.is_main:
            return "the one before it stays"
        return f"the one of {self.newest_text} stays" if self.snapshots else "there is none before"

    def end(self, order: FinalOrder) -> None:
        """Say the last word about the run's status; waits no longer than the order allows."""
        self._stopped.set()
        self._wake.set()
        now_s = time.monotonic()
        until_s = now_s + _LAST_WORD_S if order.until_s is None else order.until_s + 1.0
        self._thread.join(max(0.0, until_s - now_s))

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.refusal.note(self._refused(self._turn))
            self._wake.wait(self._turn_s)
            self._wake.clear()
        if self._settings.is_main:
            self._refused(lambda: self._write_status("ended"))

    def _refused(self, action: Callable[[], object]) -> str:
        """Do something; returns the reason if the bucket refuses it."""
        try:
            action()
        except RunLost as error:
            self._complaints.say("alone", str(error))
            return str(error)
        except (StorageError, OSError) as error:
            self._complaints.say("bucket", f"the bucket does not answer: {error}")
            return str(error) if isinstance(error, StorageRefused) else ""
        except Exception as error:
            log.exception("snapshots: none is completed: %s", describe(error))
        return ""

    def _confirm(self) -> None:
        """Raise ``RunLost`` once another job holds the run's name."""
        settings = self._settings
        check_holder(self._objects, settings.job_id, settings.attempt, run=settings.run)

    def _turn(self) -> None:
        if self._coordinator is None:
            self._tell_main()
        else:
            self._coordinate(self._coordinator)
        self._look_for_missing()

    def _tell_main(self) -> None:
        """Renew the times up to which this node's listings hold."""
        listing = self._uploader.listing
        if listing is None:
            return
        if listing.final:
            self.ended = listing.missing
            return
        now_s = time.monotonic()
        told = {listing.name: listing.until for listing in self._uploader.history}
        if now_s - self._told_until_s < min(_UNTIL_S, self._settings.every_s / 2):
            return
        if told != self._told_until:
            key = self._messages.until(self._settings.node)
            self._objects.put(key, json.dumps(told).encode())
            self._told_until, self._told_until_s = told, now_s

    def _coordinate(self, coordinator: Coordinator) -> None:
        """Make complete snapshots of what all nodes have listed."""
        if not self._is_open:
            coordinator.open()
            self._is_open = True
        if time.monotonic() - self._status_written_s >= _STATUS_S:
            # A status that cannot be written costs no snapshot.
            self._refused(lambda: self._write_status("running"))
        made = coordinator.gather(self._uploader.history)
        self.news = coordinator.news
        self._complain_of_waiting(coordinator, made is not None or coordinator.is_gathered)
        not_final = coordinator.not_final
        others = [str(node) for node in not_final if node != self._settings.node]
        self.waits_for = f"waits for node {', '.join(others)}" if others else ""
        self.snapshots = tuple(snapshot.summary for snapshot in coordinator.snapshots)
        if made is not None:
            self._warn_of_size(made)
            # What cannot be cleared away costs money, but no snapshot.
            self._refused(lambda: coordinator.prune(at_end=not not_final))
            self.snapshots = tuple(snapshot.summary for snapshot in coordinator.snapshots)
        if not_final:
            return
        if coordinator.refusals:
            self.ended = "; ".join(coordinator.refusals)
        elif coordinator.is_gathered:
            self._refused(coordinator.close)
            self.ended = ""

    def _warn_of_size(self, made: JobSnapshot) -> None:
        """Say once that the files of all nodes do not fit on one of them."""
        if self._warned_of_size:
            return
        folder = self._settings.checkpoints
        held = sum(seen.size for seen in look(folder).values())
        room = shutil.disk_usage(folder).free + held
        if text := too_large(made, self._settings.node, room):
            self._warned_of_size = True
            log.info("snapshots: %s", text)

    def _complain_of_waiting(self, coordinator: Coordinator, moves: bool) -> None:
        """Say for which node snapshots wait, if they do for long."""
        waits = coordinator.has_listings and not moves
        if waited_s := self._patience.waited_s(time.monotonic(), waits=waits):
            nodes = ", ".join(map(str, coordinator.waits_for))
            self._complaints.say(
                "waiting",
                f"no snapshot of all nodes since {self.newest_text}, for {waited_s:.0f} s: it "
                f"waits for node {nodes}, which still sends its files, writes all the time or "
                "does not answer",
            )

    def _look_for_missing(self) -> None:
        """Notice what the bucket has lost, to have it sent again."""
        listing = self._uploader.listing
        if listing is None:
            return
        try:
            data = self._objects.get(self._messages.missing)
        except ObjectMissing:
            return
        if data != self._missing:
            self._missing = data
            own = {entry.sha256 for entry in listing.entries}
            if lost := own.intersection(read_json(data, Digests).digests):
                self.lost = frozenset(lost)

    def _write_status(self, state: str) -> None:
        """Write the run's status, with what is known of the program's output."""
        output = OutputReport.read(self._settings.scratch)
        at = output.last_line_at
        loss = output.loss
        is_number = loss is not None and math.isfinite(loss)
        status = ProgramStatus(
            state=state,
            last_line=output.last_line or None,
            last_line_at=datetime.fromtimestamp(at, UTC).isoformat() if at else None,
            step=output.step,
            loss=loss if is_number else None,
            loss_text=None if loss is None or is_number else str(loss),
            steps_per_second=output.steps_per_second,
            snapshots=self.snapshots,
            unkept=self._unkept(),
            updated_at=now_utc(),
        )
        self._put_status(json.dumps(as_document(status), indent=2).encode() + b"\n")
        self._write_losses()
        self._status_written_s = time.monotonic()

    def _unkept(self) -> str | None:
        """What the launcher of this node has told of files outside the kept folder."""
        try:
            return (self._settings.scratch / UNKEPT_FILE).read_text()
        except FileNotFoundError:
            return None

    def _put_status(self, data: bytes) -> None:
        """Replace the status, unless a job that started later has written it since.

        This one may have been frozen and replaced. It knows its own documents, the last of which
        may be there although the request failed.
        """
        key = run_key(self._settings.run, RUN_STATUS)
        while True:
            try:
                found, etag = self._bucket.get_with_etag(key)
            except ObjectMissing:
                found, etag = b"", None
            if found and self._statuses and found not in self._statuses:
                raise RunLost(
                    f"another job writes {self._bucket.uri}/{key}; stop one of the two, or give "
                    "each its own --name"
                )
            self._statuses = (found, data)
            try:
                self._bucket.put(key, data, if_absent=etag is None, if_match=etag)
                return
            except PreconditionFailed:
                continue

    def _write_losses(self) -> None:
        """Write the losses of this attempt, from which `status --plot` draws a curve."""
        with contextlib.suppress(FileNotFoundError):
            losses = (self._settings.scratch / LOSSES_FILE).read_bytes()
            if losses != self._losses:
                self._bucket.put(self._losses_key, losses)
                self._losses = losses
