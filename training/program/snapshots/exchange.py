"""A node's thread that talks: to the main node, or on that one to all, and to the run's status."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from training.core.failures import describe
from training.program.curve import CURVE_FILE
from training.program.snapshots.coordinator import Coordinator, Messages, NotAlone, Patience
from training.program.snapshots.folder import look
from training.program.snapshots.manifest import Snapshot, clock_text
from training.program.snapshots.process import FinalOrder, SnapshotSettings, open_snapshots
from training.program.snapshots.selection import too_large
from training.program.snapshots.uploader import Complaints, Uploader
from training.storage import ObjectMissing, Objects, StorageError, StorageRefused
from training.storage.results import now_utc
from trainium_catalogue.contract import PROGRAM_LOSSES, RUN_STATUS, run_key

_TURN_S = 5.0
_HURRIED_TURN_S = 0.25
_UNTIL_S = 10.0
_STATUS_S = 5.0
_OUTPUT_FILE = "output.json"
_OUTPUT_FIELDS = ("last_line", "last_line_at", "step", "loss", "steps_per_second")

log = logging.getLogger(__name__)


class Exchange:
    """Talks every few seconds, and more often at the end."""

    def __init__(
        self,
        settings: SnapshotSettings,
        bucket: Objects,
        messages: Messages,
        delivery: Uploader,
        gatherer: Coordinator | None,
    ) -> None:
        self._settings = settings
        self._bucket = bucket
        self._objects = open_snapshots(bucket, settings.run)
        self._messages, self._delivery, self._gatherer = messages, delivery, gatherer
        self._complaints = Complaints()
        self._turn_s = min(_TURN_S, settings.every_s / 4)
        self._wake = threading.Event()
        self._is_open = False
        self._until_told_s = float("-inf")
        self._told_until: dict[str, float] = {}
        self._warned_of_size = False
        self._patience = Patience(settings.every_s)
        self._status_written_s = float("-inf")
        self._missing: bytes = b""
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        place = f"{PROGRAM_LOSSES}{began}-attempt-{settings.attempt}.jsonl"
        self._losses_key, self._losses = run_key(settings.run, place), b""
        self.take_again = False
        """True if the bucket has lost something that this node has listed."""
        self.refusal = ""
        """The reason why the bucket refuses what the main node writes, if it does."""
        self.ended: str | None = None
        """Empty once the last snapshot is complete, or the reason why it cannot be."""
        self.snapshots: tuple[Mapping[str, Any], ...] = ()
        """The complete snapshots, oldest first; known on the main node only."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="teller", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """The end has come."""
        self._turn_s = _HURRIED_TURN_S
        self._wake.set()

    @property
    def news(self) -> int:
        """Raised whenever another node tells something."""
        return self._gatherer.news if self._gatherer is not None else 0

    @property
    def waits_for(self) -> str:
        """What the last snapshot waits for."""
        if self._gatherer is None:
            return ""
        nodes = [node for node in self._gatherer.not_final if node != self._settings.node]
        return f"waits for node {', '.join(map(str, nodes))}" if nodes else ""

    @property
    def newest_text(self) -> str:
        """Time of the newest complete snapshot."""
        newest = self.snapshots[-1] if self.snapshots else None
        return clock_text(newest["at"]) if newest else "the beginning"

    @property
    def newest_stays(self) -> str:
        """What another attempt continues from."""
        if self._gatherer is None:
            return "the one before it stays"
        return f"the one of {self.newest_text} stays" if self.snapshots else "there is none before"

    def end(self, order: FinalOrder) -> None:
        """Say the last word about the run's status; waits no longer than the order allows."""
        self._stopped.set()
        self._wake.set()
        until_s = time.monotonic() + 30.0 if order.until_s is None else order.until_s + 1.0
        self._thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._attempt(self._turn)
            self._wake.wait(self._turn_s)
            self._wake.clear()
        if self._gatherer is not None:
            self._attempt(lambda: self._write_status("ended"))

    def _attempt(self, action: Any) -> None:
        self.refusal = ""
        try:
            action()
        except NotAlone as error:
            self.refusal = str(error)
            self._complaints.say("alone", str(error))
        except (StorageError, OSError) as error:
            self.refusal = str(error) if isinstance(error, StorageRefused) else ""
            self._complaints.say("storage", f"the bucket does not answer: {error}")
        except Exception as error:
            log.exception("snapshots: snapshots are not completed: %s", describe(error))

    def _turn(self) -> None:
        if self._gatherer is None:
            self._tell_main()
        else:
            self._gather(self._gatherer)
        self._look_for_missing()

    def _tell_main(self) -> None:
        """Renew the times up to which this node's listings hold."""
        listing = self._delivery.listing
        if listing is None:
            return
        if listing.final:
            self.ended = listing.missing
            return
        now_s = time.monotonic()
        told = {listing.name: listing.until for listing in self._delivery.history}
        if now_s - self._until_told_s < min(_UNTIL_S, self._settings.every_s / 2):
            return
        if told != self._told_until:
            key = self._messages.until(self._settings.node)
            self._objects.put(key, json.dumps(told).encode())
            self._told_until, self._until_told_s = told, now_s

    def _gather(self, gatherer: Coordinator) -> None:
        if not self._is_open:
            gatherer.open()
            self._is_open = True
        if time.monotonic() - self._status_written_s >= _STATUS_S:
            self._write_status("running")
        made = gatherer.gather(self._delivery.history)
        self._complain_of_waiting(gatherer, made is not None or gatherer.is_gathered)
        self.snapshots = tuple(snapshot.summary for snapshot in gatherer.snapshots)
        at_end = gatherer.all_final
        if made is not None:
            self._warn_of_size(made)
            self._attempt(lambda: gatherer.prune(at_end=at_end))
            self.snapshots = tuple(snapshot.summary for snapshot in gatherer.snapshots)
        if at_end and gatherer.refusals:
            self.ended = "; ".join(gatherer.refusals)
        elif at_end and gatherer.is_gathered:
            self._attempt(gatherer.close)
            self.ended = ""

    def _warn_of_size(self, made: Snapshot) -> None:
        """Say once that the files of all nodes do not fit on one of them."""
        if self._warned_of_size:
            return
        folder = self._settings.checkpoints
        held = sum(seen.size for seen in look(folder).values())
        room = shutil.disk_usage(folder).free + held
        if text := too_large(made, self._settings.node, room):
            self._warned_of_size = True
            log.info("snapshots: %s", text)

    def _complain_of_waiting(self, gatherer: Coordinator, moves: bool) -> None:
        """Say for which node snapshots wait, if they do for long."""
        waits = gatherer.has_listings and not moves
        if waited_s := self._patience.waited_s(time.monotonic(), waits=waits):
            nodes = ", ".join(map(str, gatherer.waits_for))
            self._complaints.say(
                "waiting",
                f"no snapshot of all nodes since {self.newest_text}, for {waited_s:.0f} s: it "
                f"waits for node {nodes}, which still sends its files, writes all the time or "
                "does not answer",
            )

    def _look_for_missing(self) -> None:
        """Have sent again what the bucket has lost."""
        listing = self._delivery.listing
        if listing is None:
            return
        try:
            data = self._objects.get(self._messages.missing)
        except ObjectMissing:
            return
        if data != self._missing:
            self._missing = data
            own = {entry.sha256 for entry in listing.entries}
            if lost := own.intersection(json.loads(data)["digests"]):
                self._delivery.forget(lost)
                self.take_again = True

    def _write_status(self, state: str) -> None:
        """Write the run's status, with what is known of the program's output."""
        try:
            output = json.loads((self._settings.scratch / _OUTPUT_FILE).read_text())
        except (FileNotFoundError, ValueError):
            output = {}
        at = output.get("last_line_at")
        if isinstance(at, int | float):
            output["last_line_at"] = datetime.fromtimestamp(at, UTC).isoformat()
        document = {
            "kind": "program",
            "state": state,
            **{name: output.get(name) for name in _OUTPUT_FIELDS},
            "snapshots": list(self.snapshots),
            "updated_at": now_utc(),
        }
        key = run_key(self._settings.run, RUN_STATUS)
        self._bucket.put(key, json.dumps(document, indent=2).encode() + b"\n")
        self._write_losses()
        self._status_written_s = time.monotonic()

    def _write_losses(self) -> None:
        """Write the losses of this attempt, from which `status --plot` draws a curve."""
        with contextlib.suppress(FileNotFoundError):
            losses = (self._settings.scratch / CURVE_FILE).read_bytes()
            if losses != self._losses:
                self._bucket.put(self._losses_key, losses)
                self._losses = losses
