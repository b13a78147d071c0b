"""Parses Kubernetes quantities and adds up the requests of pods and gangs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

from trainium_emulators.kubernetes.resources import Json

_UNITS = {
    "": Fraction(1), "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}  # fmt: skip
Amounts = Mapping[str, Fraction]


def quantity(text: str | int | float) -> Fraction:
    """Convert a Kubernetes quantity to a number; raise ``ValueError`` if it is not one."""
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text))
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text} is not a quantity")
    return Fraction(match[1]) * _UNITS[match[2]]


def amounts(resources: Mapping[str, str | int] | None) -> Amounts:
    """Convert a resource list to numbers."""
    return {name: quantity(value) for name, value in (resources or {}).items()}


def total(parts: Iterable[Amounts]) -> Amounts:
    """Add up resource lists."""
    result: Counter[str] = Counter()
    for part in parts:
        result.update(dict(part))
    return dict(result)  # type: ignore[arg-type]


def pod_requests(spec: Json) -> Amounts:
    """Return a pod's requests; missing requests default to the limits."""
    resources = [container.get("resources", {}) for container in spec["containers"]]
    return total(amounts({**r.get("limits", {}), **r.get("requests", {})}) for r in resources)


def job_requests(job: Json) -> Amounts:
    """Return the requests of a whole gang."""
    return total(
        pod_requests(task["template"]["spec"])
        for task in job["spec"]["tasks"]
        for _ in range(task["replicas"])
    )
