"""Probes of chips, EFA, device files, memory, limits, and the results of verify's checks."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from training.core.host import gib
from training.diagnostics.probes.node import PROBES, ProbedNode
from trainium_catalogue.probing import ProbeResult, SubjectMissing

_NEURON_LS = "/opt/aws/neuron/bin/neuron-ls"
_TIMEOUT_S = 30
_OPEN_FILES = 65_536
"""Minimum limit on open files, the same as in preflight."""
_CGROUP_FILES = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files of cgroup v2, then v1."""


@PROBES.probe("chips-and-memory", needs=("neuron",))
def chips(node: ProbedNode) -> ProbeResult:
    """The chips, cores and device memory that neuron-ls lists match the catalogue."""
    command = shutil.which("neuron-ls") or _NEURON_LS
    if not Path(command).exists():
        raise SubjectMissing("neuron-ls in the image")
    output = subprocess.run(
        [command, "--json-output"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    ).stdout
    # Neuron documentation, neuron-ls user guide.
    document = json.loads(output)
    chips = document if isinstance(document, list) else document["neuron_devices"]
    cores = sum(int(chip["nc_count"]) for chip in chips)
    memory = {int(chip["memory_size"]) // 2**30 for chip in chips}
    wanted = node.instance
    # With an LNC of 2 the listed cores may be physical or logical.
    core_counts = {wanted.num_neuron_cores, wanted.num_logical_cores}
    return ProbeResult(
        ok=len(chips) == wanted.num_neuron_devices
        and cores in core_counts
        and memory == {wanted.hbm_gib_per_device},
        seen=f"{len(chips)} chips, {cores} cores, {sorted(memory)} GiB per chip",
        expected=f"{wanted.num_neuron_devices} chips, {wanted.num_neuron_cores} cores (or "
        f"{wanted.num_logical_cores} logical ones), [{wanted.hbm_gib_per_device}] GiB per chip",
    )


@PROBES.probe("logical-cores", needs=("neuron", "check sums"))
def logical_cores(node: ProbedNode) -> ProbeResult:
    """There is one worker per logical core in the catalogue, and each computes on its own core."""
    workers, wanted = node.context.processes_per_node, node.instance.num_logical_cores
    check = node.checks["sums"]
    return ProbeResult(
        ok=check.ok and workers == wanted,
        seen=f"{workers} workers; {check.detail}",
        expected=f"{wanted} workers with exact sums",
    )


@PROBES.probe("preflight-on-device", needs=("neuron",))
def preflight(node: ProbedNode) -> ProbeResult:
    """Preflight's sources (devices, driver, EFA) exist on hardware and match the catalogue."""
    host, wanted = node.host, node.instance
    efa = {host.num_efa_interfaces(), host.num_efa_devices()}
    if (domains := host.num_efa_domains()) is not None:
        efa.add(domains)
    driver = host.driver_version() or ""
    try:
        fits = node.release.accepts_driver(driver)
    except ValueError:
        fits = False
    return ProbeResult(
        ok=host.num_neuron_devices() == wanted.num_neuron_devices
        and fits
        and efa == {wanted.num_efa_interfaces},
        seen=f"{host.num_neuron_devices()} /dev/neuron*, driver {driver or 'none'}, EFA "
        f"{sorted(efa)}, fi_info {'absent' if domains is None else 'present'}",
        expected=f"{wanted.num_neuron_devices} /dev/neuron*, driver {node.release.driver_range}, "
        f"EFA [{wanted.num_efa_interfaces}]",
    )


@PROBES.probe("eks-image-efa", needs=("EKS", "neuron", "EFA"))
def eks_efa(node: ProbedNode) -> ProbeResult:
    """The EKS image's EFA driver and the device plugin expose every interface to the pod."""
    wanted = node.instance.num_efa_interfaces
    found = node.host.num_efa_interfaces(), node.host.num_efa_devices()
    return ProbeResult(
        ok=found == (wanted, wanted),
        seen=f"{found[0]} interfaces on the host, {found[1]} devices in the pod",
        expected=f"{wanted} of each",
    )


@PROBES.probe("device-path", needs=("Batch", "neuron"))
def device_paths(node: ProbedNode) -> ProbeResult:
    """Devices mapped with only a host path are at the same path here, readable and writable."""
    paths = (*node.instance.neuron_device_paths(), *node.instance.efa_device_paths())
    good = [path for path in paths if _is_usable(node.root / path.lstrip("/"))]
    missing = sorted(set(paths) - set(good))
    return ProbeResult(
        ok=not missing,
        seen=f"{len(good)} usable device files"
        + (f"; not usable: {', '.join(missing)}" if missing else ""),
        expected=f"{len(paths)} readable and writable character devices",
    )


def _is_usable(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) and os.access(path, os.R_OK | os.W_OK)


@PROBES.probe("container-memory", needs=("Batch", "neuron"))
def container_memory(node: ProbedNode) -> ProbeResult:
    """The container has the memory requested in the job definition."""
    wanted = node.instance.container_memory_mib
    for path in _CGROUP_FILES:
        if (node.root / path).exists():
            text = node.text(path).strip()
            break
    else:
        raise SubjectMissing("a memory limit in the container's cgroup")
    found = None if text == "max" else int(text) // 2**20
    return ProbeResult(
        ok=found == wanted,
        seen="no limit" if found is None else f"a limit of {found} MiB",
        expected=f"a limit of {wanted} MiB",
    )


@PROBES.probe("shared-memory", needs=("Batch", "neuron"))
def shared_memory(node: ProbedNode) -> ProbeResult:
    """The limits of /dev/shm, open files and locked memory match the job definition."""
    wanted, host = node.instance.shared_memory_mib, node.host
    shm, files, locked = host.shared_memory_mib(), host.max_open_files(), host.memlock_bytes()
    return ProbeResult(
        ok=shm == wanted and files >= _OPEN_FILES and locked is None,
        seen=f"/dev/shm {gib(shm)} GiB, {files} open files, {_memlock(locked)}",
        expected=f"/dev/shm {gib(wanted)} GiB, at least {_OPEN_FILES} open files, unlimited locked "
        "memory",
    )


@PROBES.probe("eks-memlock", needs=("EKS", "neuron"))
def eks_memlock(node: ProbedNode) -> ProbeResult:
    """User data has removed the limit on locked memory for pods."""
    locked = node.host.memlock_bytes()
    return ProbeResult(ok=locked is None, seen=_memlock(locked), expected="unlimited locked memory")


def _memlock(limit: int | None) -> str:
    return "unlimited locked memory" if limit is None else f"{limit} bytes of locked memory"


@PROBES.probe("no-huge-pages", needs=("EKS", "EFA", "two nodes", "check sums"))
def no_huge_pages(node: ProbedNode) -> ProbeResult:
    """EFA carries a collective between pods that requested no huge pages."""
    pages = [line for line in node.text("proc/meminfo").splitlines() if "HugePages_Free" in line]
    check = node.checks["sums"]
    return ProbeResult(
        ok=check.ok,
        seen=f"{' '.join(' '.join(pages).split()) or 'no huge pages'}; {check.detail}",
        expected="exact sums over all nodes",
    )


# Claims settled by verify's checks: requirements, check, expected finding.
_CLAIMS_OF_CHECKS = {
    # An all-reduce over all ranks is exact on the device.
    "device-all-reduce": (("neuron",), "sums", "exact sums in int32 and fp32"),
    # Every gradient matches the CPU's, at the tensor-parallel degree of llama2-7b.
    "nxd-input-gradients": (("torch_xla",), "gradients", "gradients that match those on CPU"),
    # Gradients, losses and norms of BERT and the MNIST network match those on CPU on all ranks.
    "data-parallel-gradients": (
        ("torch_xla",),
        "data-parallel",
        "gradients, losses and norms that match those on CPU",
    ),
    # The modules of Llama (verify trains a tiny one) compile and compute correctly.
    "eager-attention-compiles": (("neuron",), "parity", "losses that match those on CPU"),
    # Nothing is compiled after the first step, even late in a run or after resuming.
    "one-graph-a-step": (("torch_xla",), "graphs", "as many graphs as after the first step"),
    # The task can reach the bucket.
    "endpoints-admit-tasks": (("Batch", "AWS"), "cache", "an object written and read"),
    # Ranks on NxD wrote a checkpoint to the bucket and read it back.
    "nxd-upload": (
        ("torch_xla", "a bucket"),
        "resume",
        "a checkpoint from which training resumes with the same losses",
    ),
}


def _probe_of_check(check: str, expected: str) -> Callable[[ProbedNode], ProbeResult]:
    def compare(node: ProbedNode) -> ProbeResult:
        result = node.checks[check]
        return ProbeResult(ok=result.ok, seen=result.detail, expected=expected)

    return compare


for _claim, (_needs, _check, _expected) in _CLAIMS_OF_CHECKS.items():
    PROBES.probe(_claim, needs=(*_needs, f"check {_check}"))(_probe_of_check(_check, _expected))


@PROBES.probe(
    "nxd-semantics", needs=("torch_xla", "check gradients", "check parity", "check resume")
)
def nxd(node: ProbedNode) -> ProbeResult:
    """Training on several ranks matches a CPU's within tolerance, before and after a resume."""
    checks = [node.checks[name] for name in ("gradients", "parity", "resume")]
    return ProbeResult(
        ok=all(check.ok for check in checks) and node.num_ranks > 1,
        seen=f"{node.num_ranks} ranks; {'; '.join(check.detail for check in checks)}",
        expected="several ranks whose gradients, losses and norms match those on CPU, before and "
        "after a checkpoint",
    )


@PROBES.probe("first-step-compiles", needs=("neuron", "check gradients"))
def first_step(node: ProbedNode) -> ProbeResult:
    """Compiling the tiny model takes less than the hang limit."""
    seconds, limit = node.checks["gradients"].seconds, node.hang_limit_s
    return ProbeResult(
        ok=seconds < limit,
        seen=f"{seconds:.0f} s for the first step of the tiny model, including compilation",
        expected=f"less than {limit:.0f} s",
    )
