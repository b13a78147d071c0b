"""Whether a gang may be let in, and on which nodes its pods find room.

From the source of Volcano 1.15.1, with the configuration of its chart: the plugins overcommit and
proportion decide whether a gang gets pods at all, gang and predicates whether they are bound.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trainium_emulators.kubernetes.resources import Json

OVERCOMMIT = Fraction(12, 10)
"""overcommit-factor's default."""
_UNITS = {
    "": Fraction(1), "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}  # fmt: skip
Amounts = Mapping[str, Fraction]


def quantity(text: str | int | float) -> Fraction:
    """A Kubernetes quantity as a number."""
    found = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text))
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text} is not a quantity")
    return Fraction(found[1]) * _UNITS[found[2]]


def amounts(given: Mapping[str, str | int] | None) -> Amounts:
    """A resource list as numbers."""
    return {name: quantity(value) for name, value in (given or {}).items()}


def total(parts: Iterable[Amounts]) -> Amounts:
    """The sum."""
    result: Counter[str] = Counter()
    for part in parts:
        result.update(dict(part))
    return dict(result)  # type: ignore[arg-type]


def pod_requests(spec: Json) -> Amounts:
    """What a pod asks for; limits stand in for requests that are not given."""
    resources = [container.get("resources", {}) for container in spec["containers"]]
    return total(amounts({**r.get("limits", {}), **r.get("requests", {})}) for r in resources)


def job_requests(job: Json) -> Amounts:
    """What the gang asks for."""
    return total(
        pod_requests(task["template"]["spec"])
        for task in job["spec"]["tasks"]
        for _ in range(task["replicas"])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Of the whole cluster."""

    allocatable: Amounts
    used: Amounts
    """By all pods that have a node and have not ended, also those that are leaving."""
    waiting: Amounts
    """What gangs ask for that were let in and have no nodes yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The gang's queue."""

    capability: Amounts
    """Without an entry: without a limit of its own."""
    used: Amounts
    """By pods that have a node, and neither have ended nor are leaving."""
    waiting: Amounts


def refusal(wanted: Amounts, *, queue: Queue, nodes: Nodes | None) -> str | None:
    """Why a gang gets no pods yet, in Volcano's words; None when it does.

    First overcommit's JobEnqueueableFn, then proportion's, for which a queue has no more than all
    nodes together. ``nodes`` is None when they are not counted.
    """
    if nodes is not None:
        over = [
            name
            for name, amount in wanted.items()
            if nodes.waiting.get(name, 0) + amount
            > nodes.allocatable.get(name, 0) * OVERCOMMIT - nodes.used.get(name, 0)
        ]
        if over:
            return _words("resource in cluster is overused", "overused", over)
    over = [
        name
        for name, amount in wanted.items()
        if (most := _most(name, queue, nodes)) is not None
        and amount + queue.used.get(name, 0) + queue.waiting.get(name, 0) > most
    ]
    return _words("queue resource quota insufficient", "insufficient", over) if over else None


def _most(name: str, queue: Queue, nodes: Nodes | None) -> Fraction | None:
    """The queue's realCapability."""
    limits = [queue.capability[name]] if name in queue.capability else []
    limits += [] if nodes is None else [nodes.allocatable.get(name, Fraction())]
    return min(limits, default=None)


def _words(what: str, verb: str, names: Iterable[str]) -> str:
    return f"{what}: {', '.join(f'{verb} {name}' for name in names)}"


def placed(pods: Sequence[Json], nodes: Sequence[Json], used: Mapping[str, Amounts]) -> list[str]:
    """A node's name for each pod; fewer names than pods when there is no room."""
    taken = {name: dict(parts) for name, parts in used.items()}
    names = []
    for pod in pods:
        wanted = pod_requests(pod["spec"])
        for node in nodes:
            name = node["metadata"]["name"]
            room = amounts(node["status"]["allocatable"])
            own = taken.setdefault(name, {})
            if _allows(node, pod["spec"]) and all(
                own.get(key, 0) + amount <= room.get(key, 0) for key, amount in wanted.items()
            ):
                taken[name] = dict(total([own, wanted]))
                names.append(name)
                break
    return names


def _allows(node: Json, spec: Json) -> bool:
    """Whether selector and taints let the pod on the node, and nobody has cordoned it."""
    if node["spec"].get("unschedulable"):
        return False
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    keys = [entry.get("key") for entry in spec.get("tolerations", ())]
    taints = [t for t in node["spec"].get("taints", ()) if t["effect"] != "PreferNoSchedule"]
    return all(taint["key"] in keys or None in keys for taint in taints)
