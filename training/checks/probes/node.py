"""What the probes of a node look at, and which of them have something to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.core.contract import DeviceKind
from training.core.contract_batch import ENV_JOB_ID as ENV_BATCH_JOB
from training.launcher.host import Host
from trainium_catalogue.contract import ENV_JOB_ID
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.probing import Missing, Place, Probes
from trainium_catalogue.releases import NeuronRelease, find_release

if TYPE_CHECKING:
    from training.core.progress import RunContext
    from training.storage import Objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How a check of the workload ``verify`` ended."""

    ok: bool
    detail: str
    seconds: float = 0.0


def _no_client() -> Any:
    raise Missing("a bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, seen by its first worker."""

    context: RunContext
    num_ranks: int
    env: Mapping[str, str]
    storage: Objects
    """The deployment's bucket, or a folder in its place."""
    s3: Callable[[], Any] = _no_client
    """A boto3 client, for what ``storage`` hides."""
    host: Host = field(default_factory=Host)
    root: Path = Path("/")
    """Holds ``proc``, ``sys`` and ``etc``."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    """Those that have ended so far."""

    @property
    def instance(self) -> InstanceType:
        """The catalogue's, of this node."""
        if self.context.instance_type is None:
            raise Missing("the name of the instance type")
        return find_instance_type(self.context.instance_type)

    @property
    def release(self) -> NeuronRelease:
        """The catalogue's, of this image."""
        if self.context.neuron_release is None:
            raise Missing("the name of the Neuron release")
        return find_release(self.context.neuron_release)

    @property
    def is_main(self) -> bool:
        """Whether this is the node of rank 0."""
        return self.context.node_index == 0

    @property
    def there(self) -> frozenset[str]:
        """What a probe may need and finds here."""
        context = self.context
        on_neuron = context.device != DeviceKind.CPU
        has_efa = (
            on_neuron and context.instance_type is not None and self.instance.num_efa_interfaces
        )
        facts = {
            "neuron": on_neuron,
            "torch_xla": context.device == DeviceKind.XLA,
            "EFA": bool(has_efa),
            "two nodes": context.num_nodes > 1,
            "one node": context.num_nodes == 1,
            "the main node": self.is_main,
            "Batch": ENV_BATCH_JOB in self.env,
            "EKS": ENV_JOB_ID in self.env,
            "Lustre": context.lustre is not None,
            "a bucket": context.bucket is not None,
            "AWS": context.bucket is not None and context.endpoint_url is None,
        }
        names = {name for name, holds in facts.items() if holds}
        return frozenset(names | {f"check {name}" for name in self.checks})

    def text(self, path: str) -> str:
        """A file below the root; ``Missing`` where there is none."""
        try:
            return (self.root / path).read_text()
        except OSError:
            raise Missing(f"/{path}") from None


PROBES: Probes[Node] = Probes(Place.NODE)
