"""The thread that exchanges listings with other nodes and writes the run's status."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal

from training.core.failures import describe
from training.program.reports import LOSSES_FILE, UNPERSISTED_FILE, OutputReport
from training.program.snapshots.barrier import Digests
from training.program.snapshots.coordinator import Coordinator
from training.program.snapshots.folder import scan
from training.program.snapshots.mailbox import MISSING, Mailbox, until_name
from training.program.snapshots.manifest import JobSnapshot, SnapshotSummary, clock_text
from training.program.snapshots.process import (
    FinalSnapshotRequest,
    SnapshotSettings,
    open_snapshots,
)
from training.program.snapshots.restore import too_large
from training.program.snapshots.uploader import ProblemTimer, ThrottledLog, Uploader
from training.storage import (
    ObjectMissing,
    Objects,
    PreconditionFailed,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)
from training.storage.results import now_utc
from training.storage.run_lock import RunLost, check_holder
from trainium_catalogue.contract import PROGRAM_LOSSES, RUN_STATUS, run_key
from trainium_catalogue.documents import OPTIONAL, Keywords, Timestamp, as_document
from trainium_catalogue.typed_json import read_json

_INTERVAL_S = 5.0
_FINAL_INTERVAL_S = 0.25
_UNTIL_INTERVAL_S = 10.0
_STATUS_INTERVAL_S = 5.0
_LOSSES_INTERVAL_S = 30.0
_FINAL_STATUS_TIMEOUT_S = 30.0
_WAIT_LIMIT_S = 60.0
"""Minimum time without a common instant of all nodes before the wait is logged."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatus:
    """The state of a user's own program, which the main node writes every few seconds."""

    kind: Literal["program"] = "program"
    state: Annotated[str, Keywords(enum=["running", "ended"])]
    last_line: str | None
    """The last line of its output."""
    last_line_at: Timestamp | None
    step: int | None
    """Null if no line contains it."""
    loss: float | None
    """Null if no line contains it, or it is not finite."""
    loss_text: Annotated[str | None, Keywords(enum=["nan", "inf", "-inf"])] = field(
        default=None, metadata=OPTIONAL
    )
    """The loss, if it is not finite."""
    steps_per_second: float | None
    snapshots: tuple[SnapshotSummary, ...]
    unpersisted: str | None = field(default=None, metadata=OPTIONAL)
    """Files of the main node's program that are not kept, if any."""
    updated_at: Timestamp


