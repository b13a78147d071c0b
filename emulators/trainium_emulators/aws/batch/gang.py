"""Runs a job's attempts in sequence, following AWS Batch's rules.

AWS Batch user guide, multi-node parallel jobs: the main node starts first, children once it runs;
the job's status is the main node's; when the main node exits, the children are stopped; a child's
exit has no effect; only the main node's failure leads to a retry. A single-container job is a gang
of one. Retries follow "Automated job retries": the rules of ``evaluateOnExit`` are evaluated in
order, the first whose patterns all match applies, and without a match a job is retried.
"""

import signal
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moto.logs.models import logs_backends

from trainium_catalogue import contract
from trainium_emulators.aws.batch.job import BatchJob, MultiNodeJob, NodeRecord, now_ms
from trainium_emulators.aws.cloudformation.contributions import AccountRegion
from trainium_emulators.nodes.environment import (
    NodePlace,
    device_variables,
    from_pairs,
    node_address,
    rehearsal_extras,
)
from trainium_emulators.nodes.events import emit
from trainium_emulators.nodes.faults import NodeFault
from trainium_emulators.nodes.node import Engine, NodeProcess

_LOCK = threading.Lock()
CONTAINER_EXITED = "Essential container in task exited"
HOST_LOST = "Host EC2 (instance i-0e1e2e3e4e5e6e7e8) terminated."
"""Status reason for a lost instance, such as a reclaimed Spot Instance (AWS Batch user guide, job
retries)."""
TIMED_OUT = "Job attempt duration exceeded timeout"
# Children never start together with the main node, and Batch guarantees no order.
CHILD_DELAY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The outcome of an attempt's main node, as Batch reports it."""

    exit_code: int | None
    """None if the container's host was lost."""
    reason: str = ""
    status_reason: str = ""


def matches(pattern: str, text: str) -> bool:
    """Match a Batch pattern: the whole text, or a prefix if the pattern ends with ``*``."""
    if pattern.endswith("*"):
        return text.startswith(pattern[:-1])
    return text == pattern


def _applies(rule: Mapping[str, str], outcome: AttemptEnd) -> bool:
    texts = {
        "onExitCode": "" if outcome.exit_code is None else str(outcome.exit_code),
        "onReason": outcome.reason,
        "onStatusReason": outcome.status_reason,
    }
    return all(matches(rule[key], text) for key, text in texts.items() if key in rule)


def retries(strategy: Mapping[str, Any], outcome: AttemptEnd, *, attempt: int) -> bool:
    """Return whether to retry after ``attempt`` (counted from 1) had this outcome."""
    if outcome.exit_code == 0 or attempt >= int(strategy.get("attempts", 1)):
        return False
    rules: Sequence[Mapping[str, str]] = strategy.get("evaluateOnExit", ())
    for rule in rules:
        if _applies(rule, outcome):
            return rule["action"].lower() == "retry"
    return True


class CloudWatchStream:
    """A node's log stream, named as the awslogs driver names it and written while the node runs."""

    def __init__(self, *, place: AccountRegion, group: str, stream: str):
        self._backend = logs_backends[place.account_id][place.region]
        self._group = group
        self.name = stream
        with _LOCK:
            self._backend.create_log_stream(group, stream)

    def write(self, line: str) -> None:
        """Append one line immediately."""
        event = {"timestamp": int(time.time() * 1000), "message": line}
        with _LOCK:
            self._backend.put_log_events(self._group, self.name, [event])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings for running nodes, shared by all jobs of a server."""

    endpoint: str
    processes_per_node: int
    processes_of: Mapping[str, int] = field(default_factory=dict)
    """Processes per node for individual workloads, by their tag."""
    addresses: str
    """The first three octets of the nodes' loopback addresses."""
    stop_timeout_s: float
    runnable_clock: float
    """Divisor of the queue's RUNNABLE time limit."""
    engine: Engine | None = None
    niceness: int = 0
    """Niceness of the nodes' processes, so that servers and commands stay responsive."""
    lustre: Path | None = None
    """Folder in place of the deployment's file system; None keeps the job's own path."""
    index: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that configure pip's package index on this machine."""


