"""How busy the nodes of a run are, asked in their pods."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from jobs.eks.cluster import Cluster
from jobs.eks.pod_exec import run_in_pod
from jobs.eks.usage import PROCESS_SCRIPT, Usage, parse_neuron_monitor, parse_processes
from jobs.errors import Refusal

_LIMIT_S = 30.0
# The first report comes after neuron-monitor's period, 5 s by default.
_MONITOR = (
    "sh",
    "-c",
    "command -v neuron-monitor >/dev/null || exit 127; neuron-monitor | head -n 1",
)
_PROCESSES = ("python", "-c", PROCESS_SCRIPT)


def usage_of(cluster: Cluster, pod: str) -> Usage:
    """One pod's node; its processes where the pod has no neuron-monitor."""
    found = run_in_pod(cluster, pod, _MONITOR, limit_s=_LIMIT_S)
    if found.code == 0 and found.output.strip():
        return parse_neuron_monitor(found.output.splitlines()[0])
    found = run_in_pod(cluster, pod, _PROCESSES, limit_s=_LIMIT_S)
    if found.code != 0:
        raise Refusal(
            "no-usage",
            f"pod {pod} tells nothing of itself (exit code {found.code}); look with: kubectl exec "
            f"-it {pod} -- neuron-top",
        )
    return parse_processes(found.output)


def usage_of_all(cluster: Cluster, pods: Mapping[int, str]) -> dict[int, Usage]:
    """Every node's, asked at the same time."""
    cluster.api()
    with ThreadPoolExecutor(max_workers=min(16, len(pods))) as pool:
        asked = {node: pool.submit(usage_of, cluster, pod) for node, pod in pods.items()}
        return {node: answer.result() for node, answer in asked.items()}
