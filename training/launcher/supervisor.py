"""The launcher's life on one node: join, watch, decide or be told, finish.

One thread and one loop. Every turn polls the link for at most ``_TICK_S``, sends the guardian a
heartbeat and looks at the workers, so silence of this process always means that it is frozen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.core.arguments import LaunchParameters
from training.core.contract import NodeContract
from training.launcher.evidence import Evidence
from training.launcher.guardian import Guardian
from training.launcher.hangs import JobWatch, Left
from training.launcher.node import LocalNode
from training.launcher.peers import Event, Heard, Hub, Lost, Message, Spoke, hello
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

if TYPE_CHECKING:
    from training.launcher.program import ProgramNode

_TICK_S = 0.1
_BETWEEN_MOVES_S = 1.0
"""Least time between two messages of a child that its program goes on."""
_CLOSING_S = 5.0
"""Time for nodes to kill their workers and say goodbye."""
_SNAPSHOT_AT_MOST_S = 30.0
"""Part of the grace that is left for the last snapshot of a program's files."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StopRequest:
    """Counts SIGTERM and SIGINT; the handler does nothing else."""

    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The collaborators of a launcher, whichever its role."""

    node: NodeContract
    parameters: LaunchParameters
    local: LocalNode
    guardian: Guardian
    stop: StopRequest
    start_workers: Callable[[int], None]
    """Starts the workers, given the rendezvous port."""
    program: ProgramNode | None = None
    """``local`` again, if its workers run a user's own program."""


