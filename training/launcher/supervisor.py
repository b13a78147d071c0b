"""The launcher's main loop on one node: join, watch, decide or receive the verdict, finish.

A single thread runs one loop. Every iteration polls the link for at most ``_TICK_S``, sends the
guardian a heartbeat and checks the workers, so silence always means that this process is frozen.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from training.core.arguments import LaunchParameters
from training.core.contract import NodeContract
from training.launcher.attempts import AttemptRecorder
from training.launcher.bucket_records import JoinDiagnostics, StartedRecord, likely_causes
from training.launcher.guardian import Guardian
from training.launcher.messages import Start, hello
from training.launcher.node import GracePeriod, Shutdown, StopRequest, WorkerNode
from training.launcher.peers import Event, Hub, PeerLoss, PeerMessage, Spoke
from training.launcher.verdict import (
    MAX_WAIT_FOR_CAUSE_S,
    Verdict,
    VerdictCollector,
    better,
    block_ends,
    join_first,
    out_of_time,
    stop_requested,
)
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.typed_json import typed

_TICK_S = 0.1
_CLOSING_S = 5.0
"""Time for nodes to kill their workers and disconnect."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherContext:
    """The collaborators of a launcher in either role."""

    node: NodeContract
    parameters: LaunchParameters
    local: WorkerNode
    guardian: Guardian
    stop: StopRequest
    recorder: AttemptRecorder


class _Role:
    """The behavior that the main node and children share."""

    def __init__(self, context: LauncherContext) -> None:
        self._context = context
        self._node = context.node
        self._stop_reported = False
        self._lost_peer = False
        """True once a connection to another node is lost."""
        self._period: GracePeriod | None = None
        """The workers' grace period, once the job is decided."""

    def _own_verdict(self) -> Verdict | None:
        """Judge this node's current state; report a stop request once."""
        if self._context.stop.count and not self._stop_reported:
            self._stop_reported = True
            return stop_requested(self._node)
        return self._context.local.poll(time.monotonic())

    def _end_workers(self, decision: Verdict, turn: Callable[[], None]) -> GracePeriod:
        """Let the workers finish if possible, then kill remaining processes."""
        stop, requests = self._context.stop, max(self._context.stop.count, 1)
        stop_grace_s = self._context.parameters.stop_grace_s
        length_s = stop_grace_s if decision.grace_s is None else decision.grace_s
        self._period = period = GracePeriod(length_s, stop, stop_grace_s=stop_grace_s)
        shutdown = Shutdown(
            period=period,
            turn=turn,
            heartbeat=self._context.guardian.heartbeat,
            is_alone=lambda: self._lost_peer,
            is_urgent=lambda: stop.count > requests,
        )
        self._context.local.end(decision, shutdown)
        return period


class _JoinTimeouts:
    """The main node's time limits for its children to join.

    All hosts are up before Batch starts the main node, and children start and pull the same image
    at about the same time: once one has joined, the rest should follow soon. Until then they may
    still be pulling the image, unless a child has started but cannot connect.
    """

    def __init__(self, parameters: LaunchParameters, now_s: float) -> None:
        self._parameters = parameters
        self._join_s = now_s + parameters.join_timeout_s
        self._first_child_s = float("inf")
        self._evidence = ""
        self._straggler_s = float("inf")

    def no_child_joined(self, evidence: str | None, now_s: float) -> None:
        """Shorten the wait for the first child while there is ``evidence`` that it cannot join."""
        if evidence is None:
            self._first_child_s = float("inf")
        else:
            limit_s = now_s + self._parameters.first_child_timeout_s
            self._first_child_s, self._evidence = min(self._first_child_s, limit_s), evidence

    def some_child_joined(self, now_s: float) -> None:
        """Shorten the wait for the remaining children once the first has joined."""
        self._first_child_s = float("inf")
        self._straggler_s = min(self._straggler_s, now_s + self._parameters.straggler_timeout_s)

    def exhausted(self, now_s: float) -> str | None:
        """Return the expired limit with its parameter; None if no limit has expired."""
        if now_s > self._straggler_s:
            limit_s = self._parameters.straggler_timeout_s
            return f"{limit_s:g} s of the first one (straggler-timeout-s)"
        if now_s > self._first_child_s:
            limit_s = self._parameters.first_child_timeout_s
            return f"{limit_s:g} s (first-child-timeout-s), and {self._evidence}"
        if now_s > self._join_s:
            return f"{self._parameters.join_timeout_s:g} s (join-timeout-s)"
        return None


