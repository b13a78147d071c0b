"""Probes: functions that check a claim, on a node or on the client.

The claims are in docs/claims.toml; a probe has the id of its claim. A probe that lacks a
requirement is "not run", and one that raises is "crashed"; neither stops the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

from trainium_catalogue.documents import DeviceName, Keywords, Sha256, Timestamp, as_document

SCHEMA = 1
"""Version of the record format; see docs/schemas/verification-record.schema.json."""
NODE_RECORD = "probes.json"
"""Record of the nodes' findings, in the results of ``verify``'s run."""
RECORD = "verification.json"
"""Combined record of the findings of nodes and client."""
_SEAL = "sha256"

Subject = TypeVar("Subject")


class ProbeSite(StrEnum):
    """The site where a probe runs."""

    NODE = "node"
    CLIENT = "desk"
    """The machine that runs ``jobs verify``; records name it ``desk``."""


class State(StrEnum):
    """The outcome of a probe."""

    GREEN = "green"
    RED = "red"
    CRASHED = "crashed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """A probe's observation and expectation."""

    ok: bool
    seen: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of a claim's probe at one site."""

    id: str
    """Id of a claim in docs/claims.toml."""
    place: ProbeSite
    state: State
    seen: str
    """The observation, or a crash's error in one line; empty if the probe was not run."""
    expected: str
    needs: tuple[str, ...] = ()
    """Missing requirements of a probe that was not run."""

    @staticmethod
    def read(document: Mapping[str, Any]) -> Finding:
        """Read a finding from a record."""
        return Finding(
            id=document["id"],
            place=ProbeSite(document["place"]),
            state=State(document["state"]),
            seen=document["seen"],
            expected=document["expected"],
            needs=tuple(document["needs"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """Findings of the probes on the nodes of a verify run, or on nodes and client."""

    schema: Annotated[int, Keywords(const=1)] = SCHEMA
    contract_version: str
    time: Timestamp
    deployment: str
    region: str | None
    emulated: bool
    """True if AWS was emulated, or there was no bucket: green then means only that probes work."""
    run: str | None
    """Run of verify; null without one."""
    job_id: str | None
    num_nodes: int | None
    num_ranks: int | None
    device: DeviceName | None
    instance_type: str | None
    neuron_release: str | None
    findings: tuple[Finding, ...]
    sha256: Sha256 = ""
    """Checksum of everything else as JSON: sorted keys, no spaces, ASCII."""

    def sealed(self) -> dict[str, Any]:
        """Return the document with its checksum."""
        return sealed(as_document(self))


class SubjectMissing(Exception):
    """Raised by a probe whose subject does not exist; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Generic[Subject]):
    """A claim's check and its requirements."""

    id: str
    needs: tuple[str, ...]
    """Requirements without which it cannot run, such as ``neuron``."""
    check: Callable[[Subject], ProbeResult]


class Probes(Generic[Subject]):
    """The probes of one site."""

    def __init__(
        self, place: ProbeSite, *, missing: Callable[[Exception], str | None] = lambda error: None
    ) -> None:
        """Create an empty registry; ``missing`` maps an error to a missing requirement, if any."""
        self.place = place
        self._missing = missing
        self.by_id: dict[str, Probe[Subject]] = {}

    def probe(
        self, *ids: str, needs: Collection[str] = ()
    ) -> Callable[[Callable[[Subject], ProbeResult]], Callable[[Subject], ProbeResult]]:
        """Register a function as the probe of the claims ``ids``."""

        def register(check: Callable[[Subject], ProbeResult]) -> Callable[[Subject], ProbeResult]:
            for name in ids:
                assert name not in self.by_id, name
                self.by_id[name] = Probe(id=name, needs=tuple(needs), check=check)
            return check

        return register

    def run(self, name: str, subject: Subject, met: Collection[str]) -> Finding:
        """Run one probe; turn any exception into a finding."""
        probe = self.by_id[name]

        def finding(state: State, seen: str = "", expected: str = "", *needs: str) -> Finding:
            return Finding(
                id=name, place=self.place, state=state, seen=seen, expected=expected, needs=needs
            )

        if missing := [need for need in probe.needs if need not in met]:
            return finding(State.NOT_RUN, "", "", *missing)
        try:
            result = probe.check(subject)
        except SubjectMissing as error:
            return finding(State.NOT_RUN, "", "", one_line(str(error)))
        except Exception as error:
            if what := self._missing(error):
                return finding(State.NOT_RUN, "", "", one_line(what))
            return finding(State.CRASHED, one_line(f"{type(error).__name__}: {error}"))
        state = State.GREEN if result.ok else State.RED
        return finding(state, one_line(result.seen), one_line(result.expected))


def one_line(text: str, *, max_length: int = 300) -> str:
    """Shorten ``text`` to one line of bounded length."""
    words = " ".join(text.split())
    return words if len(words) <= max_length else f"{words[: max_length - 3]}..."


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum of everything else in the record."""
    body = {name: value for name, value in record.items() if name != _SEAL}
    return {**body, _SEAL: _checksum(body)}


def is_intact(record: Mapping[str, Any]) -> bool:
    """Return whether a record's checksum matches."""
    body = {name: value for name, value in record.items() if name != _SEAL}
    return record.get(_SEAL) == _checksum(body)


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
