"""Which graphs have been compiled into the bucket's cache, and by whom: one key, one marker a node.

The compiled graphs themselves are in ``cache/neuron``, keyed by the compiler on their content
(``NEURON_COMPILE_CACHE_URL``); a marker says that all graphs of a run's steps are there. It is
written only where that was seen: TorchNeuron keeps its graphs on the node's disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from training.core.contract import DeviceKind
from training.storage import Objects, RetryPolicy, StorageError, open_objects
from training.storage.results import now_utc
from trainium_catalogue.contract import CACHE_PREFIX, GRAPHS_PREFIX
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import GRAPH_PARAMETERS

if TYPE_CHECKING:
    from training.core.progress import RunContext

COMPILED_PREFIX = f"{CACHE_PREFIX}compiled/"
_GRAPH = "/model.neff"
"""Ends the key of each compiled graph: neuronxcc-<version>/MODULE_<hash>/model.neff (as in the
public cache, huggingface.co/aws-neuron/optimum-neuron-cache)."""
_CODE = Path(__file__).resolve().parent.parent
_TRACED = (
    *("models/**/*.py", "backends/**/*.py", "launcher/settings.py"),
    *("trainer/loop.py", "trainer/compiling.py"),
)
"""Code that decides the graphs, the settings of the compiler, and what a job that compiles runs."""
_RETRY_POLICY = RetryPolicy(total_s=20.0)
"""A cache is a convenience: a job goes on without knowing what is in it."""


def code_version() -> str:
    """Of the code that is traced; another one may have other graphs."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _TRACED for path in _CODE.glob(pattern)):
        digest.update(str(path.relative_to(_CODE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def cache_key(context: RunContext, values: Mapping[str, Value]) -> str:
    """Equal for jobs that run the same graphs: 64 hexadecimal digits."""
    document = {
        "neuron_release": context.neuron_release,
        "device": context.device,
        "instance_type": context.instance_type,
        "num_nodes": context.num_nodes,
        "processes_per_node": context.processes_per_node,
        "parameters": {
            # How often a run evaluates is in no graph; whether it does is.
            name: bool(values[name]) if name == "eval-every" else values[name]
            for name in GRAPH_PARAMETERS
            if name in values
        },
        "code": code_version(),
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a marker says."""

    time: str
    run: str
    graphs: int | None
    """How many were compiled then; None where nothing counts them."""

    @property
    def text(self) -> str:
        """For the log."""
        return f"cache is warm: compiled {self.time} by {self.run}"


class CompileCache:
    """The markers of one key."""

    def __init__(self, context: RunContext, values: Mapping[str, Value], *, local: Path) -> None:
        """``local`` is the folder that takes the bucket's place where there is none."""
        self.key = cache_key(context, values)
        self._context = context
        root = open_objects(
            f"s3://{context.bucket}" if context.bucket else str(local),
            region=context.region,
            endpoint_url=context.endpoint_url,
            retry_policy=_RETRY_POLICY,
        )
        self._objects: Objects = root.at(f"{COMPILED_PREFIX}{self.key}")
        self._graphs: Objects = root.at(GRAPHS_PREFIX)

    def find(self) -> Compiled | None:
        """What the main node's marker says, if every node has left one."""
        try:
            found = [
                json.loads(self._objects.get(_marker(index)))
                for index in range(self._context.num_nodes)
            ]
        except (StorageError, OSError, ValueError):
            return None
        return Compiled(time=found[0]["time"], run=found[0]["run"], graphs=found[0]["graphs"])

    def doubt(self, graphs: int | None, env: Mapping[str, str]) -> str | None:
        """Why ``graphs``, as the compiler counted them, may not be in the bucket; None if they are.

        ``env`` is what the compiler was told. Raises storage's errors.
        """
        match DeviceKind(self._context.device):
            case DeviceKind.CPU:
                return None  # there is nothing to compile
            case DeviceKind.TORCH_NEURON:
                return "TorchNeuron keeps graphs on the node's disk (TORCH_NEURONX_NEFF_CACHE_DIR)"
        if self._context.bucket is None:
            return "this node has no bucket"
        here = f"s3://{self._context.bucket}/{GRAPHS_PREFIX}"
        # The flag beats the variable (Neuron documentation, persistent cache).
        if env.get("NEURON_COMPILE_CACHE_URL") != here or "--cache_dir" in env.get(
            "NEURON_CC_FLAGS", ""
        ):
            return f"the compiler was told to keep its graphs elsewhere than in {here}"
        if graphs is None:
            return "the compiler has not said how many graphs there are"
        found = sum(info.key.endswith(_GRAPH) for info in self._graphs.list())
        # Those of other runs are there too: fewer is proof of a lack, as many is all there is.
        if found < max(graphs, 1):
            return f"{self._graphs.uri} holds {found} compiled graphs"
        return None

    def remember(self, graphs: int | None) -> None:
        """This node has compiled all its graphs; raises storage's errors."""
        document = {
            "schema": 1,
            "time": now_utc(),
            "run": self._context.run,
            "job_id": self._context.job_id,
            "num_nodes": self._context.num_nodes,
            "neuron_release": self._context.neuron_release,
            "instance_type": self._context.instance_type,
            "graphs": graphs,
        }
        self._objects.put(
            _marker(self._context.node_index), json.dumps(document, indent=1).encode() + b"\n"
        )


def _marker(node_index: int) -> str:
    return f"node-{node_index}.json"