class _Role:
    """The common part of the main node and children."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._node = tools.node
        self._stop_reported = False
        self._told_prepared = self._told_left = self._told_compiling = False
        self._told_moved_s = float("-inf")
        self._is_alone = False
        """True once a connection to another node is lost."""

    def _own_verdict(self) -> Verdict | None:
        """Judge this node's current state; a request to stop is reported once."""
        if self._tools.stop.count and not self._stop_reported:
            self._stop_reported = True
            return told_to_stop(self._node)
        return self._tools.local.look(time.monotonic())

    def _program_messages(self, program: ProgramNode, now: float) -> Iterator[Message]:
        """Tell what the main node must know of a program here, each thing once."""
        if program.prepared and not self._told_prepared:
            self._told_prepared = True
            yield {"type": "prepared"}
        if program.moved(now) and now - self._told_moved_s >= _BETWEEN_MOVES_S:
            self._told_moved_s = now
            yield {"type": "moved", "doing": program.doing}
        if program.compiling != self._told_compiling:
            self._told_compiling = program.compiling
            yield {"type": "compiling", "going_on": program.compiling}
        if program.left is not None and not self._told_left:
            self._told_left = True
            yield {"type": "left", **program.left.to_message()}
        if (evidence := program.news_of_silence(now)) is not None:
            yield {"type": "seen", **evidence.to_message()}

    def _end_workers(self, decision: Verdict, turn: Callable[[], None]) -> None:
        """Let the workers finish where that makes sense, then kill what is left."""
        requests = self._tools.stop.count
        program, grace_s = self._tools.program, self._tools.parameters.stop_grace_s
        ends_s = time.monotonic() + grace_s
        # On a cluster the pods of a lost one's job are told to stop. No snapshot of all nodes can
        # come of that, and the next attempt waits for this one's end.
        graceful = decision.graceful and not (program is not None and self._is_alone)
        if graceful and self._tools.local.running:
            if program is not None:
                # The last snapshot comes after the workers, and in the same time.
                grace_s -= min(_SNAPSHOT_AT_MOST_S, grace_s / 3)
            log.info("launch: SIGTERM to the workers; %g s to finish", grace_s)
            self._tools.local.send_sigterm()
            deadline = time.monotonic() + grace_s
            # A second request means to stop at once.
            while (
                self._tools.local.running
                and time.monotonic() < deadline
                and self._tools.stop.count <= max(requests, 1)
                and not (program is not None and self._is_alone)
            ):
                turn()
            if program is not None and self._tools.local.running:
                log.info(
                    "launch: node %d: the program still runs %g s after SIGTERM and is killed; "
                    "its last snapshot has what it had written",
                    *(self._node.node_index, grace_s),
                )
                program.kill_workers()
        if program is not None and decision.code is not ExitCode.OK:
            program.close(decision, ends_s, turn, is_alone=lambda: self._is_alone)
        self._tools.local.kill(self._tools.guardian.heartbeat)


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
            wait_s=min(MAX_WAIT_FOR_CAUSE_S, self._tools.parameters.peer_timeout_s),
            peer_timeout_s=self._tools.parameters.peer_timeout_s,
        )
        joined = {self._node.node_index}
        limit_s = self._node.time_limit_s
        last_s = float("inf") if limit_s is None else time.monotonic() + limit_s
        if problem is not None:
            board.report(self._node.node_index, problem, time.monotonic())
        timeouts = _JoinTimeouts(self._tools.parameters, time.monotonic())
        lookout = Lookout(self._node)
        self._watch = JobWatch(
            self._node, hang_limit_s=self._tools.parameters.hang_limit_s, now_s=time.monotonic()
        )
        started = went = False
        wait_s = 0.0  # a single-node job has nobody to wait for
        while True:
            for event in hub.poll(wait_s):
                self._note(event, board, joined)
            wait_s = _TICK_S
            self._tools.guardian.heartbeat()
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
            if self._tools.program is not None:
                self._look_at_program(self._tools.program, now)
                if started and (hang := self._watch.verdict(now)):
                    board.report(self._node.node_index, hang, now)
                if started and not went and self._watch.all_prepared and not board.verdicts:
                    went = True
                    self._watch.went(now)
                    hub.broadcast({"type": "go"})
                    self._tools.program.go()
            decision = board.decision(now, heard_s=hub.heard_s)
            if decision is not None:
                break
            if board.all_joined and not started and not board.verdicts:
                started = True
                self._watch.begin(now)
                if self._node.num_nodes > 1:
                    log.info("launch: all %d nodes are here", self._node.num_nodes)
                hub.broadcast({"type": "start", "port": rendezvous_port})
                self._tools.start_workers(rendezvous_port)
        if self._tools.program is not None:
            decision = self._watch.explained(decision)
        self._finish(hub, decision)
        return decision

    def _look_at_program(self, program: ProgramNode, now: float) -> None:
        """Note what this node's own part of a program does."""
        for message in self._program_messages(program, now):
            self._note_program(self._node.node_index, message, now)

    def _note_program(self, node: int, message: Message, now: float) -> None:
        match message["type"]:
            case "prepared":
                self._watch.prepared(node, now)
            case "moved":
                self._watch.moved(node, str(message["doing"]), now)
            case "compiling":
                self._watch.compiling(node, bool(message["going_on"]), now)
            case "left":
                self._watch.left(node, Left.from_message(message), now)
            case "seen":
                self._watch.seen(node, Evidence.from_message(message))

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
            if message.get("problem"):
                board.report(event.node, Verdict.from_message(message["problem"]), now)
        elif message["type"] == "verdict":
            board.report(event.node, Verdict.from_message(message), now)
        else:
            self._note_program(event.node, message, now)

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
        stop = {"type": "stop", **decision.to_message()}
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
            self._tools.guardian.heartbeat()

        grace_s = self._tools.parameters.stop_grace_s if decision.graceful else 0.0
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
            self._tools.guardian.heartbeat()
            own = self._own_verdict()
            if own is not None and better(sent, own) is not sent:
                sent = own
                spoke.send({"type": "verdict", **own.to_message()})
            if self._tools.program is not None:
                for message in self._program_messages(self._tools.program, time.monotonic()):
                    spoke.send(message)
            events = spoke.poll(_TICK_S)

        def turn() -> None:
            if any(isinstance(event, Lost) for event in spoke.poll(_TICK_S)):
                self._is_alone = True
            self._tools.guardian.heartbeat()

        self._end_workers(decision, turn)
        spoke.send({"type": "ended"})
        spoke.close()
        return decision

    def _join(
        self, spoke: Spoke, problem: Verdict | None
    ) -> tuple[Verdict | None, Sequence[Event]]:
        """Reach the main node; returns a verdict if that fails, and any events received so far."""
        deadline = time.monotonic() + self._tools.parameters.join_timeout_s
        first = hello(self._node, problem)
        sign = StartedSign(self._node)
        while (now := time.monotonic()) < deadline:
            self._tools.guardian.heartbeat()
            sign.turn(now)
            if self._tools.stop.count:
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
                f"{self._node.main_address} within {self._tools.parameters.join_timeout_s:g} s "
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
            self._tools.start_workers(int(message["port"]))
        elif message["type"] == "go" and self._tools.program is not None:
            self._tools.program.go()
        elif message["type"] == "stop":
            return Verdict.from_message(message)
        return None
