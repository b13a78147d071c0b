"""Compile a run's graphs on one node: torchrun under ``neuron_parallel_compile``.

    python -m training.launcher.compile_graphs <workload> [--parameter value]... -- <command>...

The tool runs the command with NEURON_EXTRACT_GRAPHS_ONLY, which computes nothing, then compiles the
recorded graphs and prints how many failed, which its exit code does not reveal (AWS Neuron
documentation, neuron_parallel_compile). On other devices the command runs unchanged.

The compiler stores graphs in ``cache/neuron`` under a hash of their content
(``NEURON_COMPILE_CACHE_URL``). A marker per node, keyed by everything that determines the graphs,
states that all graphs of a run's steps are there. It is written only after a check, because
TorchNeuron keeps its graphs on the node's disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.core.arguments import parse
from training.core.contract import DeviceKind, NodeContract
from training.core.heartbeat import Pacer, heartbeat
from training.core.logs import set_up_logging
from training.core.processes import die_with_parent
from training.core.progress import ENV_SCRATCH, WorkerProgress
from training.launcher import bucket_records
from training.storage import Objects, RetryPolicy, StorageAccess, StorageError
from training.storage.results import now_utc
from trainium_catalogue.contract import CACHE_PREFIX, ENV_JOB_ID, GRAPHS_PREFIX
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import GRAPH_PARAMETERS
from trainium_catalogue.typed_json import read_json
from trainium_catalogue.wording import counted

MODULE = "training.launcher.compile_graphs"
COMPILED_PREFIX = f"{CACHE_PREFIX}compiled/"
_GRAPH = "/model.neff"
"""Suffix of a compiled graph's key: neuronxcc-<version>/MODULE_<hash>/model.neff (as in the public
cache, huggingface.co/aws-neuron/optimum-neuron-cache)."""
_CODE = Path(__file__).resolve().parent.parent
_TRACED = (
    *("models/**/*.py", "backends/**/*.py", "launcher/settings.py"),
    *("trainer/loop.py", "trainer/compiling.py"),
)
"""Code that determines the graphs, the compiler's settings and the steps of a compile job."""
_RETRY_POLICY = RetryPolicy(total_s=20.0)
"""Short, because the cache is optional: a job continues if it cannot be read."""
_LOCAL_ROOT = Path("build")
_TOTAL = re.compile(r"Total (graphs|successful compilations|failed compilations): (\d+)")

log = logging.getLogger(MODULE)


def compile_command(
    node: NodeContract, command: Sequence[str], *, python: str, argv: Sequence[str]
) -> list[str]:
    """Wrap ``command`` as separate arguments; the tool treats a single string as a path."""
    tool = ["neuron_parallel_compile"] if node.device is DeviceKind.XLA else []
    return [python, "-m", MODULE, *argv, "--", *tool, *command]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiled:
    """Fields read from a node's marker: which run compiled its graphs, and when."""

    time: str
    run: str


@dataclass(slots=True, kw_only=True)
class Summary:
    """The summary that ``neuron_parallel_compile`` prints at the end."""

    graphs: int | None = None
    failed: int = 0

    def read(self, line: str) -> None:
        """Parse one line of its output."""
        if (match := _TOTAL.search(line)) is None:
            return
        number = int(match[2])
        if match[1] == "graphs":
            self.graphs = max(self.graphs or 0, number)
        elif match[1].startswith("failed"):
            self.failed = max(self.failed, number)

    @property
    def problem(self) -> str | None:
        """The reason for a failure, if any."""
        if self.failed == 0:
            return None
        return (
            f"{self.failed} of {self.graphs or self.failed} graphs failed to compile; the "
            "compiler's errors are in the log above. The cache also stores failures: set "
            "NEURON_CC_FLAGS=--retry_failed_compilation, or use another model or Neuron release"
        )