class Exchange:
    """Exchanges listings and writes status every few seconds, and more often at the job's end.

    Public attributes are written only by its own thread, atomically.
    """

    def __init__(
        self,
        settings: SnapshotSettings,
        bucket: Objects,
        mailbox: Mailbox,
        uploader: Uploader,
        throttled_log: ThrottledLog,
    ) -> None:
        self._settings, self._bucket = settings, bucket
        self._objects = open_snapshots(bucket, settings.run)
        self._mailbox, self._uploader, self._throttled_log = mailbox, uploader, throttled_log
        self._coordinator: Coordinator | None = None
        if settings.is_main:
            self._coordinator = Coordinator(
                self._objects,
                mailbox,
                num_nodes=settings.num_nodes,
                main=settings.main,
                keep=settings.keep,
                confirm=self._confirm,
            )
        self._interval_s = min(_INTERVAL_S, settings.every_s / 4)
        self._is_open = self._warned_of_size = False
        self._sent_end_times: dict[str, float] = {}
        self._end_times_sent_s = self._status_written_s = float("-inf")
        self._wait = ProblemTimer()
        self._missing = self._losses = b""
        self._losses_written_s = float("-inf")
        self._statuses: set[bytes] = set()
        """Versions of the run's status that this job wrote."""
        self._status_etag: str | None = None
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        place = f"{PROGRAM_LOSSES}{began}-attempt-{settings.attempt}.jsonl"
        self._losses_key = run_key(settings.run, place)
        self.lost: frozenset[str] = frozenset()
        """Contents that this node has listed but the bucket has lost; replaced as more are lost."""
        self.refusal = ProblemTimer()
        self.ended: str | None = None
        """None until the last snapshot has an outcome; then empty, or why it is missing."""
        self.snapshots: tuple[SnapshotSummary, ...] = ()
        """The complete snapshots, oldest first; known on the main node only."""
        self.num_reports = 0
        """Incremented whenever another node reports something."""
        self.waits_for = ""
        """Description of the nodes that the last snapshot waits for."""
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Shorten the interval for the end of the job."""
        self._interval_s = _FINAL_INTERVAL_S
        self._wake.set()

    @property
    def newest_text(self) -> str:
        """Time of the newest complete snapshot."""
        newest = self.snapshots[-1] if self.snapshots else None
        return clock_text(newest.at) if newest else "the beginning"

    @property
    def remaining_text(self) -> str:
        """Description of the snapshot from which the next attempt will resume."""
        if not self._settings.is_main:
            return "the previous one remains"
        return (
            f"the one from {self.newest_text} remains"
            if self.snapshots
            else "there is no earlier one"
        )

    def end(self, request: FinalSnapshotRequest) -> None:
        """Write the run's final status within the time that ``request`` allows."""
        self._stopped.set()
        self._wake.set()
        now_s = time.monotonic()
        until_s = (
            now_s + _FINAL_STATUS_TIMEOUT_S if request.until_s is None else request.until_s + 1.0
        )
        self._thread.join(max(0.0, until_s - now_s))

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.refusal.note(self._catch_refusal(self._exchange_once))
            self._wake.wait(self._interval_s)
            self._wake.clear()
        if self._settings.is_main:
            self._catch_refusal(lambda: self._write_status("ended"))

    def _catch_refusal(self, action: Callable[[], object]) -> str:
        """Run ``action``, logging errors; return the reason for a refusal, or an empty string."""
        try:
            action()
        except RunLost as error:
            self._throttled_log.log("alone", str(error))
            return str(error)
        except (StorageError, OSError) as error:
            self._throttled_log.log("bucket", f"a request to the bucket failed: {error}")
            return str(error) if isinstance(error, StorageRefused) else ""
        except Exception as error:
            log.exception("snapshots: unexpected error in the exchange: %s", describe(error))
        return ""

    def _confirm(self) -> None:
        """Raise ``RunLost`` if another job holds the run's lock."""
        settings = self._settings
        check_holder(self._objects, settings.job_id, settings.attempt, run=settings.run)

    def _exchange_once(self) -> None:
        if self._coordinator is None:
            self._send_to_main()
        else:
            self._coordinate(self._coordinator)
        self._look_for_missing()

    def _send_to_main(self) -> None:
        """Send the end times of this node's listings, which extend their validity."""
        listing = self._uploader.listing
        if listing is None:
            return
        if listing.final:
            self.ended = listing.missing
            return
        now_s = time.monotonic()
        sent = {listing.name: listing.until for listing in self._uploader.history}
        if now_s - self._end_times_sent_s < min(_UNTIL_INTERVAL_S, self._settings.every_s / 2):
            return
        if sent != self._sent_end_times:
            with contextlib.suppress(StorageUnavailable):  # sent again next time
                document = json.dumps(sent).encode()
                self._mailbox.send_to_main(until_name(self._settings.node), document)
                self._sent_end_times, self._end_times_sent_s = sent, now_s

    def _coordinate(self, coordinator: Coordinator) -> None:
        """Complete snapshots from the listings of all nodes."""
        if not self._is_open:
            coordinator.open()
            self._is_open = True
        if time.monotonic() - self._status_written_s >= _STATUS_INTERVAL_S:
            # A failed status write must not prevent a snapshot.
            self._catch_refusal(lambda: self._write_status("running"))
        completed = coordinator.gather(self._uploader.history)
        self.num_reports = coordinator.num_reports
        self._log_waiting(coordinator, completed is not None or coordinator.is_gathered)
        not_final = coordinator.not_final
        others = [str(node) for node in not_final if node != self._settings.node]
        self.waits_for = f"waits for {_nodes(others)}" if others else ""
        self.snapshots = tuple(snapshot.summary for snapshot in coordinator.snapshots)
        if completed is not None:
            self._warn_of_size(completed)
            # A failed deletion costs money but must not prevent a snapshot.
            self._catch_refusal(lambda: coordinator.prune(at_end=not not_final))
            self.snapshots = tuple(snapshot.summary for snapshot in coordinator.snapshots)
        if not_final:
            return
        if coordinator.refusals:
            self.ended = "; ".join(coordinator.refusals)
        elif coordinator.is_gathered:
            self.ended = ""

    def _warn_of_size(self, snapshot: JobSnapshot) -> None:
        """Log once if the files of all nodes do not fit on one node."""
        if self._warned_of_size:
            return
        folder = self._settings.checkpoints
        used = sum(seen.size for seen in scan(folder).values())
        room = shutil.disk_usage(folder).free + used
        if text := too_large(snapshot, self._settings.node, room):
            self._warned_of_size = True
            log.info("snapshots: %s", text)

    def _log_waiting(self, coordinator: Coordinator, has_progressed: bool) -> None:
        """Log the nodes that snapshots wait for, if they have been waiting for too long."""
        self._wait.note("waits" if coordinator.has_listings and not has_progressed else "")
        if self._wait.lasts_s > max(_WAIT_LIMIT_S, 3 * self._settings.every_s):
            nodes = [str(node) for node in coordinator.waits_for]
            verb = "is" if len(nodes) == 1 else "are"
            self._throttled_log.log(
                "waiting",
                f"no snapshot of all nodes since {self.newest_text}, for "
                f"{self._wait.lasts_s:.0f} s: the next waits for {_nodes(nodes)}, which {verb} "
                "still uploading, writing continuously or not responding",
            )

    def _look_for_missing(self) -> None:
        """Detect contents that the bucket has lost, so that they are uploaded again."""
        listing = self._uploader.listing
        if listing is None:
            return
        try:
            data = self._mailbox.received.get(MISSING)
        except ObjectMissing:
            return
        if data != self._missing:
            self._missing = data
            own = {entry.sha256 for entry in listing.entries}
            if lost := own.intersection(read_json(data, Digests).digests):
                self.lost = frozenset(lost)

    def _write_status(self, state: str) -> None:
        """Write the run's status, including the progress shown by the program's output."""
        output = OutputReport.read(self._settings.scratch)
        at = output.last_line_at
        loss = output.loss
        is_number = loss is not None and math.isfinite(loss)
        unpersisted = None
        with contextlib.suppress(FileNotFoundError):
            unpersisted = (self._settings.scratch / UNPERSISTED_FILE).read_text()
        status = ProgramStatus(
            state=state,
            last_line=output.last_line or None,
            last_line_at=datetime.fromtimestamp(at, UTC).isoformat() if at else None,
            step=output.step,
            loss=loss if is_number else None,
            loss_text=None if loss is None or is_number else str(loss),
            steps_per_second=output.steps_per_second,
            snapshots=self.snapshots,
            unpersisted=unpersisted,
            updated_at=now_utc(),
        )
        self._put_status(json.dumps(as_document(status), indent=2).encode() + b"\n")
        self._status_written_s = time.monotonic()
        if (
            state == "ended"
            or self._status_written_s - self._losses_written_s >= _LOSSES_INTERVAL_S
        ):
            self._write_losses()
            self._losses_written_s = self._status_written_s

    def _put_status(self, data: bytes) -> None:
        """Replace the status, unless a later job has written it.

        This job may have been frozen and replaced. It recognizes its own documents, of which the
        last may exist although its request failed.
        """
        key = run_key(self._settings.run, RUN_STATUS)
        if not self._statuses:
            self._statuses = {self._find_status(key)}
        self._statuses.add(data)
        while True:
            etag = self._status_etag
            try:
                self._status_etag = self._bucket.put(
                    key, data, if_absent=etag is None, if_match=etag
                )
            except PreconditionFailed:
                found = self._find_status(key)
                if found and found not in self._statuses:
                    # With the other job's ETag, the next write would succeed.
                    self._status_etag = etag
                    raise RunLost(
                        f"another job is writing to {self._bucket.uri}/{key}; stop one of them, or "
                        "give each its own --name"
                    ) from None
                continue
            self._statuses = {data}
            return

    def _find_status(self, key: str) -> bytes:
        try:
            found, self._status_etag = self._bucket.get_with_etag(key)
        except ObjectMissing:
            found, self._status_etag = b"", None
        return found

    def _write_losses(self) -> None:
        """Write the losses of this attempt, for the curve of `status --plot`."""
        with contextlib.suppress(FileNotFoundError):
            losses = (self._settings.scratch / LOSSES_FILE).read_bytes()
            if losses != self._losses:
                self._bucket.put(self._losses_key, losses)
                self._losses = losses


def _nodes(indices: Sequence[str]) -> str:
    """Name nodes by their indices."""
    return f"{'node' if len(indices) == 1 else 'nodes'} {', '.join(indices)}"
