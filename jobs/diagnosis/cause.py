"""The table of causes (causes.toml): their evidence, meaning, and a command to paste."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from jobs.capacity import ON_DEMAND, SPOT, TRAINIUM, Quota, needed_quota
from jobs.deployment import Deployment, cli_command
from jobs.diagnosis.evidence import EvidenceSource, Fact, RunEvidence
from jobs.eks.nodes import scale_command
from jobs.job import Job, JobRequest
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode
from trainium_catalogue.instances import JOB_VCPUS
from trainium_catalogue.neuron_faults import NEURON_FAULTS
from trainium_catalogue.workloads import WORKLOADS, Hardware, Workload
from trainium_catalogue.zones import ZONES

_TABLE = Path(__file__).with_name("causes.toml")
_UNKNOWN_SETTINGS = "-c trainium:SETTINGS=IT-WAS-DEPLOYED-WITH"
"""Placeholder for unknown settings: a key that the app refuses."""
_SINGLE_ZONE = ("subnet_id", "capacity_block_id", "capacity_reservation_id", "placement_group")
"""Keys of single-zone resources, which the app refuses in combination with several zones."""
NO_CAPACITY_CAUSE = "no-capacity"
"""The cause that makes a job move to another zone."""
SOURCES: Mapping[str, tuple[EvidenceSource, ...]] = {
    **{source.value: (source,) for source in EvidenceSource},
    "launch": (EvidenceSource.ACTIVITY, EvidenceSource.NODE_GROUP),
    "pod": (EvidenceSource.REASON, EvidenceSource.EVENT),
    "words": (EvidenceSource.REASON, EvidenceSource.LOG),
    "anywhere": (EvidenceSource.REASON, EvidenceSource.EVENT, EvidenceSource.LOG),
}
"""Names in the table for one or more sources."""


class Severity(StrEnum):
    """Effect of a cause on a run that is not yet submitted, worst first."""

    STOPS = "stops"
    WAITS = "will wait"
    WARNING = "warning"


class Rank(IntEnum):
    """Proximity of a cause to the root cause; smaller is closer."""

    DECISION = 0
    """A decision of a user, such as a stop or a time limit."""
    ORIGIN = 1
    SYMPTOM = 2
    """A consequence of another cause, which may be known too."""
    EXIT_CODE = 3
    """Only the exit code is known."""
    NORMAL = 4
    """No problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One entry of the table."""

    name: str
    """Stable name."""
    says: str
    texts: Mapping[str, str]
    """Regular expressions of matching texts, by a name in ``SOURCES``."""
    problems: tuple[EvidenceSource, ...]
    """Sources whose facts match if they are problems."""
    rank: Rank
    severity: Severity
    codes: tuple[int, ...]
    """Matching exit codes; empty for any or none."""
    remedy: str
    source: str

    @property
    def line(self) -> str:
        """Name and meaning in one line."""
        return f"{self.name}: {self.says}"

    def shown_by(self, evidence: RunEvidence) -> Iterator[tuple[int, Fact]]:
        """Yield the matching facts, each with its position in the evidence."""
        if self.codes and evidence.exit_code not in self.codes:
            return
        for place, fact in enumerate(evidence.facts):
            if (fact.is_problem and fact.source in self.problems) or any(
                fact.source in SOURCES[where] and re.search(text, fact.text, re.IGNORECASE)
                for where, text in self.texts.items()
            ):
                yield place, fact


_FAULT_PATTERNS = {fault.name: fault.pattern for fault in NEURON_FAULTS}


def _cause(name: str, entry: Mapping[str, Any]) -> Cause:
    """Parse an entry; several expressions for one source are alternatives."""
    texts = {
        where: [text] if isinstance(text := entry[where], str) else text
        for where in SOURCES
        if where in entry
    }
    if faults := entry.get("faults"):
        texts["words"] = [*texts.get("words", ()), *(_FAULT_PATTERNS[fault] for fault in faults)]
    return Cause(
        name=name,
        says=entry["says"],
        texts={where: "|".join(alternatives) for where, alternatives in texts.items()},
        problems=tuple(source for where in entry.get("problems", ()) for source in SOURCES[where]),
        rank=Rank[entry.get("rank", "origin").upper()],
        severity=Severity[entry.get("severity", "stops").upper()],
        codes=tuple(entry.get("codes", ())),
        remedy=entry["remedy"],
        source=entry["source"],
    )


def _exit_code_cause(code: ExitCode) -> Cause:
    """Build the cause for an exit code without further evidence."""
    details = EXIT_CODES[code]
    entry = {
        "says": details.meaning,
        "state": "^FAILED",
        "rank": "exit_code",
        "codes": [code.value],
        "remedy": "{again}" if details.retry else "{jobs} logs {run} --node 0",
        "source": "trainium_catalogue/exit_codes.py",
    }
    return _cause(f"exit-code-{code.value}", entry)


CAUSES: tuple[Cause, ...] = (
    *(_cause(name, entry) for name, entry in tomllib.loads(_TABLE.read_text("utf-8")).items()),
    *(_exit_code_cause(code) for code in EXIT_CODES if code is not ExitCode.OK),
)


def fields(target: Deployment, job: Job | JobRequest, evidence: RunEvidence) -> dict[str, object]:
    """Return the values of remedies' placeholders for a run, by name.

    ``./train.py`` represents the user's program.
    """
    jobs, workload = cli_command(target), WORKLOADS.get(job.workload or "")
    known = None if workload is None or workload.runs_program else workload
    what = ["./train.py" if known is None else known.name]
    if known is None or known.hardware is not Hardware.CPU:
        what += ["--nodes", str(job.num_nodes)]
    if job.orchestrator is Orchestrator.EKS:
        what += ["--on", "eks"]
    again = f"{jobs} submit {' '.join(what)} --name {job.run}"
    logs = f"{jobs} logs {job.run} --node 0"
    on_cpu, settings = job.hardware is Hardware.CPU, target.settings or {}
    trainium = (TRAINIUM, target.instance_type.vcpus_for(job.num_nodes))
    quota = needed_quota(target, job.hardware, job.num_nodes)
    redeploy = target.redeploy().split("`")[1]
    if target.settings is None:
        redeploy += f" {_UNKNOWN_SETTINGS}"
    grown = f"{redeploy} -c trainium:max_nodes={max(job.num_nodes, target.max_nodes)}"
    key = _more_zones(target)
    zone = f"{redeploy} -c trainium:{key}"
    if key is None:
        # The deployment already uses all zones: the job moves from one to the next, and waits in
        # the last.
        zone = again if isinstance(job, JobRequest) else f"{jobs} logs {job.run} --follow"
    elif Orchestrator.EKS in target.orchestrators:
        # Deploying would replace the node group with all its nodes, so only preview it.
        synth = zone.replace("cdk deploy --all", "cdk synth --quiet", 1)
        zone = f"{synth} && {jobs} check-deploy"
    current = target.zone_of(job.job_queue)
    queue = target.job_queue if current is None else current.job_queue
    environment = target.compute_environment if current is None else current.compute_environment
    gib = int(settings.get("root_volume_gib", contract.ROOT_VOLUME_GIB))
    return {
        "jobs": jobs,
        "run": job.run,
        "again": again,
        "less_memory": again if known is None else _less_memory(known, job, again) or logs,
        "smaller_rate": again if known is None else _adjust(known, again, "lr", "SMALLER") or logs,
        "with_module": (f"{again} --requirements requirements.txt" if known is None else redeploy),
        "hours": f"{target.cap_hours(job.orchestrator):g}",
        "quota": _increase(evidence, *(quota or ((ON_DEMAND, JOB_VCPUS) if on_cpu else trainium))),
        "spot_quota": _increase(evidence, SPOT, JOB_VCPUS),
        "redeploy": redeploy,
        "grown": grown,
        "room": grown if job.num_nodes > target.max_nodes else f"{jobs} list",
        "zone": zone,
        "volume": "GIB" if target.settings is None else min(2 * gib, contract.MAX_ROOT_VOLUME_GIB),
        "data_uris": "".join(f"{uri}," for uri in target.data_uris),
        "scale": scale_command(target, job.num_nodes),
        "region": f"--region {target.region}",
        "namespace": f"-n {target.eks.namespace}" if target.eks else "",
        "queue": (target.cpu_job_queue if on_cpu else queue) or "QUEUE",
        "environment": (None if on_cpu else environment) or "ENVIRONMENT",
        "group": target.default_security_group or "GROUP",
        "bucket": target.bucket,
        "vpc": target.vpc or "VPC",
        "endpoint": "SERVICE",
        "cluster": target.eks.cluster if target.eks else "CLUSTER",
        "node_group": next(iter(target.eks.node_groups.values())) if target.eks else "NODE-GROUP",
        "key": settings.get("bucket_kms_key_arn", "KEY"),
        "key_action": "enable-key",
        "principal": "PRINCIPAL",
        "denied": "ACTION",
        "fix": f"{jobs} doctor",
        **evidence.names,
    }


def _more_zones(target: Deployment) -> str | None:
    """Return a context setting (``key=value``) that adds zones; None if there are no more.

    If the nodes are tied to a zone, the setting changes that zone instead.
    """
    settings, region = target.settings or {}, target.region
    offered = [
        zone
        for zone in ZONES.get(region, ())
        if zone in target.instance_type.zone_ids.get(region, ())
    ]
    first = settings.get("availability_zone_id", next(iter(offered), ""))
    zones = str(settings.get("zone_ids", first)).split(",")
    others = [zone for zone in offered if zone not in zones]
    if len(zones) > 1 and not others:
        return None
    if zones[0] not in offered or not others or any(key in settings for key in _SINGLE_ZONE):
        return "availability_zone_id=ANOTHER"
    return f"zone_ids={','.join([*zones, *others])}"


def _increase(evidence: RunEvidence, quota: Quota, vcpus: int) -> str:
    """Return options that request a quota increase.

    If the quota would suffice for the job alone, other instances use it: the job's vCPUs are added.
    """
    current = evidence.quotas.get(quota.code, 0)
    desired = current + vcpus if current >= vcpus else vcpus
    return f"--quota-code {quota.code} --desired-value {desired}"


def _adjust(known: Workload, again: str, name: str, value: str) -> str | None:
    """Return the submission with a changed value; None if the workload has no such parameter."""
    exists = any(item.name == name for item in known.parameters)
    return f"{again} --{name} {value}" if exists else None


def _less_memory(known: Workload, job: Job | JobRequest, again: str) -> str | None:
    """Return the submission with parameters that need less device memory.

    None if the workload has no such parameter.
    """
    defaults = {f"--{item.name}": str(item.default) for item in known.parameters}
    command = job.command if isinstance(job, Job) else job.command()
    given = {**defaults, **dict(pairwise(command))}
    if given.get("--micro-batch") == "1":
        return _adjust(known, again, "tensor-parallel", "LARGER")
    return _adjust(known, again, "micro-batch", "SMALLER")
