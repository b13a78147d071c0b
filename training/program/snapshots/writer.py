"""The process on each node that uploads snapshots of a program's folder to the bucket.

    python -m training.program.snapshots.writer <settings file>

It scans the folder continuously, and captures it, once quiescent, at the same instants on every
node. One thread scans, one uploads (``uploader.py``), and one communicates with other nodes and
updates the run's status (``exchange.py``). Errors here never end the program, unless the folder
exceeds its size limit.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from pathlib import Path

from training.core.logs import set_up_logging
from training.core.processes import find_marked, is_gone, name_process
from training.core.progress import ENV_SCRATCH, read_failures, read_states
from training.program.snapshots.capture import Capture, FileChanged
from training.program.snapshots.exchange import Exchange
from training.program.snapshots.folder import (
    FolderState,
    FolderWatch,
    SteadyClock,
    open_for_writing,
    scan,
)
from training.program.snapshots.graphs import usable
from training.program.snapshots.mailbox import Mailbox
from training.program.snapshots.manifest import EntryKind, Root, size_text
from training.program.snapshots.process import (
    FinalSnapshotRequest,
    Problem,
    SnapshotReport,
    SnapshotSettings,
    open_snapshots,
)
from training.program.snapshots.restore import read_record
from training.program.snapshots.uploader import Bandwidth, CapturedState, ThrottledLog, Uploader
from training.storage import RetryPolicy
from trainium_catalogue.exit_codes import ExitCode

_NICENESS = 10
_SCAN_INTERVAL_S = 0.5
_SCAN_SHARE = 0.1
"""Maximum share of one core's time spent on scanning."""
_MIB, _GIB = 1024**2, 1024**3
_REPORT_S = 1.0
_RETRY_INTERVAL_S = 1.0
_PROGRESS_S = 10.0
_SILENCE_S = 600.0
"""Time without progress on any node after which a last snapshot is abandoned."""
_REFUSED_S = 10.0
"""Duration after which refusals count as permanent; renewing credentials takes less."""
_RETRIES = RetryPolicy(total_s=60.0)
_MAX_LISTED_FILES = 5

log = logging.getLogger("training.program.snapshots")