class Gang:
    """The nodes of a job, and its attempts."""

    def __init__(
        self,
        job: BatchJob,
        *,
        settings: NodeSettings,
        place: AccountRegion,
        compute_environment: str,
        fault: NodeFault | None,
        first_address: int = 0,
    ):
        self._job = job
        self._settings = settings
        self._place = place
        self._compute_environment = compute_environment
        self._fault = fault
        self._first_address = first_address
        self._host_lost = False
        self._nodes: dict[int, NodeProcess] = {}

    def kill(self) -> None:
        """Kill all nodes, including those that are still stopping."""
        for node in list(self._nodes.values()):
            node.send(signal.SIGKILL)

    def leftovers(self) -> list[str]:
        """Describe leftovers of the nodes on this machine."""
        return [text for node in list(self._nodes.values()) for text in node.leftovers()]

    def run(self) -> None:
        """Run attempts until the job has ended."""
        job = self._job
        while True:
            outcome, final = self._attempt()
            number = len(job.attempts)
            if final or outcome.exit_code == 0:
                break
            if not retries(job.retry_strategy, outcome, attempt=number):
                break
            self._set_status("RUNNABLE", outcome.status_reason)
        self._set_status("SUCCEEDED" if outcome.exit_code == 0 else "FAILED", outcome.status_reason)

    def _set_status(self, status: str, reason: str = "") -> None:
        job = self._job
        job.status, job.status_reason = status, reason
        if not job.is_active:
            job.stopped_at = now_ms()
        emit("job-status", job_id=job.job_id, status=status, reason=reason)

    def _attempt(self) -> tuple[AttemptEnd, bool]:
        """Run one attempt; return the main node's outcome, and whether it rules out a retry."""
        job = self._job
        job.attempts.append([None] * job.num_nodes)
        number = len(job.attempts)
        self._set_status("STARTING")
        self._nodes, self._host_lost = {}, False
        self._start(job.main_index)
        job.started_at = now_ms()
        self._set_status("RUNNING")
        started = time.monotonic()
        injection = threading.Thread(target=self._inject, args=(number,), daemon=True)
        injection.start()
        waiting = [index for index in range(job.num_nodes) if index != job.main_index]
        final, status_reason = False, CONTAINER_EXITED
        while self._nodes[job.main_index].exit_code() is None:
            self._record_exits()
            if waiting and time.monotonic() - started > CHILD_DELAY_S:
                self._start(waiting.pop(0))
            elif job.terminate_reason is not None:
                final, status_reason = True, job.terminate_reason
                self._stop_all()
            elif job.timeout_s is not None and time.monotonic() - started > job.timeout_s:
                final, status_reason = True, TIMED_OUT
                self._stop_all()
            else:
                time.sleep(0.05)
        # A termination request may arrive between the last check and the main node's exit.
        if job.terminate_reason is not None:
            final, status_reason = True, job.terminate_reason
        self._record_exits()
        self._stop_all()
        for node in self._nodes.values():
            node.finish()
        main = job.attempts[-1][job.main_index]
        assert main is not None
        if self._host_lost and not final:
            status_reason = HOST_LOST
        main.status_reason = status_reason
        return AttemptEnd(exit_code=main.exit_code, status_reason=status_reason), final

    def _start(self, index: int) -> None:
        job = self._job
        number = len(job.attempts)
        container = job.container(index)
        place = NodePlace(
            job_id=job.job_id,
            attempt=number,
            index=index,
            num_nodes=job.num_nodes,
            main_index=job.main_index,
            queue=job.queue_arn.rpartition("/")[2],
            compute_environment=self._compute_environment,
        )
        settings = self._settings
        given = from_pairs(container.get("environment", ()))
        address = node_address(settings.addresses, self._first_address + index)
        extras = rehearsal_extras(
            endpoint=settings.endpoint,
            processes_per_node=self._processes(),
            address=address,
            device=device_variables(given, in_container=settings.engine is not None),
        )
        if contract.ENV_LUSTRE in given and settings.lustre is not None:
            # Mounting is not possible here.
            settings.lustre.mkdir(parents=True, exist_ok=True)
            extras[contract.ENV_LUSTRE] = str(settings.lustre)
        if job.tags.get(contract.TAG_WORKLOAD) == contract.WHEELS and settings.engine is None:
            # Unlike AWS's network, this machine may need these settings to reach the index.
            extras |= settings.index
        main_address = node_address(settings.addresses, self._first_address + job.main_index)
        environment = {
            **given,
            **job.environment(place, main_address=main_address),
            **extras,
        }
        fault = self._fault if number == 1 else None
        stream = self._open_stream(container)
        node = NodeProcess(
            command=container["command"],
            environment=environment,
            stream=stream,
            engine=settings.engine,
            open_files=fault.open_files(index) if fault else None,
            niceness=settings.niceness,
        )
        job.attempts[-1][index] = NodeRecord(log_stream=stream.name, started_at=now_ms())
        self._nodes[index] = node
        emit(
            "node-started",
            job_id=job.job_id,
            run=job.name,
            attempt=number,
            node=index,
            pid=node.pid,
            address=address,
            command=container["command"],
            environment=extras,
        )

    def _processes(self) -> int:
        """Return the worker processes per node for the workload; one for a single-container job."""
        if not isinstance(self._job, MultiNodeJob):
            return 1
        workload = self._job.tags.get(contract.TAG_WORKLOAD, "")
        return self._settings.processes_of.get(workload, self._settings.processes_per_node)

    def _open_stream(self, container: dict[str, Any]) -> CloudWatchStream:
        options = container["logConfiguration"]["options"]
        name = f"{options['awslogs-stream-prefix']}/default/{uuid.uuid4().hex}"
        return CloudWatchStream(place=self._place, group=options["awslogs-group"], stream=name)

    def _record_exits(self) -> None:
        """Record the nodes that have exited."""
        job = self._job
        for index, node in self._nodes.items():
            record = job.attempts[-1][index]
            code = node.exit_code()
            if record is None or record.stopped_at is not None or code is None:
                continue
            record.exit_code, record.stopped_at = code, now_ms()
            record.status_reason = CONTAINER_EXITED
            emit(
                "node-ended",
                job_id=job.job_id,
                attempt=len(job.attempts),
                node=index,
                exit_code=code,
                reason=record.status_reason,
            )

    def _stop_all(self) -> None:
        """Stop all nodes in parallel, as the agents of their hosts do."""
        threads = [
            threading.Thread(target=node.stop, args=(self._settings.stop_timeout_s,))
            for node in self._nodes.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._record_exits()

    def _record_host_loss(self) -> None:
        """Record a lost host before the signal, because the main node's exit is handled at once."""
        assert self._fault is not None
        self._host_lost = self._fault.loses_main

    def _inject(self, number: int) -> None:
        if self._fault is None or number != 1:
            return
        detail = self._fault.inject(
            self._nodes, main_index=self._job.main_index, before=self._record_host_loss
        )
        if detail is not None:
            emit("fault-injected", job_id=self._job.job_id, attempt=number,
                 kind=self._fault.kind, detail=detail)  # fmt: skip
