"""Signs in the bucket, for nodes that do not meet and jobs that wait for each other.

The main node cannot see whether a child has started: Batch starts children after it, in any order,
and each pulls an image of many gigabytes first. So a child that finds no main node leaves a sign,
and the main node looks for signs while no child has joined. A sign means that the wait is not for
an image. A node that cannot reach the bucket either has no network access at all, and knows it.

Volcano cannot make one job wait for another, and a pod has no rights on the cluster. So the compile
job leaves a sign of life and then a result under its id, and the launchers of the training job look
for them. A job that sees no sign of life makes room: both want the same nodes, and the compile job
may have been queued second (Volcano orders jobs by the second in which they or their restarts were
created).
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
SIGN_S = 60.0
"""Seconds between signs of life of a job that another waits for."""
_LOOK_S = 5.0
_SIGN_TIMEOUT_S = 600.0
"""Nodes that have the image start a pod within seconds, new ones within minutes."""
_TICK_S = 0.2
_REQUEST_S = 2.0
"""Shorter than any silence after which the guardian takes the launcher for frozen."""
_QUIET_S = 5.0
"""A job whose nodes meet at once neither writes nor reads signs."""
_PAUSE_S = 5.0
_STARTED_NAME = re.compile(r"(?P<attempt>\d+)-node-(?P<node>\d+)\.json")

log = logging.getLogger(__name__)


def open_folder(node: NodeContract, folder: str) -> Objects:
    """Open a folder of the deployment's bucket, for short requests."""
    assert node.bucket is not None
    retries = RetryPolicy(total_s=_REQUEST_S)
    return StorageAccess.of(node).open_root(retry_policy=retries).at(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnding:
    """What a node's launcher reported last of an attempt on EKS that did not succeed."""

    schema: Literal[1] = 1
    code: int
    """Exit code of the node."""
    reason: str


def _put(folder: Objects, name: str, **fields: object) -> None:
    folder.put(name, json.dumps({"schema": 1, **fields}).encode() + b"\n")


class _Repeated(ABC):
    """An action on the bucket, repeated beside the launcher's loop until it reports success.

    Runs in its own thread: an unanswered connection takes longer to fail than the guardian allows
    the launcher to be silent.
    """

    def __init__(self, node: NodeContract) -> None:
        self._node = node
        self._due_s = time.monotonic() + _QUIET_S
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def turn(self, now_s: float) -> None:
        """Start once nodes have had time to meet without it; called in every turn of the loop."""
        if self._thread is None and self._node.bucket is not None and now_s >= self._due_s:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop repeating it."""
        self._ended.set()

    def _run(self) -> None:
        place = f"{run_prefix(self._node.run, 'results')}{JOINING_FOLDER}/{self._node.job_id}"
        folder = open_folder(self._node, place)
        while not self._ended.is_set():
            # Signs only shorten a wait: their errors must not affect the job.
            with contextlib.suppress(Exception):
                if self._act(folder):
                    return
            self._ended.wait(_PAUSE_S)

    @abstractmethod
    def _act(self, folder: Objects) -> bool:
        """Do it once; returns True if it need not be repeated."""


class StartedSign(_Repeated):
    """A child's sign that it has started but cannot join."""

    def _act(self, folder: Objects) -> bool:
        name = f"{self._node.attempt}-node-{self._node.node_index}.json"
        _put(folder, name, address=self._node.address, main=self._node.main_address)
        return True


class Lookout(_Repeated):
    """The main node's search for signs of children that have not joined."""

    def __init__(self, node: NodeContract) -> None:
        super().__init__(node)
        self.evidence: str | None = None
        """The reason why waiting for a child is pointless; None while it may still come."""

    def _act(self, folder: Objects) -> bool:
        try:
            names = [entry.key for entry in folder.list()]
        except StorageUnavailable:
            self.evidence = "this node cannot reach the bucket either"
            return False
        except Exception:  # for example refused: the bucket answers but tells nothing
            names = []
        found = [match for name in names if (match := _STARTED_NAME.fullmatch(name))]
        started = sorted(int(m["node"]) for m in found if int(m["attempt"]) == self._node.attempt)
        if not started:
            self.evidence = None
            return False
        self.evidence = f"node {started[0]} has started, as it says in the bucket"
        return True


def likely_causes(node: NodeContract) -> str:
    """Name possible reasons why started nodes cannot reach each other, likeliest first."""
    first, second = (
        ("the nodes' security groups do not admit themselves", "a network policy or network ACL")
        if node.on_cluster
        else (
            "the VPC's default security group, which tasks carry, does not admit itself, in and "
            "out, on TCP",
            "a network ACL of the subnet",
        )
    )
    return f"likely causes, in this order: {first}; {second}; nodes in different subnets or zones"


def leave_ending(node: NodeContract, verdict: Verdict) -> None:
    """Record how an unsuccessful attempt ended.

    Volcano deletes the pods of an attempt, and their logs, when another one follows.
    """
    attempts = open_folder(node, attempts_prefix(node.run, node.job_id).rstrip("/"))
    name = f"{node.attempt}-node-{node.node_index}.json"
    try:
        _put(attempts, name, **asdict(AttemptEnding(code=verdict.code, reason=verdict.reason)))
    except (StorageError, OSError) as error:
        log.info("launch: the bucket could not be told how this attempt ended: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    """What a job has left: a sign of life, or how it has ended."""

    running_at: float | None = None
    code: int | None = None
    reason: str = ""


def leave_sign(results: Objects, job_id: str) -> None:
    """Record that this job is running; if that fails, the next sign may succeed."""
    with contextlib.suppress(StorageError, OSError):
        _put(results, _key(job_id), running_at=time.time())


def leave_result(results: Objects, node: NodeContract, verdict: Verdict) -> None:
    """Record how this job ended, unless another attempt may follow."""
    if EXIT_CODES[verdict.code].retry and node.attempt < ATTEMPTS:
        return
    try:
        _put(results, _key(node.job_id), code=int(verdict.code), reason=verdict.reason)
    except (StorageError, OSError) as error:
        log.info(
            "launch: the job that waits for this one could not be told that it has ended: %s", error
        )


def wait_for_result(
    results: Objects, job_id: str, *, heartbeat: Callable[[], None], stopped: Callable[[], bool]
) -> Verdict | None:
    """Wait for a job's end; returns a verdict if this job must not continue."""
    seen_s = time.monotonic()
    running_at: float | None = None
    log.info("launch: waiting for job %s, which compiles for this one", job_id)
    looked_s = float("-inf")
    while not stopped():
        heartbeat()
        if time.monotonic() - looked_s < _LOOK_S:
            time.sleep(_TICK_S)
            continue
        looked_s = time.monotonic()
        sign = _find(results, job_id)
        if sign.code is None:
            # From the other machine's clock, so all that counts is whether it changes.
            if sign.running_at not in (None, running_at):
                running_at, seen_s = sign.running_at, looked_s
            if looked_s - seen_s > _SIGN_TIMEOUT_S:
                return Verdict(
                    code=ExitCode.HOST,
                    reason=f"job {job_id}, which compiles for this one, has shown no sign of life "
                    f"for {_SIGN_TIMEOUT_S:g} s; this job makes room for it",
                )
            continue
        if sign.code == ExitCode.OK:
            log.info("launch: job %s has compiled the graphs", job_id)
            return None
        return Verdict(
            code=ExitCode.WORKLOAD,
            reason=f"job {job_id}, which compiles for this one, has failed: {sign.reason}",
        )
    return Verdict(code=ExitCode.STOPPED, reason=f"asked to stop while waiting for job {job_id}")


def _find(results: Objects, job_id: str) -> _Sign:
    """Read what the job has left; empty if it left nothing or storage does not answer."""
    try:
        return read_json(results.get(_key(job_id)), _Sign)
    except (ObjectMissing, StorageUnavailable, ValueError):
        return _Sign()


def _key(job_id: str) -> str:
    return f"{job_id}.json"
