"""How the main node notices that a program hangs, and tells which node left it.

A program reports nothing to the launcher, and usually only one of its ranks prints. So what counts
is the job as a whole: a sign of life on any node is one of all.
"""

from __future__ import annotations

from dataclasses import replace

from training.core.contract import NodeContract
from training.core.progress import COMPILES_AT_MOST_S
from training.launcher.messages import Departure, Evidence, Message, Movement
from training.launcher.node import JobObserver
from training.launcher.verdict import Verdict
from trainium_catalogue.contract import ENV_PROGRESS_FILE
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.typed_json import typed

LEFT_LIMIT_S = 300.0
"""Longest silence of a job after a node has ended at once: the others wait for it in vain."""
BEGINNING_S = 120.0
"""Most that a program takes to print what it prints before it waits for its own processes."""


class ProgramObserver(JobObserver):
    """The main node's view of a program on all nodes."""

    def __init__(self, node: NodeContract, *, hang_limit_s: float, now_s: float) -> None:
        self._node = node
        self._num_nodes = node.num_nodes
        self._hang_limit_s = hang_limit_s
        self._moved_s = self._went_s = now_s
        self._evidence: dict[int, Evidence] = {}
        self._left: dict[int, Departure] = {}
        self._doing: dict[int, str] = {}
        self._prepared: set[int] = set()
        self._compiling: set[int] = set()

    @property
    def all_prepared(self) -> bool:
        """True once every node has what the program needs."""
        return len(self._prepared) == self._num_nodes

    def begin(self, now_s: float) -> None:
        """Start to measure silence: all nodes are here."""
        self._moved_s = now_s

    def went(self, now_s: float) -> None:
        """Note that the program begins, on all nodes."""
        self._went_s = self._moved_s = now_s

    def note(self, node: int, message: Message, now_s: float) -> None:
        """Note what a node reports of its program."""
        match message["type"]:
            case "prepared":
                self._prepared.add(node)
            case "moved":
                movement = typed(message, Movement)
                self._doing[node] = movement.doing
                (self._compiling.add if movement.compiling else self._compiling.discard)(node)
            case "left":
                self._left[node] = typed(message, Departure)
            case "seen":
                self._evidence[node] = typed(message, Evidence)
                return  # no sign of life
            case _:
                return
        self._moved_s = now_s

    def verdict(self, now_s: float) -> Verdict | None:
        """Judge the silence of all nodes; None while it is not too long."""
        silent_s = now_s - self._moved_s
        limit_s = min(LEFT_LIMIT_S, self._hang_limit_s)
        if self._left_at_once and silent_s > limit_s and not self._compiling:
            return Verdict(
                code=ExitCode.WORKLOAD,
                reason=f"{self._told()}, and nothing has moved for {limit_s:g} s since; a program "
                "that ends on one node only would do so again: read its first lines, which may "
                "return where they should raise an error",
            )
        if silent_s <= self._hang_limit_s:
            return None
        if self._compiling:
            return self._compiles_for_ever(silent_s)
        if not self.all_prepared:
            busy = sorted(set(range(self._num_nodes)) - self._prepared)
            at = "; ".join(f"node {n} at: {self._doing.get(n) or 'starting'}" for n in busy)
            reason = f"the preparation made no progress for {self._hang_limit_s:g} s: {at}"
            return Verdict(code=ExitCode.HOST, reason=f"{reason} (--hang-limit-s)")
        return self._hang()

    def _hang(self) -> Verdict:
        """Judge a program that is silent, by what its nodes show."""
        what = (
            f"the program hangs: for {self._hang_limit_s:g} s (--hang-limit-s) no node "
            "printed anything, changed a file of its checkpoint folder or of its compile cache, "
            f"or touched {ENV_PROGRESS_FILE}, which are what counts as progress"
        )
        own = {node: e for node, e in self._evidence.items() if e.started}
        shown = dict(sorted((own or self._evidence).items())[:1])
        seen = "".join(f"; {evidence.shown(node)}" for node, evidence in shown.items())
        directly = (
            "let it call its training function directly, without mp.spawn or accelerate launch"
        )
        if self._waits_for_itself:
            here = self._node.processes_per_node
            processes = "its process" if here == 1 else f"{here} processes of it"
            return Verdict(
                code=ExitCode.WORKLOAD,
                reason=f"{what}{seen}; it would hang again, so it is not retried: torchrun has "
                f"already started {processes} on each node, so {directly}",
            )
        alone = "" if self._is_joined else (
            "if it assigns MASTER_ADDR or MASTER_PORT, or gives init_process_group an "
            "init_method, leave that to torchrun, which has set them; "
        )  # fmt: skip
        advice = (
            f"if these wait for each other, {directly}"
            if self._has_launched
            else "a program that is silent for longer needs a larger --hang-limit-s, or touches "
            "that file"
        )
        return Verdict(code=ExitCode.HOST, reason=f"{what}{seen}; {alone}{advice}")

    @property
    def _has_launched(self) -> bool:
        """True if ranks have started processes as launchers do, and nothing has come of it."""
        everyone = self._evidence.values()
        return any(e.is_launcher for e in everyone) and not any(e.has_worked for e in everyone)

    @property
    def _is_joined(self) -> bool:
        """True unless all nodes are known to have ranks that are not connected to each other."""
        everyone = self._evidence.values()
        return (
            self._node.num_ranks == 1
            or len(everyone) < self._num_nodes
            or any(evidence.connected for evidence in everyone)
        )

    @property
    def _waits_for_itself(self) -> bool:
        """True if the program has left its work to processes of its own, which never began it.

        One that has worked, or was alive for longer than its beginning, may have lost a peer.
        """
        return (
            self._has_launched
            and not self._is_joined
            and self._moved_s - self._went_s <= BEGINNING_S
        )

    def _compiles_for_ever(self, silent_s: float) -> Verdict | None:
        limit_s = max(self._hang_limit_s, float(COMPILES_AT_MOST_S))
        if silent_s <= limit_s:
            return None
        nodes = " and ".join(f"node {node}" for node in sorted(self._compiling))
        return Verdict(
            code=ExitCode.HOST,
            reason=f"the program hangs: on {nodes} a compilation is under way (a *.lock file in "
            f"the compile cache), and for {limit_s:g} s, the most that one may take, nothing has "
            "moved on any node; a process that was killed while it compiled leaves such a file",
        )

    def explained(self, decision: Verdict) -> Verdict:
        """Add to a failure which nodes had ended before, while the others still worked."""
        if (
            decision.code in (ExitCode.OK, ExitCode.STOPPED)
            or not self._leavers
            or self._told() in decision.reason
        ):
            return decision
        # A connection to such a node is never made, or breaks, however often the job is repeated;
        # a node that was lost is no symptom.
        is_cause = decision.symptom and self._left_at_once
        return replace(
            decision,
            code=ExitCode.WORKLOAD if is_cause else decision.code,
            reason=f"{decision.reason}; before that {self._told()}",
        )

    @property
    def _leavers(self) -> list[int]:
        """Nodes that have ended while others work."""
        return [] if len(self._left) == self._num_nodes else sorted(self._left)

    @property
    def _left_at_once(self) -> bool:
        return any(self._left[node].at_once for node in self._leavers)

    def _told(self) -> str:
        told = " ".join(self._left[node].told(node) for node in self._leavers)
        return f"{told} while the others still worked"
