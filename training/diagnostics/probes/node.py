"""The node to probe, and the record of findings from all nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.core.contract import DeviceKind
from training.core.host import Host
from training.core.orchestrators import BATCH_JOB_ID
from training.storage.results import now_utc
from trainium_catalogue.contract import CONTRACT_VERSION, ENV_JOB_ID
from trainium_catalogue.instances import InstanceType
from trainium_catalogue.probing import (
    Finding,
    ProbeRecord,
    Probes,
    ProbeSite,
    State,
    SubjectMissing,
)
from trainium_catalogue.releases import NeuronRelease

if TYPE_CHECKING:
    from training.core.contract import NodeContract
    from training.storage import Objects


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """The outcome of one of verify's checks."""

    ok: bool
    detail: str
    seconds: float = 0.0


def _no_client() -> Any:
    raise SubjectMissing("a bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedNode:
    """A node, probed by its first worker."""

    context: NodeContract
    num_ranks: int
    hang_limit_s: float = float("inf")
    env: Mapping[str, str]
    storage: Objects
    """The deployment's bucket or, without one, a local folder."""
    s3: Callable[[], Any] = _no_client
    """A boto3 client, for details that ``storage`` hides."""
    host: Host = field(default_factory=Host)
    root: Path = Path("/")
    """Folder with ``proc``, ``sys`` and ``etc``."""
    checks: Mapping[str, VerifyResult] = field(default_factory=dict)
    """Results of the checks completed so far."""

    @property
    def instance(self) -> InstanceType:
        """The catalogue's entry for this node's instance type."""
        if (instance := self.context.instance) is None:
            raise SubjectMissing("the name of the instance type")
        return instance

    @property
    def release(self) -> NeuronRelease:
        """The catalogue's entry for this image's release."""
        if (release := self.context.release) is None:
            raise SubjectMissing("the name of the Neuron release")
        return release

    @property
    def is_main(self) -> bool:
        """True on the node of rank 0."""
        return self.context.node_index == 0

    @property
    def met_requirements(self) -> frozenset[str]:
        """Probe requirements that this node meets."""
        context = self.context
        has_efa = (
            context.has_hardware
            and context.instance_type is not None
            and self.instance.num_efa_interfaces
        )
        facts = {
            "neuron": context.has_hardware,
            "torch_xla": context.device == DeviceKind.XLA,
            "TorchNeuron": context.device == DeviceKind.TORCH_NEURON,
            "EFA": bool(has_efa),
            "two nodes": context.num_nodes > 1,
            "one node": context.num_nodes == 1,
            "the main node": self.is_main,
            "Batch": BATCH_JOB_ID in self.env,
            "EKS": ENV_JOB_ID in self.env,
            "Lustre": context.lustre is not None,
            "a bucket": context.bucket is not None,
            "AWS": context.bucket is not None and context.endpoint_url is None,
        }
        names = {name for name, holds in facts.items() if holds}
        return frozenset(names | {f"check {name}" for name in self.checks})

    def text(self, path: str) -> str:
        """Read a file below the root; raise ``SubjectMissing`` if there is none."""
        try:
            return (self.root / path).read_text()
        except OSError:
            raise SubjectMissing(f"/{path}") from None


PROBES: Probes[ProbedNode] = Probes(ProbeSite.NODE)

# The worst finding of any node decides.
_WORST_FIRST = (State.CRASHED, State.RED, State.GREEN, State.NOT_RUN)


def run_probes(
    node: ProbedNode, report: Callable[[str], None], names: Iterable[str]
) -> list[Finding]:
    """Run probes on this node, one after another."""
    met = node.met_requirements
    findings = []
    for name in names:
        report(f"probing: {name}")
        findings.append(PROBES.run(name, node, met))
    return findings


def waiting(findings: Iterable[Finding]) -> list[str]:
    """Return the ids of probes that were not run because a check has not run yet."""
    return [
        finding.id
        for finding in findings
        if finding.state is State.NOT_RUN and any(n.startswith("check ") for n in finding.needs)
    ]


def merged(by_node: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Merge into one finding per probe: the worst one.

    A failure names its node if there are several nodes.
    """
    findings = []
    for same in zip(*by_node, strict=True):
        index, worst = min(
            enumerate(same), key=lambda pair: (_WORST_FIRST.index(pair[1].state), pair[0])
        )
        if len(same) > 1 and worst.state in (State.RED, State.CRASHED):
            worst = replace(worst, seen=f"node {index}: {worst.seen}")
        findings.append(worst)
    return findings


def record(node: ProbedNode, findings: Iterable[Finding]) -> dict[str, Any]:
    """Build the record that ``verify`` stores in the bucket."""
    context = node.context
    return ProbeRecord(
        contract_version=CONTRACT_VERSION,
        time=now_utc(),
        deployment=context.deployment,
        region=context.region,
        emulated="AWS" not in node.met_requirements,
        run=context.run,
        job_id=context.job_id,
        num_nodes=context.num_nodes,
        num_ranks=node.num_ranks,
        device=context.device,
        instance_type=context.instance_type,
        neuron_release=context.neuron_release,
        findings=tuple(findings),
    ).sealed()
