"""Records in the bucket, for nodes that cannot connect and jobs that wait for each other.

The main node cannot see whether a child has started: Batch starts children after it, in any order,
and each first pulls an image of many gigabytes. So a child that cannot reach the main node writes a
record, and the main node looks for one while no child has joined. It rules out an image pull as
the reason for the wait. A node that cannot reach even the bucket has no network access at all.

Volcano does not support dependencies between jobs, and pods have no permissions in the cluster. So
the compile job writes heartbeats and then a result under its ID, and the launchers of the
training job poll for them. Without a heartbeat the training job exits to make room: both need
the same nodes, and the compile job may be behind it in the queue (Volcano orders jobs by the second
in which they or their restarts were created).
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

from training.core.contract import NodeContract
from training.launcher.verdict import Verdict
from training.storage import (
    ObjectMissing,
    Objects,
    RetryPolicy,
    StorageAccess,
    StorageError,
    StorageUnavailable,
)
from trainium_catalogue.contract import (
    ATTEMPTS,
    CACHE_PREFIX,
    JOINING_FOLDER,
    attempts_prefix,
    run_prefix,
)
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode
from trainium_catalogue.typed_json import read_json

RESULTS_PREFIX = f"{CACHE_PREFIX}compiled/jobs"
HEARTBEAT_S = 60.0
"""Interval between heartbeats of a job that another job waits for."""
_POLL_S = 5.0
_HEARTBEAT_TIMEOUT_S = 600.0
"""Ample: pods start within seconds on nodes that have the image, within minutes on others."""
_TICK_S = 0.2
REQUEST_S = 2.0
"""Shorter than the guardian's timeout for a frozen launcher."""
_INITIAL_DELAY_S = 5.0
"""Long enough that a job whose nodes connect promptly neither writes nor reads records."""
_RETRY_INTERVAL_S = 5.0
_STARTED_NAME = re.compile(r"(?P<attempt>\d+)-node-(?P<node>\d+)\.json")

log = logging.getLogger(__name__)