class MainRole(_Role):
    """The node that collects verdicts and decides; its exit code is the job's."""

    def run(self, hub: Hub, problem: Verdict | None, rendezvous_port: int) -> Verdict:
        """Run the job until it is decided; return the decision."""
        board = VerdictCollector(
            num_nodes=self._node.num_nodes,
            wait_s=min(MAX_WAIT_FOR_CAUSE_S, self._context.parameters.peer_timeout_s),
            peer_timeout_s=self._context.parameters.peer_timeout_s,
        )
        joined = {self._node.node_index}
        limit_s = self._node.time_limit_s
        time_limit_ends_s = float("inf") if limit_s is None else time.monotonic() + limit_s
        if problem is not None:
            board.report(self._node.node_index, problem, time.monotonic())
        timeouts = _JoinTimeouts(self._context.parameters, time.monotonic())
        join_diagnostics = JoinDiagnostics(self._node)
        local = self._context.local
        self._observer = observer = local.observer(time.monotonic())
        started = program_started = False
        wait_s = 0.0  # a single-node job has no peers to wait for
        while True:
            for event in hub.poll(wait_s):
                self._note(event, board, joined)
                self._answer(hub, event)
            wait_s = _TICK_S
            self._context.guardian.heartbeat()
            now = time.monotonic()
            own = self._own_verdict()
            if own is not None:
                board.report(self._node.node_index, own, now)
            if limit_s is not None and now > time_limit_ends_s:
                board.report(self._node.node_index, out_of_time(self._node, limit_s), now)
            if self._node.stop_at_s is not None and time.time() >= self._node.stop_at_s:
                board.report(self._node.node_index, block_ends(self._node), now)
            board.all_joined = len(joined) == self._node.num_nodes
            if len(joined) > 1:
                timeouts.some_child_joined(now)
                join_diagnostics.end()
            elif not board.all_joined:
                join_diagnostics.turn(now)
                timeouts.no_child_joined(join_diagnostics.evidence, now)
            if not board.all_joined and (limit := timeouts.exhausted(now)):
                board.report(self._node.node_index, self._absence_verdict(joined, limit), now)
            for message in local.news(now):
                observer.note(self._node.node_index, message, now)
            for message in local.mail():
                hub.broadcast(message)
            if started and (hang := observer.verdict(now)):
                board.report(self._node.node_index, hang, now)
            if started and not program_started and observer.all_prepared and not board.verdicts:
                program_started = True
                observer.program_started(now)
                hub.broadcast({"type": "go"})
                local.go()
            last_received_s = hub.last_received_s if board.verdicts else float("inf")
            decision = board.decision(now, oldest_contact_s=last_received_s)
            if decision is not None:
                break
            if board.all_joined and not started and not board.verdicts:
                started = True
                observer.begin(now)
                self._context.recorder.joined()
                if self._node.num_nodes > 1:
                    log.info("launch: all %d nodes joined", self._node.num_nodes)
                hub.broadcast({"type": "start", **asdict(Start(port=rendezvous_port))})
                local.start(rendezvous_port)
        decision = observer.explained(decision)
        self._finish(hub, decision)
        self._context.recorder.steps = local.steps_completed
        return decision

    def _note(self, event: Event, board: VerdictCollector, joined: set[int]) -> None:
        now = time.monotonic()
        if isinstance(event, PeerLoss):
            self._lost_peer = True
            reason = f"node {event.node} was lost: {event.how}"
            self._context.recorder.lose(event.node, event.how)
            board.lose(event.node, Verdict(code=ExitCode.HOST, reason=reason), now)
            return
        message = event.message
        if message["type"] == "hello":
            joined.add(event.node)
            if message["problem"]:
                board.report(event.node, typed(message["problem"], Verdict), now)
        elif message["type"] == "verdict":
            board.report(event.node, typed(message, Verdict), now)
        else:
            self._observer.note(event.node, message, now)

    def _answer(self, hub: Hub, event: Event) -> None:
        if isinstance(event, PeerMessage):
            answer = self._context.local.receive(event.node, event.message)
            if answer is not None:
                hub.send(event.node, answer)

    def _absence_verdict(self, joined: set[int], limit: str) -> Verdict:
        absent = sorted(set(range(self._node.num_nodes)) - joined)
        noun = "node" if len(absent) == 1 else "nodes"
        logs = (
            "see its log, if there is one, for"
            if len(absent) == 1
            else "see their logs, if there are any, for"
        )
        nodes = f"{noun} {join_first([str(index) for index in absent], ', ')}"
        return Verdict(
            code=ExitCode.PREFLIGHT,
            reason=(
                f"{nodes} did not join within {limit}; {logs} details; {likely_causes(self._node)}"
            ),
        )

    def _finish(self, hub: Hub, decision: Verdict) -> None:
        """Send the verdict to all nodes, stop this one, and wait for them.

        The main node exits last, because Batch stops the children once the main node exits.
        """
        stop = {"type": "stop", **asdict(decision)}
        hub.broadcast(stop)
        may_shorten = decision.grace_s is not None

        def turn() -> None:
            nonlocal may_shorten
            if self._context.stop.count and may_shorten:
                # This host and the link will disappear before the Capacity Block ends.
                may_shorten = False
                hub.broadcast(stop)
            for event in hub.poll(_TICK_S):
                if isinstance(event, PeerLoss):
                    self._lost_peer = True
                    continue
                if event.node not in hub.members:
                    continue
                self._answer(hub, event)
                if event.message["type"] == "ended":
                    hub.dismiss(event.node)
                elif event.message["type"] == "hello":  # it joined late
                    hub.send(event.node, stop)
            for message in self._context.local.mail():
                hub.broadcast(message)
            self._context.guardian.heartbeat()

        # Wait for the children within the same grace period: a second one would exceed the time
        # that ECS and the kubelet allow this process.
        period = self._end_workers(decision, turn)
        ended_s = time.monotonic()
        while hub.members:
            grace_ends_s = period.ends_s() if decision.graceful else ended_s
            if time.monotonic() >= max(ended_s, grace_ends_s) + _CLOSING_S:
                break
            turn()
        hub.close()


