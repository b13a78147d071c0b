"""Problems that would block a planned run or a deployment's runs, with the causes of `explain`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.aws import Aws
from jobs.deployment import Deployment, DeploymentFields
from jobs.diagnosis.cause import Severity, fields
from jobs.diagnosis.evidence import EvidenceSource, Fact, RunEvidence
from jobs.diagnosis.planned import PlannedJobReader
from jobs.diagnosis.ranking import FactItem, ranked, shown
from jobs.errors import Refusal
from jobs.job import JobRequest
from jobs.orchestrators import service_for
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Positive, picked
from trainium_catalogue.workloads import Hardware

_COMMAND = re.compile(r"`((?:python -m jobs|cdk|aws|kubectl) [^`]+)`")


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """A cause that keeps a run from starting or working, or may do so."""

    severity: Severity
    cause: str
    """Stable name, as in `explain`."""
    says: str
    evidence: tuple[FactItem, ...]
    remedy: str
    """Command to paste; replace uppercase words."""
    source: str
    """Public source of the evidence's texts, or this project's file that writes them."""


@dataclass(frozen=True, kw_only=True)
class DoctorDocument(DeploymentFields):
    """Problems of a deployment, or of a planned run."""

    workload: str | None
    """Null for the deployment as a whole: runs on all nodes, and data jobs."""
    nodes: Positive
    orchestrators: tuple[Orchestrator, ...]
    obstacles: tuple[Obstacle, ...]
    """Problems, worst first."""
    passed: tuple[FactItem, ...]
    """Checks that passed."""
    unread: tuple[str, ...]
    """Checks that could not be run, with the missing permission or the reason."""

    @property
    def stops(self) -> bool:
        """True if a run cannot start until a problem is fixed."""
        return any(each.severity is Severity.STOPS for each in self.obstacles)


def examine(
    aws: Aws,
    target: Deployment,
    requests: Sequence[JobRequest],
    *,
    planned: str | None = None,
    refusals: Iterable[Refusal] = (),
) -> DoctorDocument:
    """Check the prerequisites of the requests, and build the document of `doctor`.

    Args:
        planned: Workload or program of the run; None for the deployment as a whole.
        refusals: Reasons why `submit` would refuse the run, or the deployment cannot run it.
    """
    obstacles: list[Obstacle] = []
    passed: dict[tuple[EvidenceSource, str], FactItem] = {}
    unread: list[str] = []
    seen: set[Hardware] = set()
    for number, request in enumerate(requests):
        evidence = RunEvidence()
        service = service_for(aws, target, request.orchestrator)
        reader = PlannedJobReader(aws, target, service, request, evidence)
        if number == 0:
            evidence.facts += [_refusal_fact(refusal, evidence) for refusal in refusals]
            reader.read_account(requests)
        if request.hardware not in seen:
            reader.read_capacity()
        seen.add(request.hardware)
        reader.read_orchestrator()
        if planned is not None or request.hardware is Hardware.TRAINIUM:
            permission = "batch:DescribeJobDefinitions and ecr:BatchGetImage"
            evidence.read("image", permission, reader.image)
        if planned is not None:
            evidence.read("runs ahead", "list jobs", reader.ahead)
        ranked_causes = ranked(evidence)
        names = fields(target, request, evidence)
        for cause, facts in ranked_causes:
            obstacles.append(
                picked(
                    Obstacle,
                    cause,
                    cause=cause.name,
                    evidence=shown(facts),
                    remedy=cause.remedy.format(**names),
                )
            )
        explained = [fact for _, facts in ranked_causes for fact in facts]
        for fact in evidence.facts:
            if fact not in explained:
                (each,) = shown([fact])
                passed[fact.source, fact.text] = each
        unread += evidence.unread
    order = list(Severity)
    obstacles.sort(key=lambda each: order.index(each.severity))
    return DoctorDocument(
        deployment=target.name,
        region=target.region,
        workload=planned,
        nodes=requests[0].num_nodes,
        orchestrators=tuple(dict.fromkeys(each.orchestrator for each in requests)),
        obstacles=tuple(dict.fromkeys(obstacles)),
        passed=tuple(passed.values()),
        unread=tuple(dict.fromkeys(unread)),
    )


def _refusal_fact(refusal: Refusal, evidence: RunEvidence) -> Fact:
    """Turn a refusal into a fact, with its command in backticks as the remedy."""
    if (command := _COMMAND.search(refusal.message)) is not None:
        evidence.names.setdefault("fix", command[1])  # the first of several, as in `submit`
    # Repeats the limit of the compute environment or node group, so it has the same source.
    is_limit = refusal.code == "too-many-nodes"
    source = EvidenceSource.LIMIT if is_limit else EvidenceSource.REQUEST
    return Fact(source=source, text=refusal.message, is_problem=True)
