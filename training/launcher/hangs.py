"""Detect on the main node that a program hangs, and which nodes left early.

A program does not report to the launcher, and usually only one of its ranks prints. So progress on
any node counts for the entire job.
"""

from __future__ import annotations

from dataclasses import replace

from training.core.compilers import COMPILER
from training.core.contract import DeviceKind, NodeContract
from training.core.progress import MAX_COMPILE_S
from training.launcher.messages import Departure, Evidence, Message, ProgressReport
from training.launcher.node import JobObserver
from training.launcher.verdict import Verdict, join_first
from trainium_catalogue.contract import ENV_PROGRESS_FILE
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.typed_json import typed

DEPARTURE_LIMIT_S = 300.0
"""Hang limit once a node has exited right after its start and cannot respond to its peers."""
BEGINNING_S = 120.0
"""Time after its start by which a program that waits for its own processes has fallen silent."""


class ProgramObserver(JobObserver):
    """The main node's view of a program on all nodes."""

    def __init__(self, node: NodeContract, *, hang_limit_s: float, now_s: float) -> None:
        self._node = node
        self._num_nodes = node.num_nodes
        self._hang_limit_s = hang_limit_s
        self._progress_s = self._program_started_s = now_s
        self._evidence: dict[int, Evidence] = {}
        self._departures: dict[int, Departure] = {}
        self._doing: dict[int, str] = {}
        self._prepared: set[int] = set()
        self._compiling: set[int] = set()

    @property
    def all_prepared(self) -> bool:
        """True once every node is prepared."""
        return len(self._prepared) == self._num_nodes

    def begin(self, now_s: float) -> None:
        """Start measuring silence: all nodes have joined."""
        self._progress_s = now_s

    def program_started(self, now_s: float) -> None:
        """Record the start of the program on all nodes."""
        self._program_started_s = self._progress_s = now_s

    def note(self, node: int, message: Message, now_s: float) -> None:
        """Record a node's report on its program."""
        match message["type"]:
            case "prepared":
                self._prepared.add(node)
            case "moved":
                movement = typed(message, ProgressReport)
                self._doing[node] = movement.doing
                (self._compiling.add if movement.compiling else self._compiling.discard)(node)
            case "left":
                self._departures[node] = typed(message, Departure)
            case "seen":
                self._evidence[node] = typed(message, Evidence)
                return  # no progress
            case _:
                return
        self._progress_s = now_s

    def verdict(self, now_s: float) -> Verdict | None:
        """Judge the silence of all nodes; None while it is within the limits."""
        silent_s = now_s - self._progress_s
        limit_s = min(DEPARTURE_LIMIT_S, self._hang_limit_s)
        if self._left_immediately and silent_s > limit_s and not self._compiling:
            return Verdict(
                code=ExitCode.WORKLOAD,
                reason=f"{self._departures_text()}, and no node has made progress for "
                f"{limit_s:g} s since; a program that exits on one node only would do so again: "
                "check its first lines, which may return where they should raise an error",
            )
        if silent_s <= self._hang_limit_s:
            return None
        if self._compiling:
            return self._compilation_verdict(silent_s)
        if not self.all_prepared:
            busy = sorted(set(range(self._num_nodes)) - self._prepared)
            at = join_first(
                [f"node {n} at: {self._doing.get(n) or 'starting'}" for n in busy], "; "
            )
            reason = f"the preparation made no progress for {self._hang_limit_s:g} s: {at}"
            return Verdict(code=ExitCode.HOST, reason=f"{reason} (--hang-limit-s)")
        return self._hang_verdict()

    def _hang_verdict(self) -> Verdict:
        """Judge a silent program by its nodes' evidence."""
        what = (
            f"the program hangs: for {self._hang_limit_s:g} s (--hang-limit-s) no node "
            "printed anything, changed a file of its checkpoint folder or of its compile cache, "
            f"or touched {ENV_PROGRESS_FILE}, all of which count as progress"
        )
        with_processes = {node: e for node, e in self._evidence.items() if e.started}
        first = sorted((with_processes or self._evidence).items())[:1]
        evidence_text = "".join(f"; {evidence.describe(node)}" for node, evidence in first)
        directly = (
            "have it call its training function directly, without mp.spawn or accelerate launch"
        )
        if self._awaits_own_processes:
            here = self._node.processes_per_node
            processes = "its process" if here == 1 else f"its {here} processes"
            return Verdict(
                code=ExitCode.WORKLOAD,
                reason=f"{what}{evidence_text}; it would hang again, so it is not retried: "
                f"torchrun has already started {processes} on each node, so {directly}",
            )
        address_advice = "" if self._may_be_connected else (
            "if it assigns MASTER_ADDR or MASTER_PORT, or passes init_process_group an "
            "init_method, leave that to torchrun; "
        )  # fmt: skip
        advice = (
            f"if these wait for each other, {directly}"
            if self._has_launched
            else "if the program is silent for longer, raise --hang-limit-s or have it touch "
            "that file"
        )
        return Verdict(
            code=ExitCode.HOST, reason=f"{what}{evidence_text}; {address_advice}{advice}"
        )

    @property
    def _has_launched(self) -> bool:
        """True if ranks have started launcher-like processes that have not begun to work."""
        reports = self._evidence.values()
        return any(e.is_launcher for e in reports) and not any(e.has_worked for e in reports)

    @property
    def _may_be_connected(self) -> bool:
        """True unless the ranks of all nodes are known to be unconnected."""
        reports = self._evidence.values()
        return (
            self._node.num_ranks == 1
            or len(reports) < self._num_nodes
            or any(evidence.connected for evidence in reports)
        )

    @property
    def _awaits_own_processes(self) -> bool:
        """True if the program waits for its own processes, which have not begun to work.

        A program that did some work, or made progress later, may instead have lost a peer.
        """
        return (
            self._has_launched
            and not self._may_be_connected
            and self._progress_s - self._program_started_s <= BEGINNING_S
        )

    def _compilation_verdict(self, silent_s: float) -> Verdict | None:
        limit_s = max(self._hang_limit_s, float(MAX_COMPILE_S))
        if silent_s <= limit_s:
            return None
        nodes = join_first([f"node {node}" for node in sorted(self._compiling)], ", ")
        sign, advice = (
            "a *.lock file in the compile cache",
            ("; a process killed during compilation leaves such a file behind"),
        )
        if self._node.device is DeviceKind.TORCH_NEURON:
            sign, advice = f"a process of {COMPILER}", ""
        return Verdict(
            code=ExitCode.HOST,
            reason=f"the program hangs: on {nodes} a compilation is in progress ({sign}), and for "
            f"{limit_s:g} s, the limit for a compilation, no node made any progress{advice}",
        )

    def explained(self, decision: Verdict) -> Verdict:
        """Add to a failure's reason the nodes that had exited while others were still working."""
        if (
            decision.code in (ExitCode.OK, ExitCode.STOPPED)
            or not self._departed_nodes
            or self._departures_text() in decision.reason
        ):
            return decision
        # Connections to such a node fail in every retry. The loss of a node is not a symptom.
        is_cause = decision.symptom and self._left_immediately
        return replace(
            decision,
            code=ExitCode.WORKLOAD if is_cause else decision.code,
            reason=f"{decision.reason}; before that {self._departures_text()}",
        )

    @property
    def _departed_nodes(self) -> list[int]:
        """Nodes that have exited while others are still working."""
        return [] if len(self._departures) == self._num_nodes else sorted(self._departures)

    @property
    def _left_immediately(self) -> bool:
        return any(self._departures[node].is_immediate for node in self._departed_nodes)

    def _departures_text(self) -> str:
        departures = join_first(
            [self._departures[node].describe(node) for node in self._departed_nodes], " "
        )
        return f"{departures} while the others were still working"