def code_version() -> str:
    """Hash the code that is traced into graphs."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _TRACED for path in _CODE.glob(pattern)):
        digest.update(str(path.relative_to(_CODE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def cache_key(node: NodeContract, values: Mapping[str, Value]) -> str:
    """Hash everything that determines the graphs; equal jobs have equal keys."""
    document = {
        "neuron_release": node.neuron_release,
        "device": node.device,
        "instance_type": node.instance_type,
        "num_nodes": node.num_nodes,
        "processes_per_node": node.processes_per_node,
        "parameters": {
            # The graphs depend on whether a run evaluates, not on how often.
            name: bool(values[name]) if name == "eval-every" else values[name]
            for name in GRAPH_PARAMETERS
            if name in values
        },
        "code": code_version(),
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


class CompileCache:
    """The markers of one key."""

    def __init__(self, node: NodeContract, values: Mapping[str, Value], *, local: Path) -> None:
        """Open the cache in the bucket or, without one, in the folder ``local``."""
        self.key = cache_key(node, values)
        self._node = node
        root = StorageAccess.of(node, local=local).open_root(retry_policy=_RETRY_POLICY)
        self._objects: Objects = root.at(f"{COMPILED_PREFIX}{self.key}")
        self._graphs: Objects = root.at(GRAPHS_PREFIX)

    def find(self) -> str | None:
        """Describe the run that compiled all graphs; None if a node's marker is missing."""
        try:
            markers = [
                read_json(self._objects.get(_marker(index)), _Compiled)
                for index in range(self._node.num_nodes)
            ]
        except (StorageError, OSError, ValueError):
            return None
        return f"cache is warm: compiled {markers[0].time} by {markers[0].run}"

    def why_incomplete(self, graphs: int | None, env: Mapping[str, str]) -> str | None:
        """Return why some of the compiler's ``graphs`` may not be in the bucket, or None.

        ``env`` is the compiler's environment. Raises storage errors.
        """
        match self._node.device:
            case DeviceKind.CPU:
                return None  # there is nothing to compile
            case DeviceKind.TORCH_NEURON:
                return "TorchNeuron compiles during training"
        if self._node.bucket is None:
            return "this node has no bucket"
        here = f"s3://{self._node.bucket}/{GRAPHS_PREFIX}"
        # --cache_dir overrides the variable (Neuron documentation, persistent cache).
        if env.get("NEURON_COMPILE_CACHE_URL") != here or "--cache_dir" in env.get(
            "NEURON_CC_FLAGS", ""
        ):
            return f"the compiler is configured to store its graphs somewhere other than {here}"
        if graphs is None:
            return "the compiler did not report the number of graphs"
        stored = sum(info.key.endswith(_GRAPH) for info in self._graphs.list())
        # Graphs of other runs are counted too, so this can only prove that some are missing.
        if stored < max(graphs, 1):
            return f"{self._graphs.uri} contains only {counted(stored, 'compiled graph')}"
        return None

    def record(self, graphs: int | None) -> None:
        """Record that this node has compiled all its graphs. Raises storage errors."""
        document = {
            "schema": 1,
            "time": now_utc(),
            "run": self._node.run,
            "job_id": self._node.job_id,
            "num_nodes": self._node.num_nodes,
            "neuron_release": self._node.neuron_release,
            "instance_type": self._node.instance_type,
            "graphs": graphs,
        }
        self._objects.put(
            _marker(self._node.node_index), json.dumps(document, indent=1).encode() + b"\n"
        )


def _marker(node_index: int) -> str:
    return f"node-{node_index}.json"


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Compile on this node unless already done; return the exit code."""
    set_up_logging()
    split = list(argv).index("--")
    request, command = parse(argv[:split]), argv[split + 1 :]
    scratch = Path(env[ENV_SCRATCH])
    node = NodeContract.read(scratch)
    # Report as an extra worker, so that a long compilation does not count as a hang.
    progress = WorkerProgress(scratch, local_rank=node.processes_per_node, rank=-1)
    progress.report("looking for compiled graphs")
    progress.begin()
    cache = CompileCache(node, request.values, local=_LOCAL_ROOT)
    if (compiled := cache.find()) is not None:
        log.info("compile: %s", compiled)
        progress.finish()
        return ExitCode.OK
    log.info("compile: cache is cold: no job has compiled the graphs of key %s", cache.key[:12])
    summary = Summary()
    status = _run(command, summary, _reporter(progress, node, env))
    if summary.problem is not None:
        progress.fail(ExitCode.WORKLOAD, summary.problem)
        return ExitCode.WORKLOAD
    if status == 0:
        _record(cache, summary, env)
        progress.finish()
    return status


def _reporter(
    progress: WorkerProgress, node: NodeContract, env: Mapping[str, str]
) -> Callable[[str], None]:
    """Return a function that reports progress to the launcher, and to a waiting Volcano job."""
    if ENV_JOB_ID not in env or node.bucket is None or node.node_index != 0:
        return progress.report
    results = bucket_records.open_folder(node, bucket_records.RESULTS_PREFIX)
    pacer = Pacer(bucket_records.HEARTBEAT_S)

    def report(step: str) -> None:
        progress.report(step)
        if pacer.due(time.monotonic()):
            bucket_records.write_heartbeat(results, node.job_id)

    return report


def _run(command: Sequence[str], summary: Summary, report: Callable[[str], None]) -> int:
    """Run the command, forwarding its output and reporting progress; return its status."""
    parent = os.getpid()
    # No thread is running yet, so running code between fork and exec is safe.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=lambda: die_with_parent(parent),
    )
    assert process.stdout is not None
    with heartbeat(report, "compiling", at_most_s=float("inf")):
        for line in process.stdout:
            print(line, end="", flush=True)
            summary.read(line)
        return process.wait()


def _record(cache: CompileCache, summary: Summary, env: Mapping[str, str]) -> None:
    graphs = "" if summary.graphs is None else f" ({counted(summary.graphs, 'graph')})"
    try:
        if (reason := cache.why_incomplete(summary.graphs, env)) is not None:
            log.info("compile: compiled%s, but not recorded as complete: %s", graphs, reason)
            return
        cache.record(summary.graphs)
    except (StorageError, OSError) as error:
        # The graphs are in the cache; the next job only has to look up each of them.
        log.info("compile: compiled%s, but the marker could not be written: %s", graphs, error)
        return
    key = cache.key[:12]
    log.info("compile: compiled%s; the next job with key %s will find the cache warm", graphs, key)


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:], os.environ))
