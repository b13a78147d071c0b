"""What launchers send each other over their link (``peers.py``), as lines of JSON.

Child to main: ``hello`` (who I am, what preflight found), ``alive``, ``verdict``, ``ended``; of a
user's program also ``prepared``, ``moved`` (a sign of life), ``left`` (all ranks ended with 0) and
``seen`` (what a silent node shows).
Main to child: ``welcome``, ``alive``, ``start`` (all are here; the rendezvous port), ``stop`` (the
decision); ``go`` when all nodes are prepared for a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from training.core.contract import NodeContract
from training.launcher.verdict import Verdict
from trainium_catalogue.typed_json import read_object, typed

Message = dict[str, Any]

AT_ONCE_S = 60.0
"""Most that a node can have done whose ranks ended at once: imports, and a look at the arguments.
One that has worked for longer has done its share, and may leave the last save to rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of a child."""

    job: str
    attempt: int
    node: int
    num_nodes: int
    problem: Verdict | None
    """What its preflight found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The main node's order to start the workers."""

    port: int
    """Of the rendezvous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """A sign of life of one node."""

    doing: str
    """What it does while the others wait for it; empty while the program runs."""
    compiling: bool
    """True while a compilation goes on there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The processes of one node's ranks, as the kernel shows them."""

    ranks: int
    connected: int
    """Ranks with an open TCP connection or port, as every member of a process group has."""
    lines: int
    """Lines of output so far."""
    has_worked: bool
    """True if the output has shown a step or a loss, or something was kept."""
    rank: int = -1
    """A rank with processes of its own; -1: there is none."""
    started: int = 0
    """How many it has."""
    command: str = ""
    """The most frequent of their commands."""
    is_launcher: bool = False
    """True if they were started for training: a launcher, or multiprocessing's ``spawn``."""

    def shown(self, node: int) -> str:
        """Describe it as part of a sentence."""
        lines = f"{self.lines} line{'s' if self.lines != 1 else ''}" if self.lines else "nothing"
        parts = [f"node {node} has printed {lines}"]
        if self.started:
            noun = "process" if self.started == 1 else "processes"
            parts.append(
                f"rank {self.rank} has started {self.started} {noun} of its own ({self.command})"
            )
        if self.ranks and not self.connected:
            parts.append("no rank there is connected to another, so no process group was formed")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The end of all ranks of a node with 0."""

    after_s: float
    lines: int
    """Lines of output by then."""

    @property
    def at_once(self) -> bool:
        """True if the node cannot have done anything: it ended soon, and without a line."""
        return self.lines == 0 and self.after_s <= AT_ONCE_S

    def told(self, node: int) -> str:
        """Describe it as part of a sentence."""
        output = f"{self.lines} lines" if self.lines else "without a line"
        return f"node {node} ended with 0 after {self.after_s:.0f} s, {output} of output,"


_CONTENTS: Mapping[str, type] = {
    "hello": Hello,
    "start": Start,
    "verdict": Verdict,
    "stop": Verdict,
    "moved": Movement,
    "left": Departure,
    "seen": Evidence,
}
"""The fields of a message by its type; others have none."""


def parse_message(line: bytes) -> Message:
    """Parse a message; ``ValueError`` if it is not what a launcher sends."""
    try:
        message = read_object(line)
        kind = typed(message.get("type"), str)
        if kind in _CONTENTS:
            typed(message, _CONTENTS[kind])
    except ValueError as error:
        raise ValueError(f"a line is not a launcher's message: {error}") from None
    return message


def hello(node: NodeContract, problem: Verdict | None) -> Message:
    """Make the first message of a child."""
    content = Hello(
        job=node.job_id,
        attempt=node.attempt,
        node=node.node_index,
        num_nodes=node.num_nodes,
        problem=problem,
    )
    return {"type": "hello", **asdict(content)}


def refusal(node: NodeContract, message: Message, present: set[int]) -> str | None:
    """Explain why the main node rejects a newcomer; None if it accepts it."""
    if message["type"] != "hello":
        return "the first message is not hello"
    theirs = (message["job"], message["attempt"], message["num_nodes"])
    ours = (node.job_id, node.attempt, node.num_nodes)
    if theirs != ours:
        return f"it belongs to job, attempt, nodes {theirs}, not {ours}"
    index: int = message["node"]
    if not 0 <= index < node.num_nodes or index == node.main_index:
        return f"there is no child node {index}"
    if index in present:
        return f"node {index} is already here"
    return None
