"""Messages between launchers on their link (``peers.py``), as JSON lines.

Child to main: ``hello`` (identity and preflight result), ``alive``, ``verdict``, ``ended``; for a
user's program also ``prepared``, ``moved`` (progress), ``left`` (all ranks exited with 0) and
``seen`` (evidence about a silent node). Main to child: ``welcome``, ``alive``, ``start`` (all nodes
have joined; the rendezvous port), ``stop`` (the decision; repeated if the main node has less time
left than announced); for a program also ``go``, once all nodes are prepared. Both directions, for a
program: ``mail`` (part of a document about snapshots), which a child resends until it is
acknowledged with ``taken`` (``courier.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from training.core.contract import NodeContract
from training.launcher.verdict import Verdict
from trainium_catalogue.typed_json import read_object, typed
from trainium_catalogue.wording import counted

Message = dict[str, Any]

_DOCUMENT = re.compile(r"[a-z0-9-]{1,64}\.json")

IMMEDIATE_EXIT_S = 60.0
"""Maximum run time of a node that exits without training, after imports and argument parsing. A
node that ran longer is assumed to have trained, and may exit before rank 0 completes the final
save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of a child."""

    job: str
    attempt: int
    node: int
    num_nodes: int
    problem: Verdict | None
    """The failure of its preflight, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The main node's request to start the workers."""

    port: int
    """The rendezvous port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """A node's report that its program has made progress."""

    doing: str
    """Current activity while other nodes wait for it; empty while the program runs."""
    compiling: bool
    """True while the node compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The state of one node's ranks and their processes, from /proc."""

    ranks: int
    connected: int
    """Ranks with a connected or listening TCP socket, like every member of a process group."""
    lines: int
    """Lines of output so far."""
    has_worked: bool
    """True if the output contained a step or loss, or the checkpoint folder has changed."""
    rank: int = -1
    """A rank with child processes; -1 if there is none."""
    started: int = 0
    """The number of that rank's child processes."""
    command: str = ""
    """The most frequent command among them."""
    is_launcher: bool = False
    """True if it starts training processes, as launchers and multiprocessing's ``spawn`` do."""

    def describe(self, node: int) -> str:
        """Return the evidence as a clause for a message."""
        lines = counted(self.lines, "line") if self.lines else "nothing"
        parts = [f"node {node} has printed {lines}"]
        if self.started:
            noun = "process" if self.started == 1 else "processes"
            parts.append(
                f"rank {self.rank} has started {self.started} child {noun} ({self.command})"
            )
        if self.ranks and not self.connected:
            parts.append("no rank there is connected to another, so no process group was formed")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The exit of all of a node's ranks with status 0."""

    after_s: float
    lines: int
    """Lines of output until then."""

    @property
    def is_immediate(self) -> bool:
        """True if the node cannot have done any work: it ended early and without output."""
        return self.lines == 0 and self.after_s <= IMMEDIATE_EXIT_S

    def describe(self, node: int) -> str:
        """Return the departure as a clause for a message."""
        output = f"with {counted(self.lines, 'line')}" if self.lines else "without a line"
        return f"node {node} exited with 0 after {self.after_s:.0f} s, {output} of output,"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Part of a document from one node's snapshot process to another's."""

    name: str
    text: str
    first: bool
    last: bool

    def __post_init__(self) -> None:
        if not _DOCUMENT.fullmatch(self.name):  # it becomes the name of a file
            raise ValueError(f"{self.name!r} is not the name of a document")


@dataclass(frozen=True, slots=True, kw_only=True)
class MailReceipt:
    """The acknowledgement of a part."""

    ok: bool
    """False if the document must be resent."""


_CONTENTS: Mapping[str, type] = {
    "hello": Hello,
    "start": Start,
    "verdict": Verdict,
    "stop": Verdict,
    "moved": ProgressReport,
    "left": Departure,
    "seen": Evidence,
    "mail": Mail,
    "taken": MailReceipt,
}
"""The dataclass of each message type that has content."""


def parse_message(line: bytes) -> Message:
    """Parse a message; raise ``ValueError`` if it is not a valid launcher message."""
    try:
        message = read_object(line)
        kind = typed(message.get("type"), str)
        if kind in _CONTENTS:
            typed(message, _CONTENTS[kind])
    except ValueError as error:
        raise ValueError(f"a line is not a launcher's message: {error}") from None
    return message


def hello(node: NodeContract, problem: Verdict | None) -> Message:
    """Build a child's first message."""
    content = Hello(
        job=node.job_id,
        attempt=node.attempt,
        node=node.node_index,
        num_nodes=node.num_nodes,
        problem=problem,
    )
    return {"type": "hello", **asdict(content)}


def refusal(node: NodeContract, message: Message, present: set[int]) -> str | None:
    """Explain why the main node rejects a newcomer; return None if it is accepted."""
    if message["type"] != "hello":
        return "the first message is not hello"
    theirs = (message["job"], message["attempt"], message["num_nodes"])
    ours = (node.job_id, node.attempt, node.num_nodes)
    if theirs != ours:
        return f"its job, attempt and number of nodes are {theirs}, not {ours}"
    index: int = message["node"]
    if not 0 <= index < node.num_nodes or index == node.main_index:
        return f"there is no child node {index}"
    if index in present:
        return f"node {index} has already joined"
    return None
