"""The launcher's life on one node: join, watch, decide or be told, finish.

One thread and one loop. Every turn polls the link for at most ``_TICK_S``, sends the guardian a
heartbeat and looks at the workers, so silence of this process always means that it is frozen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from training.core.arguments import LaunchParameters
from training.core.contract import NodeContract
from training.launcher.guardian import Guardian
from training.launcher.messages import Start, hello
from training.launcher.node import LocalNode, Shutdown
from training.launcher.peers import Event, Heard, Hub, Lost, Spoke
from training.launcher.signs import Lookout, StartedSign, likely_causes
from training.launcher.verdict import (
    MAX_WAIT_FOR_CAUSE_S,
    Board,
    Verdict,
    better,
    out_of_time,
    told_to_stop,
)
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.typed_json import typed

_TICK_S = 0.1
_CLOSING_S = 5.0
"""Time for nodes to kill their workers and say goodbye."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StopRequest:
    """Counts SIGTERM and SIGINT; the handler does nothing else."""

    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherContext:
    """The collaborators of a launcher, whichever its role."""

    node: NodeContract
    parameters: LaunchParameters
    local: LocalNode
    guardian: Guardian
    stop: StopRequest


class _Role:
    """The common part of the main node and children."""

    def __init__(self, context: LauncherContext) -> None:
        self._context = context
        self._node = context.node
        self._stop_reported = False
        self._is_alone = False
        """True once a connection to another node is lost."""

    def _own_verdict(self) -> Verdict | None:
        """Judge this node's current state; a request to stop is reported once."""
        if self._context.stop.count and not self._stop_reported:
            self._stop_reported = True
            return told_to_stop(self._node)
        return self._context.local.look(time.monotonic())

    def _end_workers(self, decision: Verdict, turn: Callable[[], None]) -> None:
        """Let the workers finish where that makes sense, then kill what is left."""
        stop, requests = self._context.stop, max(self._context.stop.count, 1)
        shutdown = Shutdown(
            grace_s=self._context.parameters.stop_grace_s,
            turn=turn,
            heartbeat=self._context.guardian.heartbeat,
            is_alone=lambda: self._is_alone,
            is_urgent=lambda: stop.count > requests,
        )
        self._context.local.end(decision, shutdown)


