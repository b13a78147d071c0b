"""Output of findings: lines, a document, and a warning before a submission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from jobs.port.rules import RULES, Hazard, PortKind, Rule
from trainium_catalogue.documents import Keywords, Positive, picked
from trainium_catalogue.releases import NEURON_RELEASES, TorchBackend
from trainium_catalogue.wording import counted

_NAMES = {TorchBackend.XLA: "torch_xla", TorchBackend.TORCH_NEURON: "TorchNeuron"}
_NAMED_IN_REMARK = ("cuda-device", "cuda-available", "nccl")
"""Rules for code that fails or leaves the chips idle; the warning shows one finding of each."""


def backend_of(release: str) -> TorchBackend | None:
    """Return the PyTorch backend of a Neuron release, if known."""
    known = NEURON_RELEASES.get(release)
    return None if known is None else known.backend


def lines(found: Sequence[Hazard], backend: TorchBackend | None) -> Iterator[str]:
    """Yield each finding, then for each rule the reason and the replacement."""
    for item in found:
        yield f"{item.file}, line {item.line}: {item.kind}: {item.text} {RULES[item.rule].what}"
    for rule in _rules(found):
        places = sum(item.rule == rule.name for item in found)
        yield ""
        yield f"{rule.kind}, {counted(places, 'place')}: {rule.what}"
        yield f"  why      {rule.why}"
        if backend is None and rule.torch_neuron:
            for each, name in _NAMES.items():
                yield f"  instead  {name}: {rule.instead(each)}"
        else:
            yield f"  instead  {rule.instead(backend or TorchBackend.XLA)}"
        yield f"  source   {rule.source}"
    yield ""
    yield summary(found)


def summary(found: Sequence[Hazard]) -> str:
    """Return a sentence with the number of findings of each kind."""
    if not found:
        return "no code was found that needs a change for Trainium"
    counts = Counter(item.kind for item in found)
    kinds = ", ".join(f"{kind} {counts[kind]}" for kind in PortKind if counts[kind])
    verb = "needs" if len(found) == 1 else "need"
    return f"{counted(len(found), 'place')} {verb} a change for Trainium: {kinds}"


def remark(found: Sequence[Hazard], command: str) -> str | None:
    """Return the warning for a submission; ``command`` shows the details."""
    if not found:
        return None
    parts = [summary(found)]
    for name in _NAMED_IN_REMARK:
        places = [item for item in found if item.rule == name]
        # Prefer an unambiguous call over a device name, which may be one of two alternatives.
        first = next((item for item in places if ".cuda(" in item.text), next(iter(places), None))
        if first is not None:
            parts.append(f"{first.file}, line {first.line}: {first.text}: {RULES[name].why}")
    return "; ".join([*parts, f"for details: {command}"])


@dataclass(frozen=True, kw_only=True)
class PortFinding:
    """Code in the program that matches a rule."""

    file: str
    line: Positive
    kind: PortKind
    rule: str
    """Name of one of the rules."""
    text: str
    """The expression, shortened."""


@dataclass(frozen=True, kw_only=True)
class PortRule:
    """A rule that the program matches."""

    name: str
    kind: PortKind
    what: str
    why: str
    instead: Annotated[Mapping[TorchBackend, str], Keywords(minProperties=1)]
    """Replacement, by torch_backend."""
    source: Annotated[str, Keywords(format="uri")]


@dataclass(frozen=True, kw_only=True)
class PortDocument:
    """Code of a GPU program that fails or runs slowly on Trainium."""

    program: str
    """The program as on a command line."""
    torch_backend: TorchBackend | None
    """PyTorch backend; null for both."""
    findings: tuple[PortFinding, ...]
    rules: tuple[PortRule, ...]


def document(program: str, found: Sequence[Hazard], backend: TorchBackend | None) -> PortDocument:
    """Build the document of ``port --json``."""
    backends = [backend] if backend else [*TorchBackend]
    return PortDocument(
        program=program,
        torch_backend=backend,
        findings=tuple(picked(PortFinding, item) for item in found),
        rules=tuple(
            picked(PortRule, rule, instead={one: rule.instead(one) for one in backends})
            for rule in _rules(found)
        ),
    )


def _rules(found: Sequence[Hazard]) -> list[Rule]:
    """Return the rules of the findings, ordered by kind."""
    names = {item.rule for item in found}
    order = list(PortKind)
    return sorted(
        (rule for name, rule in RULES.items() if name in names),
        key=lambda rule: order.index(rule.kind),
    )
