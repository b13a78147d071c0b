"""Record this attempt in the bucket, for `python -m jobs report`."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from training.core.contract import NodeContract
from training.core.failures import describe
from training.launcher.bucket_records import REQUEST_S, open_folder
from training.launcher.verdict import Verdict
from training.storage.results import now_utc
from trainium_catalogue.attempts import AttemptRecord, NodeLoss, attempt_name
from trainium_catalogue.contract import Orchestrator, attempts_prefix

_QUIET_S = 5.0
"""Initial delay: creating an S3 client takes 0.25 s of CPU time, which starting workers need."""
_TICK_S = 0.1

log = logging.getLogger(__name__)


class AttemptRecorder:
    """The main node's record of its attempt, written by a background thread.

    Makes only a few requests per attempt, regardless of its duration and the number of nodes. If a
    write fails, the report lacks some detail, but the job is unaffected.
    """

    def __init__(self, node: NodeContract, workload: str) -> None:
        """Create the record; nothing is written before ``start``."""
        self._node = node
        self._record = AttemptRecord(
            workload=workload,
            orchestrator=Orchestrator.EKS if node.on_cluster else Orchestrator.BATCH,
            job_id=node.job_id,
            attempt=node.attempt,
            child=node.array_index,
            num_nodes=node.num_nodes,
            device=node.device,
            instance_type=node.instance_type,
            started_at=now_utc(),
        )
        self.steps: int | None = None
        """Optimizer steps completed by the workers."""
        self._changed = threading.Condition()
        self._is_due, self._is_ending = True, False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start writing the record; a no-op on child nodes and without a bucket.

        Call it after the guardian's fork, which would copy a running thread's locks.
        """
        if self._node.is_main and self._node.bucket is not None:
            self._thread = threading.Thread(target=self._run, name="attempt-record", daemon=True)
            self._thread.start()

    def joined(self) -> None:
        """Record that every node has joined, so the workers start."""
        self._change(joined_at=now_utc())

    def lose(self, node: int, reason: str) -> None:
        """Record the loss of a node."""
        loss = NodeLoss(node=node, at=now_utc(), reason=reason)
        self._change(lost=(*self._record.lost, loss))

    def end(self, decision: Verdict, heartbeat: Callable[[], None]) -> None:
        """Record how the attempt ended, and wait briefly for the final write."""
        self._change(
            ends=True,
            ended_at=now_utc(),
            code=int(decision.code),
            reason=decision.reason,
            steps=self.steps,
        )
        deadline = time.monotonic() + REQUEST_S
        while self._thread is not None and self._thread.is_alive():
            if time.monotonic() > deadline:
                log.info("launch: the end of this attempt was not recorded in the bucket in time")
                return
            heartbeat()
            self._thread.join(_TICK_S)

    def _change(self, *, ends: bool = False, **fields: Any) -> None:
        with self._changed:
            self._record = replace(self._record, **fields)
            # Set together with the record, so that the thread writes it before it exits.
            self._is_due, self._is_ending = True, ends or self._is_ending
            self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending, timeout=_QUIET_S)
        node = self._node
        name = attempt_name(node.attempt, child=node.array_index)
        folder = open_folder(node, attempts_prefix(node.run, node.job_id).rstrip("/"))
        is_last = False
        while not is_last:
            with self._changed:
                self._changed.wait_for(lambda: self._is_due)
                self._is_due, is_last, record = False, self._is_ending, self._record
            try:
                folder.put(name, json.dumps(asdict(record)).encode() + b"\n")
            except Exception as error:
                log.info("launch: this attempt was not recorded in the bucket: %s", describe(error))
