"""Usage of a run's nodes, from neuron-monitor or from the pods' processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from jobs.deployment import RunFields
from jobs.eks.cluster import Cluster
from jobs.eks.pod_streams import run_in_pod
from jobs.errors import Refusal
from trainium_catalogue.documents import Natural

NEURON_MONITOR: Final = "neuron-monitor"
PROCESSES: Final = "processes"
"""Source without neuron-monitor: CPU time and memory of the pod's own processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Current usage of one node."""

    measured_by: Literal["neuron-monitor", "processes"]
    """processes: neuron-monitor is missing or fails, so the pod's own processes are measured."""
    cores_in_use: int | None = None
    core_percent: float | None = None
    """Mean over the NeuronCores in use."""
    device_bytes: int | None = None
    """Device memory used by Neuron runtimes."""
    cpu_percent: float | None = None
    """Usage of all the host's vCPUs; for processes, 100 is one vCPU."""
    memory_bytes: int | None = None
    """Memory in use on the host; for processes, their resident set size."""
    errors: tuple[str, ...] = ()
    """Errors in neuron-monitor's report."""


@dataclass(frozen=True, kw_only=True)
class NodeUsage(Usage):
    """Usage of one node of a run."""

    node: Natural
    pod: str | None


@dataclass(frozen=True, kw_only=True)
class TopDocument(RunFields):
    """The usage of a run's nodes."""

    job_id: str
    nodes: tuple[NodeUsage, ...]


def parse_neuron_monitor(line: str) -> Usage:
    """Parse one report of neuron-monitor; raise ``ValueError`` for anything else.

    Groups may be missing, be null or contain an error (Neuron documentation, Neuron Monitor User
    Guide, "The JSON output format").
    """
    report = json.loads(line)
    if not isinstance(report, dict) or "neuron_runtime_data" not in report:
        raise ValueError("not a report of neuron-monitor")
    percents: dict[str, float] = {}
    device_bytes: int | None = None
    errors: list[str] = []
    for runtime in report["neuron_runtime_data"] or ():
        _note(errors, runtime)
        groups = runtime.get("report") or {}
        counters = _group(groups, "neuroncore_counters", errors)
        for core, values in (counters.get("neuroncores_in_use") or {}).items():
            # Runtimes that share a core each account for part of it.
            percents[core] = percents.get(core, 0.0) + float(
                (values or {}).get("neuroncore_utilization") or 0.0
            )
        used = _group(groups, "memory_used", errors).get("neuron_runtime_used_bytes") or {}
        if used.get("neuron_device") is not None:
            device_bytes = (device_bytes or 0) + int(used["neuron_device"])
    system = report.get("system_data") or {}
    memory = _group(system, "memory_info", errors).get("memory_used_bytes")
    return Usage(
        measured_by=NEURON_MONITOR,
        cores_in_use=len(percents),
        core_percent=sum(percents.values()) / len(percents) if percents else 0.0,
        device_bytes=device_bytes or 0,
        cpu_percent=_cpu_percent(_group(system, "vcpu_usage", errors)),
        memory_bytes=None if memory is None else int(memory),
        errors=tuple(dict.fromkeys(errors)),
    )


def parse_processes(line: str) -> Usage:
    """Parse the output of ``PROCESS_SCRIPT``."""
    document = json.loads(line)
    return Usage(
        measured_by=PROCESSES,
        cpu_percent=float(document["cpu_percent"]),
        memory_bytes=int(document["memory_bytes"]),
    )


def _group(groups: Mapping[str, Any], name: str, errors: list[str]) -> Mapping[str, Any]:
    group: Mapping[str, Any] = groups.get(name) or {}
    _note(errors, group)
    return group


def _note(errors: list[str], part: Mapping[str, Any]) -> None:
    if part.get("error"):
        errors.append(str(part["error"]))


def _cpu_percent(usage: Mapping[str, Any]) -> float | None:
    average = usage.get("average_usage")
    if not average:
        return None
    idle = average.get("idle")
    if idle is not None:
        return round(100.0 - float(idle), 2)
    return round(sum(float(value) for value in average.values()), 2)


# Standard library only, because it runs in the pod. Processes belong to the pod if the job and node
# in their environment match: in a container all of them, on a laptop only some.
PROCESS_SCRIPT = """
import json, os, time
names = b"TRAINIUM_JOB_ID", b"TRAINIUM_NODE_INDEX"
mine = [os.environb.get(name) for name in names]
tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

def measure():
    usage = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                pairs = dict(p.split(b"=", 1) for p in file.read().split(b"\\0") if b"=" in p)
            if [pairs.get(name) for name in names] != mine or int(pid) == os.getpid():
                continue
            with open(f"/proc/{pid}/stat") as file:
                words = file.read().rpartition(")")[2].split()
            usage[pid] = (int(words[11]) + int(words[12])) / tick, int(words[21]) * page
        except OSError:
            continue
    return usage

first, started = measure(), time.monotonic()
time.sleep(0.5)
last, seconds = measure(), time.monotonic() - started
busy = sum(cpu - first[pid][0] for pid, (cpu, _) in last.items() if pid in first)
memory = sum(size for _, size in last.values())
print(json.dumps({"cpu_percent": round(100 * busy / seconds, 1), "memory_bytes": memory}))
"""
_LIMIT_S = 30.0

# The first report takes one period of neuron-monitor, 5 s by default.
_MONITOR = (
    "sh",
    "-c",
    "command -v neuron-monitor >/dev/null || exit 127; neuron-monitor | head -n 1",
)
_PROCESSES = ("python", "-c", PROCESS_SCRIPT)


def usage_of(cluster: Cluster, pod: str) -> Usage:
    """Measure a pod's node, or the pod's processes if neuron-monitor fails or is missing."""
    result = run_in_pod(cluster, pod, _MONITOR, limit_s=_LIMIT_S)
    if result.code == 0 and result.output.strip():
        return parse_neuron_monitor(result.output.splitlines()[0])
    result = run_in_pod(cluster, pod, _PROCESSES, limit_s=_LIMIT_S)
    if result.code != 0:
        raise Refusal(
            "no-usage",
            f"pod {pod} reports no usage (exit code {result.code}); check with: kubectl exec -it "
            f"{pod} -- neuron-top",
        )
    return parse_processes(result.output)


def usage_of_all(cluster: Cluster, pods: Mapping[int, str]) -> dict[int, Usage]:
    """Measure all nodes concurrently."""
    from concurrent.futures import ThreadPoolExecutor

    cluster.api()  # created before the threads use it
    with ThreadPoolExecutor(max_workers=min(16, len(pods))) as pool:
        futures = {node: pool.submit(usage_of, cluster, pod) for node, pod in pods.items()}
        return {node: future.result() for node, future in futures.items()}