class SnapshotWriter:
    """The thread that scans the folder and decides when to capture it."""

    def __init__(self, settings: SnapshotSettings) -> None:
        self._settings = settings
        self._clock = SteadyClock()
        self._watch = FolderWatch(
            settings.checkpoints,
            quiet_s=settings.quiet_s,
            longest_quiet_s=min(60.0, settings.every_s / 2),
        )
        bucket = settings.storage.open_root(retry_policy=_RETRIES)
        mailbox = Mailbox(settings.scratch, is_main=settings.is_main)
        restored = read_record(settings.scratch)
        self._throttled_log = ThrottledLog()
        self._bandwidth = Bandwidth(settings.mib_per_s * _MIB)
        self._capture = Capture(settings.scratch / "staging", restored)
        self._uploader = Uploader(
            open_snapshots(bucket, settings.run),
            mailbox,
            settings,
            self._capture,
            self._bandwidth,
            self._throttled_log,
            restored=restored.digests.values(),
        )
        self._exchange = Exchange(settings, bucket, mailbox, self._uploader, self._throttled_log)
        self._offered: object = None
        """Inputs of the latest upload, to avoid repeating it."""
        self._lost = self._exchange.lost
        """Lost contents that have already been resent."""
        self._whole: float | None = None
        """Start of the last quiescent state, with no file open and every worker alive."""
        self._busy: list[str] = []
        """Files that were open for writing at the latest check."""
        self._next_at = 0.0
        self._broken = False
        self._problem: Problem | None = None
        self._failure: Problem | None = None
        self._acted_at: float | None = None
        """Time at which the last snapshot made progress."""
        self._written_s = float("-inf")

    def run(self) -> None:
        """Take snapshots until, and including, the requested last one."""
        self._next_at = self._next_instant()
        while (request := FinalSnapshotRequest.find(self._settings.scratch)) is None:
            began_s = time.monotonic()
            try:
                self._turn()
            except OSError as error:
                self._throttled_log.log("scan", f"the folder could not be read: {error}")
            self._report()
            scan_s = time.monotonic() - began_s
            pause_s = min(_SCAN_INTERVAL_S, self._settings.quiet_s / 4)
            time.sleep(max(pause_s, scan_s / _SCAN_SHARE))
        if request.take and self._problem is None:
            self._failure = self._finish(request)
        self._exchange.end(request)
        self._write_report()

    def _turn(self) -> None:
        self._watch.scan(self._clock)
        self._uploader.extend_until(self._watch.since, self._watch.until)
        self._check_size_limit()
        self._broken = self._broken or self._has_lost_workers()
        if self._broken or self._problem is not None:
            return
        if self._watch.is_quiet and self._whole != self._watch.since and not self._has_open_files():
            self._whole = self._watch.since
        now = self._clock.now()
        if self._uploader.busy or (now < self._next_at and not self._has_lost_contents):
            return
        if self._whole == self._watch.since:
            self._take(quiet_s=self._watch.quiet_s)
        elif self._may_skip_quiescence(now) and not self._has_open_files():
            self._take(quiet_s=0.0)
        elif now - self._next_at > max(60.0, 3 * self._settings.every_s):
            what = f"the program writes continuously, most recently {self._watch.last_changed}"
            if self._watch.is_quiet and self._busy:
                what = f"the program has {self._busy[0]} open for writing"
            self._throttled_log.log(
                "busy",
                f"no snapshot since {self._exchange.newest_text}: {what}; a snapshot needs "
                f"{self._watch.quiet_s:.3g} s in which no file is written",
            )
            if not self._watch.is_quiet:
                self._watch.forget_pauses()

    def _may_skip_quiescence(self, now: float) -> bool:
        """Return whether waiting for quiescence is futile because the program never pauses."""
        patience_s = min(60.0, max(self._settings.every_s / 2, 2 * self._settings.quiet_s))
        return now - self._next_at >= patience_s and self._watch.replaces_one_file

    def _next_instant(self) -> float:
        """Return the next multiple of the interval, the same on every node."""
        every_s = self._settings.every_s
        return (math.floor(self._clock.now() / every_s) + 1) * every_s

    @property
    def _has_lost_contents(self) -> bool:
        """True if the bucket has lost contents that have not been resent."""
        return self._exchange.lost is not self._lost

    def _forget_lost(self) -> None:
        """Have lost contents resent; no upload may be in flight, since it would list them again."""
        if self._has_lost_contents:
            self._lost, self._offered = self._exchange.lost, None
            self._uploader.forget(self._lost)

    def _has_lost_workers(self) -> bool:
        """Return whether a worker has died, possibly leaving a torn file."""
        return any(
            not state.done and is_gone(state.pid)
            for state in read_states(self._settings.scratch).values()
        )

    def _has_open_files(self) -> bool:
        """Return whether any process of the launch may be writing to a relevant file."""
        open_files = open_for_writing([self._watch.root], self._pids())
        root, now = Path(os.path.realpath(self._watch.root)), self._clock.now()
        names = {path.relative_to(root).as_posix(): mapped for path, mapped in open_files.items()}
        self._busy = [
            name
            for name, mapped in names.items()
            if not self._watch.is_log(name) and (mapped or not self._watch.is_idle(name, now))
        ]
        return bool(self._busy)

    def _pids(self) -> list[int]:
        return find_marked(ENV_SCRATCH, str(self._settings.scratch))

    def _take(self, *, quiet_s: float, final: bool = False) -> bool:
        """Capture everything and start its upload, unless that has been done.

        Returns False if the program has just changed something.
        """
        since, state = self._watch.since, self._watch.state
        logs = frozenset(path for path in state if self._watch.is_log(path))
        cache = self._cache(final=final)
        self._forget_lost()
        inputs = (dict(state), dict(cache), since, final)
        if inputs == self._offered and not self._uploader.error:
            self._next_at = self._next_instant()
            return True
        try:
            items = [
                *self._capture.hold(Root.CHECKPOINTS, self._watch.root, state, logs),
                *self._capture.hold(Root.CACHE, self._settings.cache, cache, frozenset()),
            ]
            self._watch.scan(self._clock)
            if self._watch.since != since:
                raise FileChanged(self._watch.last_changed)
        except FileChanged:
            self._capture.release()
            return False
        except OSError:
            self._capture.release()
            raise
        self._uploader.offer(
            CapturedState(
                items=items, since=since, until=self._watch.until, quiet_s=quiet_s, final=final
            )
        )
        self._offered = inputs
        self._next_at = self._next_instant()
        return True

    def _cache(self, *, final: bool) -> FolderState:
        """Return the complete compiled graphs: folders in which no file is being written."""
        root = self._settings.cache
        entries = scan(root)
        wanted = usable(entries)
        state = {path: seen for path, seen in entries.items() if path in wanted}
        if final or not state:
            return state
        youngest_ns = (time.time() - self._settings.quiet_s) * 1e9
        real = Path(os.path.realpath(root))
        busy = {path.relative_to(real).parent for path in open_for_writing([root], self._pids())}
        busy |= {Path(path).parent for path, seen in state.items() if seen.mtime_ns > youngest_ns}
        return {
            path: seen
            for path, seen in state.items()
            if seen.kind is EntryKind.FOLDER or Path(path).parent not in busy
        }

    def _check_size_limit(self) -> None:
        size, limit = self._watch.bytes, self._settings.limit_gib * _GIB
        if size <= limit or self._problem is not None:
            return
        sizes = {path: seen.size for path, seen in self._watch.state.items() if seen.size}
        largest = sorted(sizes, key=lambda path: -sizes[path])[:_MAX_LISTED_FILES]
        names = ", ".join(f"{path} ({size_text(sizes[path])})" for path in largest)
        self._problem = Problem(
            code=ExitCode.WORKLOAD,
            reason=(
                f"node {self._settings.node}: the checkpoint folder contains {size / _GIB:.4g} "
                f"GiB, and --snapshot-limit-gib is {self._settings.limit_gib:g}; the largest files "
                f"are {names}; have the program keep fewer checkpoints, or submit with a higher "
                "limit"
            ),
        )

    def _finish(self, request: FinalSnapshotRequest) -> Problem | None:
        """Take the last snapshot; return the reason if there is none."""
        uploader, exchange = self._uploader, self._exchange
        began_s = logged_s = acted_s = time.monotonic()
        next_trial_s, error = began_s, ""
        offered, most_sent, num_reports = False, 0, -1
        with contextlib.suppress(OSError):
            self._watch.scan(self._clock)
        if uploader.has_other_than(self._watch.since):
            self._bandwidth.cut()  # the last snapshot must not wait for an older one
        else:
            self._bandwidth.lift()
        exchange.hurry()
        while True:
            now_s = time.monotonic()
            must_offer = not offered or uploader.error or self._has_lost_contents
            if must_offer and not uploader.busy and now_s >= next_trial_s:
                next_trial_s = now_s + _RETRY_INTERVAL_S
                try:
                    offered, error = self._offer_final(request), ""
                except OSError as failed:
                    error = f"the folder could not be read: {failed}"
            if offered and not uploader.busy and not uploader.error and exchange.ended is not None:
                return self._incomplete(f": {exchange.ended}") if exchange.ended else None
            contents = uploader.contents
            if contents.progress > most_sent or exchange.num_reports != num_reports:
                most_sent, num_reports = max(most_sent, contents.progress), exchange.num_reports
                acted_s, self._acted_at = now_s, self._clock.now()
            what = exchange.waits_for if contents.sent >= contents.total else ""
            what = what or f"{size_text(contents.sent)} of {size_text(contents.total)} uploaded"
            if now_s - logged_s >= _PROGRESS_S:
                logged_s = now_s
                log.info("snapshots: last snapshot: %s", what)
            if request.until_s is not None and now_s >= request.until_s:
                self._bandwidth.cut()
                return self._incomplete(f" after {now_s - began_s:.0f} s: {what}")
            for refusal in (uploader.refusal, exchange.refusal):
                if offered and not uploader.busy and refusal.lasts_s >= _REFUSED_S:
                    return self._incomplete(f": {refusal.text}", ExitCode.CONFIGURATION)
            if now_s - acted_s >= _SILENCE_S:
                reason = f" ({error or uploader.error})" if error or uploader.error else ""
                return self._incomplete(
                    f": {what}, and there was no progress for {_SILENCE_S:g} s{reason}"
                )
            self._report()
            time.sleep(0.05)

    def _offer_final(self, request: FinalSnapshotRequest) -> bool:
        """Start uploading the final state; return False if the folder is still changing."""
        self._bandwidth.lift()
        self._watch.scan(self._clock)
        self._watch.scan(self._clock)
        untouched = self._capture.is_as_restored(Root.CHECKPOINTS, self._watch.state)
        clean = request.clean and (request.until_s is None or self._all_ranks_reported())
        if clean or untouched or self._whole == self._watch.since:
            return self._take(quiet_s=0.0, final=True)
        self._forget_lost()
        now = self._clock.now()
        what = self._watch.last_changed or "to its folder"
        reason = f"the program was writing {what} when it was terminated"
        self._uploader.offer(
            CapturedState(
                items=(),
                since=now,
                until=now,
                quiet_s=0.0,
                final=True,
                missing=f"node {self._settings.node}: {reason}",
            )
        )
        return True

    def _all_ranks_reported(self) -> bool:
        """Return whether every worker has reported its exit.

        An unhandled SIGTERM may end a program in the middle of writing a file.
        """
        scratch = self._settings.scratch
        failed = {failure.rank for failure in read_failures(scratch)}
        states = read_states(scratch).values()
        return all(state.done or state.rank in failed for state in states)

    def _incomplete(self, why: str, code: ExitCode = ExitCode.HOST) -> Problem:
        reason = f"last snapshot incomplete{why}; {self._exchange.remaining_text}"
        log.info("snapshots: %s", reason)
        return Problem(code=code, reason=reason)

    def _report(self) -> None:
        """Write the report if it is due."""
        now_s = time.monotonic()
        if now_s - self._written_s < _REPORT_S and self._problem is None:
            return
        self._written_s = now_s
        try:
            self._write_report()
        except OSError as error:
            self._throttled_log.log("report", f"the report could not be written: {error}")

    def _write_report(self) -> None:
        SnapshotReport(
            last_change_at=self._acted_at or self._watch.changed_at,
            bytes=self._watch.bytes,
            snapshots=self._exchange.snapshots,
            problem=self._problem,
            failure=self._failure,
        ).write(self._settings.scratch)


def main(path: Path) -> None:
    """Take snapshots of one node's folders until the launcher requests the end."""
    set_up_logging()
    name_process("snapshots")
    os.nice(_NICENESS)
    SnapshotWriter(SnapshotSettings.read(path)).run()
    # Threads may be blocked on an unresponsive bucket.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