class _JoinTimeouts:
    """The time limits for the main node to wait for its children.

    All hosts are up before Batch starts the main node, and children start and pull the same image
    at about the same time: once one has joined, the others cannot be far behind. Until then they
    may still be pulling the image, unless a child has started and cannot get through.
    """

    def __init__(self, parameters: LaunchParameters, now_s: float) -> None:
        self._parameters = parameters
        self._join_s = now_s + parameters.join_timeout_s
        self._first_child_s = float("inf")
        self._evidence = ""
        self._straggler_s = float("inf")

    def no_child_joined(self, evidence: str | None, now_s: float) -> None:
        """Shorten the wait for the first child on ``evidence`` that it cannot join."""
        if evidence is None:
            self._first_child_s = float("inf")
        else:
            limit_s = now_s + self._parameters.first_child_timeout_s
            self._first_child_s, self._evidence = min(self._first_child_s, limit_s), evidence

    def some_child_joined(self, now_s: float) -> None:
        """Shorten the wait for the others once the first child has joined."""
        self._first_child_s = float("inf")
        self._straggler_s = min(self._straggler_s, now_s + self._parameters.straggler_timeout_s)

    def exhausted(self, now_s: float) -> str | None:
        """Name the expired limit, or None."""
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
    """The node whose exit status is the job's: it collects verdicts and decides."""

    def run(self, hub: Hub, problem: Verdict | None, rendezvous_port: int) -> Verdict:
        """Take part in the job until it is decided; returns the decision."""
        board = Board(
            num_nodes=self._node.num_nodes,
            wait_s=min(MAX_WAIT_FOR_CAUSE_S, self._context.parameters.peer_timeout_s),
            peer_timeout_s=self._context.parameters.peer_timeout_s,
        )
        joined = {self._node.node_index}
        limit_s = self._node.time_limit_s
        last_s = float("inf") if limit_s is None else time.monotonic() + limit_s
        if problem is not None:
            board.report(self._node.node_index, problem, time.monotonic())
        timeouts = _JoinTimeouts(self._context.parameters, time.monotonic())
        lookout = Lookout(self._node)
        local = self._context.local
        self._observer = observer = local.observer(time.monotonic())
        started = went = False
        wait_s = 0.0  # a single-node job has nobody to wait for
        while True:
            for event in hub.poll(wait_s):
                self._note(event, board, joined)
            wait_s = _TICK_S
            self._context.guardian.heartbeat()
            now = time.monotonic()
            own = self._own_verdict()
            if own is not None:
                board.report(self._node.node_index, own, now)
            if limit_s is not None and now > last_s:
                board.report(self._node.node_index, out_of_time(self._node, limit_s), now)
            board.all_joined = len(joined) == self._node.num_nodes
            if len(joined) > 1:
                timeouts.some_child_joined(now)
                lookout.end()
            elif not board.all_joined:
                lookout.turn(now)
                timeouts.no_child_joined(lookout.evidence, now)
            if not board.all_joined and (limit := timeouts.exhausted(now)):
                board.report(self._node.node_index, self._absent(joined, limit), now)
            for message in local.news(now):
                observer.note(self._node.node_index, message, now)
            if started and (hang := observer.verdict(now)):
                board.report(self._node.node_index, hang, now)
            if started and not went and observer.all_prepared and not board.verdicts:
                went = True
                observer.went(now)
                hub.broadcast({"type": "go"})
                local.go()
            decision = board.decision(now, heard_s=hub.heard_s)
            if decision is not None:
                break
            if board.all_joined and not started and not board.verdicts:
                started = True
                observer.begin(now)
                if self._node.num_nodes > 1:
                    log.info("launch: all %d nodes are here", self._node.num_nodes)
                hub.broadcast({"type": "start", **asdict(Start(port=rendezvous_port))})
                local.start(rendezvous_port)
        decision = observer.explained(decision)
        self._finish(hub, decision)
        return decision

    def _note(self, event: Event, board: Board, joined: set[int]) -> None:
        now = time.monotonic()
        if isinstance(event, Lost):
            self._is_alone = True
            reason = f"node {event.node} was lost: {event.how}"
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

    def _absent(self, joined: set[int], limit: str) -> Verdict:
        absent = sorted(set(range(self._node.num_nodes)) - joined)
        nodes = f"node {absent[0]}" if len(absent) == 1 else f"nodes {absent}"
        return Verdict(
            code=ExitCode.PREFLIGHT,
            reason=(
                f"{nodes} did not join within {limit}; the log of that node, if there is one, "
                f"tells more; {likely_causes(self._node)}"
            ),
        )

    def _finish(self, hub: Hub, decision: Verdict) -> None:
        """Tell all nodes, end this one, and exit last: Batch stops children when main exits."""
        stop = {"type": "stop", **asdict(decision)}
        hub.broadcast(stop)

        def turn() -> None:
            for event in hub.poll(_TICK_S):
                if isinstance(event, Lost):
                    self._is_alone = True
                    continue
                if event.node not in hub.members:
                    continue
                if event.message["type"] == "ended":
                    hub.dismiss(event.node)
                elif event.message["type"] == "hello":  # late, and told at once
                    hub.send(event.node, stop)
            self._context.guardian.heartbeat()

        grace_s = self._context.parameters.stop_grace_s if decision.graceful else 0.0
        # The children's grace period has begun as well; a second one would outlast the time
        # that ECS and the kubelet give this process.
        grace_ends_s = time.monotonic() + grace_s
        self._end_workers(decision, turn)
        deadline = max(time.monotonic(), grace_ends_s) + _CLOSING_S
        while hub.members and time.monotonic() < deadline:
            turn()
        hub.close()


class ChildRole(_Role):
    """A node that reports and obeys; it decides alone only when the main node is lost."""

    def run(self, spoke: Spoke, problem: Verdict | None) -> Verdict:
        """Take part in the job until it is decided; returns the decision."""
        decision, events = self._join(spoke, problem)
        sent: Verdict | None = None
        while decision is None:
            for event in events:
                decision = decision or self._note(event, sent)
            self._context.guardian.heartbeat()
            own = self._own_verdict()
            if own is not None and better(sent, own) is not sent:
                sent = own
                spoke.send({"type": "verdict", **asdict(own)})
            for message in self._context.local.news(time.monotonic()):
                spoke.send(message)
            events = spoke.poll(_TICK_S)

        def turn() -> None:
            if any(isinstance(event, Lost) for event in spoke.poll(_TICK_S)):
                self._is_alone = True
            self._context.guardian.heartbeat()

        self._end_workers(decision, turn)
        spoke.send({"type": "ended"})
        spoke.close()
        return decision

    def _join(
        self, spoke: Spoke, problem: Verdict | None
    ) -> tuple[Verdict | None, Sequence[Event]]:
        """Reach the main node; returns a verdict if that fails, and any events received so far."""
        deadline = time.monotonic() + self._context.parameters.join_timeout_s
        first = hello(self._node, problem)
        sign = StartedSign(self._node)
        while (now := time.monotonic()) < deadline:
            self._context.guardian.heartbeat()
            sign.turn(now)
            if self._context.stop.count:
                return told_to_stop(self._node), ()
            if not spoke.connected and not spoke.connect(first, 0.5):
                time.sleep(_TICK_S)  # Batch starts children in any order, and main may lag
                continue
            events = spoke.poll(_TICK_S)
            if any(isinstance(e, Heard) and e.message["type"] == "welcome" for e in events):
                sign.end()
                return None, events
            if not spoke.connected:  # rejected, perhaps by an earlier attempt's main node
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
        if isinstance(event, Lost):
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
        return None
