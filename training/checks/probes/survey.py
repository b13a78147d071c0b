"""All probes of all nodes, as one record in the bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from training.checks.probes import PROBES, Node
from training.storage.results import now_utc
from trainium_catalogue.contract import CONTRACT_VERSION
from trainium_catalogue.probing import SCHEMA, Finding, State, sealed

# The worst that any node found is what is said of all.
_WORST_FIRST = (State.CRASHED, State.RED, State.GREEN, State.NOT_RUN)


def look(node: Node, report: Callable[[str], None], names: Iterable[str]) -> list[Finding]:
    """Run probes on this node, one after the other."""
    there = node.there
    findings = []
    for name in names:
        report(f"probing: {name}")
        findings.append(PROBES.run(name, node, there))
    return findings


def waiting(findings: Iterable[Finding]) -> list[str]:
    """Ids of the probes that need a check which had not ended yet."""
    return [
        finding.id
        for finding in findings
        if finding.state is State.NOT_RUN and any(n.startswith("check ") for n in finding.needs)
    ]


def merged(by_node: Sequence[Sequence[Finding]]) -> list[Finding]:
    """One finding a probe; where nodes differ the worst, with the node that found it."""
    found = []
    for same in zip(*by_node, strict=True):
        index, worst = min(
            enumerate(same), key=lambda pair: (_WORST_FIRST.index(pair[1].state), pair[0])
        )
        if len(same) > 1 and worst.state in (State.RED, State.CRASHED):
            worst = replace(worst, seen=f"node {index}: {worst.seen}")
        found.append(worst)
    return found


def record(node: Node, findings: Iterable[Finding]) -> dict[str, Any]:
    """What the run of ``verify`` leaves in the bucket."""
    context = node.context
    return sealed(
        {
            "schema": SCHEMA,
            "contract_version": CONTRACT_VERSION,
            "time": now_utc(),
            "deployment": context.deployment,
            "region": context.region,
            "emulated": "AWS" not in node.there,
            "run": context.run,
            "job_id": context.job_id,
            "num_nodes": context.num_nodes,
            "num_ranks": node.num_ranks,
            "device": context.device,
            "instance_type": context.instance_type,
            "neuron_release": context.neuron_release,
            "findings": [finding.document() for finding in findings],
        }
    )