class ChildRole(_Role):
    """A node that reports to the main node and follows its decision, unless that node is lost."""

    def run(self, spoke: Spoke, problem: Verdict | None) -> Verdict:
        """Run the job until it is decided; return the decision."""
        local = self._context.local
        decision, first = self._join(spoke, problem)
        events = deque(first)
        sent: Verdict | None = None
        while decision is None:
            while events and decision is None:
                decision = self._note(events.popleft(), sent)
            if decision is not None:
                break  # ``turn`` reads the remaining events
            self._context.guardian.heartbeat()
            own = self._own_verdict()
            if own is not None and better(sent, own) is not sent:
                sent = own
                spoke.send({"type": "verdict", **asdict(own)})
            for message in (*local.news(time.monotonic()), *local.mail()):
                spoke.send(message)
            events.extend(spoke.poll(_TICK_S))

        def turn() -> None:
            events.extend(spoke.poll(_TICK_S))
            while events:
                event = events.popleft()
                if isinstance(event, PeerLoss):
                    self._lost_peer = True
                    continue
                if event.message["type"] == "stop" and self._period is not None:
                    self._period.shorten()
                local.receive(event.node, event.message)
            for message in local.mail():
                spoke.send(message)
            self._context.guardian.heartbeat()

        self._end_workers(decision, turn)
        spoke.send({"type": "ended"})
        spoke.close()
        return decision

    def _join(
        self, spoke: Spoke, problem: Verdict | None
    ) -> tuple[Verdict | None, Sequence[Event]]:
        """Join the main node; return a verdict on failure, and the events received so far."""
        deadline = time.monotonic() + self._context.parameters.join_timeout_s
        first = hello(self._node, problem)
        record = StartedRecord(self._node)
        while (now := time.monotonic()) < deadline:
            self._context.guardian.heartbeat()
            record.turn(now)
            if self._context.stop.count:
                return stop_requested(self._node), ()
            if not spoke.connected and not spoke.connect(first, 0.5):
                time.sleep(_TICK_S)  # the main node may not be listening yet
                continue
            events = spoke.poll(_TICK_S)
            if any(isinstance(e, PeerMessage) and e.message["type"] == "welcome" for e in events):
                record.end()
                return None, events
            if not spoke.connected:  # rejected, perhaps by the main node of an earlier attempt
                time.sleep(_TICK_S * 5)
        unreachable = Verdict(
            code=ExitCode.PREFLIGHT,
            reason=(
                f"node {self._node.node_index}: could not join the main node at "
                f"{self._node.main_address} within {self._context.parameters.join_timeout_s:g} s "
                f"(join-timeout-s): {spoke.last_error}; {likely_causes(self._node)}"
            ),
        )
        return unreachable, ()

    def _note(self, event: Event, sent: Verdict | None) -> Verdict | None:
        if isinstance(event, PeerLoss):
            lost = Verdict(code=ExitCode.HOST, reason=f"the main node was lost: {event.how}")
            if sent is None or sent.code is ExitCode.OK or sent.weak:
                return lost
            return better(sent, lost)
        message = event.message
        if message["type"] == "start":
            self._context.local.start(typed(message, Start).port)
        elif message["type"] == "go":
            self._context.local.go()
        elif message["type"] == "stop":
            return typed(message, Verdict)
        else:
            self._context.local.receive(event.node, message)
        return None