def open_folder(node: NodeContract, folder: str) -> Objects:
    """Open a folder in the deployment's bucket, with short retries."""
    assert node.bucket is not None
    retries = RetryPolicy(total_s=REQUEST_S)
    return StorageAccess.of(node).open_root(retry_policy=retries).at(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnding:
    """A launcher's final report on an unsuccessful attempt on EKS."""

    schema: Literal[1] = 1
    code: int
    """Exit code of the node."""
    reason: str


def _put(folder: Objects, name: str, **fields: object) -> None:
    folder.put(name, json.dumps({"schema": 1, **fields}).encode() + b"\n")


class _RetriedAction(ABC):
    """An action on the bucket, retried until it succeeds.

    Runs in its own thread, since an unanswered connection attempt takes longer than the guardian's
    timeout for the launcher.
    """

    def __init__(self, node: NodeContract) -> None:
        self._node = node
        self._due_s = time.monotonic() + _INITIAL_DELAY_S
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def turn(self, now_s: float) -> None:
        """Start once the nodes have had time to connect; called in every loop iteration."""
        if self._thread is None and self._node.bucket is not None and now_s >= self._due_s:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop retrying."""
        self._ended.set()

    def _run(self) -> None:
        place = f"{run_prefix(self._node.run, 'results')}{JOINING_FOLDER}/{self._node.job_id}"
        folder = open_folder(self._node, place)
        while not self._ended.is_set():
            # Best effort, since records only shorten a wait.
            with contextlib.suppress(Exception):
                if self._act(folder):
                    return
            self._ended.wait(_RETRY_INTERVAL_S)

    @abstractmethod
    def _act(self, folder: Objects) -> bool:
        """Try once; return True if no retry is needed."""


class StartedRecord(_RetriedAction):
    """A child's record that it has started but cannot reach the main node."""

    def _act(self, folder: Objects) -> bool:
        name = f"{self._node.attempt}-node-{self._node.node_index}.json"
        _put(folder, name, address=self._node.address, main=self._node.main_address)
        return True


class JoinDiagnostics(_RetriedAction):
    """The main node's search for records of children that have not joined."""

    def __init__(self, node: NodeContract) -> None:
        super().__init__(node)
        self.evidence: str | None = None
        """Why waiting for a child is pointless; None while one may still join."""

    def _act(self, folder: Objects) -> bool:
        try:
            names = [entry.key for entry in folder.list()]
        except StorageUnavailable:
            self.evidence = "this node cannot reach the bucket either"
            return False
        except Exception:  # such as access denied: reachable, but no information
            names = []
        matches = [match for name in names if (match := _STARTED_NAME.fullmatch(name))]
        started = sorted(
            int(match["node"]) for match in matches if int(match["attempt"]) == self._node.attempt
        )
        if not started:
            self.evidence = None
            return False
        self.evidence = f"node {started[0]} has started, according to its record in the bucket"
        return True


def likely_causes(node: NodeContract) -> str:
    """List likely reasons why started nodes cannot reach each other, most likely first."""
    first, second = (
        (
            "the nodes' security groups do not allow traffic among themselves",
            "a network policy or network ACL",
        )
        if node.on_cluster
        else (
            "the VPC's default security group, which tasks use, does not allow inbound and "
            "outbound TCP between its members",
            "a network ACL of the subnet",
        )
    )
    return f"likely causes, in this order: {first}; {second}; nodes in different subnets or zones"


def record_ending(node: NodeContract, verdict: Verdict) -> None:
    """Record how an unsuccessful attempt ended; raise storage errors.

    Volcano deletes the pods of an attempt, and their logs, when it starts the next one.
    """
    attempts = open_folder(node, attempts_prefix(node.run, node.job_id).rstrip("/"))
    name = f"{node.attempt}-node-{node.node_index}.json"
    _put(attempts, name, **asdict(AttemptEnding(code=verdict.code, reason=verdict.reason)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobRecord:
    """A job's latest heartbeat, or its result."""

    running_at: float | None = None
    code: int | None = None
    reason: str = ""


def write_heartbeat(results: Objects, job_id: str) -> None:
    """Record that this job is running; best effort, since more heartbeats follow."""
    with contextlib.suppress(StorageError, OSError):
        _put(results, _key(job_id), running_at=time.time())


def write_result(results: Objects, node: NodeContract, verdict: Verdict) -> None:
    """Record how this job ended, unless another attempt may follow."""
    if EXIT_CODES[verdict.code].retry and node.attempt < ATTEMPTS:
        return
    try:
        _put(results, _key(node.job_id), code=int(verdict.code), reason=verdict.reason)
    except (StorageError, OSError) as error:
        log.info("launch: could not notify the waiting job that this one has ended: %s", error)


def wait_for_result(
    results: Objects, job_id: str, *, heartbeat: Callable[[], None], stopped: Callable[[], bool]
) -> Verdict | None:
    """Wait for a job to end; return a verdict if this job must not continue."""
    last_heartbeat_s = time.monotonic()
    running_at: float | None = None
    log.info("launch: waiting for job %s, which compiles for this one", job_id)
    polled_s = float("-inf")
    while not stopped():
        heartbeat()
        if time.monotonic() - polled_s < _POLL_S:
            time.sleep(_TICK_S)
            continue
        polled_s = time.monotonic()
        record = _find(results, job_id)
        if record.code is None:
            # Set by a different machine's clock, so only changes count.
            if record.running_at not in (None, running_at):
                running_at, last_heartbeat_s = record.running_at, polled_s
            if polled_s - last_heartbeat_s > _HEARTBEAT_TIMEOUT_S:
                return Verdict(
                    code=ExitCode.HOST,
                    reason=f"job {job_id}, which compiles for this one, has sent no heartbeat "
                    f"for {_HEARTBEAT_TIMEOUT_S:g} s; this job exits to make room for it",
                )
            continue
        if record.code == ExitCode.OK:
            log.info("launch: job %s has compiled the graphs", job_id)
            return None
        return Verdict(
            code=ExitCode.WORKLOAD,
            reason=f"job {job_id}, which compiles for this one, has failed: {record.reason}",
        )
    return Verdict(code=ExitCode.STOPPED, reason=f"stopped while waiting for job {job_id}")


def _find(results: Objects, job_id: str) -> _JobRecord:
    """Read a job's record; empty if there is none or storage is unavailable."""
    try:
        return read_json(results.get(_key(job_id)), _JobRecord)
    except (ObjectMissing, StorageUnavailable, ValueError):
        return _JobRecord()


def _key(job_id: str) -> str:
    return f"{job_id}.json"
