"""The table of causes (causes.toml): what shows each, what it means, and a line to paste."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from jobs.capacity import ON_DEMAND, SPOT, TRAINIUM, Quota, needed_quota
from jobs.deployment import Deployment
from jobs.diagnosis.evidence import EvidenceSource, Fact, RunEvidence
from jobs.eks.nodes import scale_command
from jobs.job import Job
from jobs.output.console import cli_command
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode
from trainium_catalogue.instances import JOB_VCPUS
from trainium_catalogue.workloads import WORKLOADS, Hardware, Workload

_TABLE = Path(__file__).with_name("causes.toml")
_UNKNOWN_SETTINGS = "-c trainium:SETTINGS=IT-WAS-DEPLOYED-WITH"
"""Takes the place of settings that are not known: a key that the app refuses."""
SOURCES: Mapping[str, tuple[EvidenceSource, ...]] = {
    **{source.value: (source,) for source in EvidenceSource},
    "launch": (EvidenceSource.ACTIVITY, EvidenceSource.NODE_GROUP),
    "pod": (EvidenceSource.REASON, EvidenceSource.EVENT),
    "words": (EvidenceSource.REASON, EvidenceSource.LOG),
    "anywhere": (EvidenceSource.REASON, EvidenceSource.EVENT, EvidenceSource.LOG),
}
"""What the table calls one source or several."""


class Rank(IntEnum):
    """How close to the origin of the trouble a cause is: the smaller, the closer."""

    DECISION = 0
    """A person, or a limit that a person gave."""
    ORIGIN = 1
    SYMPTOM = 2
    """What follows from something else, which may be known as well."""
    EXIT_CODE = 3
    """All that is known is the exit code."""
    NORMAL = 4
    """Nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One entry of the table."""

    name: str
    """Stable word."""
    says: str
    texts: Mapping[str, str]
    """By a name of ``SOURCES``: regular expression of a text that shows it."""
    wrong: tuple[EvidenceSource, ...]
    """Sources of which a fact that is wrong shows it."""
    rank: Rank
    codes: tuple[int, ...]
    """Exit codes that it fits; empty: any, and a job that has none."""
    remedy: str
    source: str

    @property
    def line(self) -> str:
        """The cause in one line."""
        return f"{self.name}: {self.says}"

    def shown_by(self, evidence: RunEvidence) -> Iterator[tuple[int, Fact]]:
        """Yield the facts that show it, each with its place in the evidence."""
        if self.codes and evidence.exit_code not in self.codes:
            return
        for place, fact in enumerate(evidence.facts):
            if (fact.wrong and fact.source in self.wrong) or any(
                fact.source in SOURCES[where] and re.search(text, fact.text, re.IGNORECASE)
                for where, text in self.texts.items()
            ):
                yield place, fact


def _cause(name: str, entry: Mapping[str, Any]) -> Cause:
    """Read one entry; several expressions of one source are alternatives."""
    texts = {where: entry[where] for where in SOURCES if where in entry}
    return Cause(
        name=name,
        says=entry["says"],
        texts={
            where: "|".join([text] if isinstance(text, str) else text)
            for where, text in texts.items()
        },
        wrong=tuple(source for where in entry.get("wrong", ()) for source in SOURCES[where]),
        rank=Rank[entry.get("rank", "origin").upper()],
        codes=tuple(entry.get("codes", ())),
        remedy=entry["remedy"],
        source=entry["source"],
    )


def _of_code(code: ExitCode) -> Cause:
    """The cause of which nothing but the exit code is known."""
    ending = EXIT_CODES[code]
    entry = {
        "says": ending.meaning,
        "state": "^FAILED",
        "rank": "exit_code",
        "codes": [code.value],
        "remedy": "{again}" if ending.retry else "{jobs} logs {run} --node 0",
        "source": "trainium_catalogue/exit_codes.py",
    }
    return _cause(f"exit-code-{code.value}", entry)


CAUSES: tuple[Cause, ...] = (
    *(_cause(name, entry) for name, entry in tomllib.loads(_TABLE.read_text("utf-8")).items()),
    *(_of_code(code) for code in EXIT_CODES if code is not ExitCode.OK),
)


def fields(target: Deployment, job: Job, evidence: RunEvidence) -> dict[str, object]:
    """Return what remedies name, of one run; ``./train.py`` is the user's program."""
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
    zone = f"{redeploy} -c trainium:availability_zone_id=ANOTHER"
    if Orchestrator.EKS in target.orchestrators:
        # It replaces the node group, whose nodes end: only look.
        synth = zone.replace("cdk deploy --all", "cdk synth --quiet", 1)
        zone = f"{synth} && {jobs} check-deploy"
    gib = int(settings.get("root_volume_gib", contract.ROOT_VOLUME_GIB))
    return {
        "jobs": jobs,
        "run": job.run,
        "again": again,
        "less_memory": again if known is None else _less_memory(known, job, again) or logs,
        "smaller_rate": again if known is None else _changed(known, again, "lr", "SMALLER") or logs,
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
        "queue": (target.cpu_job_queue if on_cpu else target.job_queue) or "QUEUE",
        "environment": (None if on_cpu else target.compute_environment) or "ENVIRONMENT",
        "group": target.default_security_group or "GROUP",
        **evidence.names,
    }


def _increase(evidence: RunEvidence, quota: Quota, vcpus: int) -> str:
    """Options that ask for more of a quota: of one that holds the job, others use some."""
    current = evidence.quotas.get(quota.code, 0)
    desired = current + vcpus if current >= vcpus else vcpus
    return f"--quota-code {quota.code} --desired-value {desired}"


def _changed(known: Workload, again: str, name: str, value: str) -> str | None:
    """The same submission with another value; None if the workload has no such parameter."""
    has = any(item.name == name for item in known.parameters)
    return f"{again} --{name} {value}" if has else None


def _less_memory(known: Workload, job: Job, again: str) -> str | None:
    """The same submission with less at once on a device."""
    defaults = {f"--{item.name}": str(item.default) for item in known.parameters}
    given = {**defaults, **dict(pairwise(job.command))}
    if given.get("--micro-batch") == "1":
        return _changed(known, again, "tensor-parallel", "LARGER")
    return _changed(known, again, "micro-batch", "SMALLER")
