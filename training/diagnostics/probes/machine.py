"""Probes of chips, EFA, device files, memory and limits, and of the results of verify's checks."""

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
from trainium_catalogue.probing import Missing, Seen

_NEURON_LS = "/opt/aws/neuron/bin/neuron-ls"
_TIMEOUT_S = 30
_FILES = 65_536
"""The same bound as in preflight."""
_CGROUP_FILES = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files of cgroup version 2, then version 1."""


@PROBES.probe("chips-and-memory", needs=("neuron",))
def chips(node: ProbedNode) -> Seen:
    """neuron-ls lists the chips, cores and device memory of the catalogue."""
    command = shutil.which("neuron-ls") or _NEURON_LS
    if not Path(command).exists():
        raise Missing("neuron-ls in the image")
    output = subprocess.run(
        [command, "--json-output"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    ).stdout
    return judge_chips(node, output)


def judge_chips(node: ProbedNode, output: str) -> Seen:
    """Compare what neuron-ls printed (Neuron documentation, neuron-ls user guide)."""
    found = json.loads(output)
    chips = found if isinstance(found, list) else found["neuron_devices"]
    cores = sum(int(chip["nc_count"]) for chip in chips)
    memory = {int(chip["memory_size"]) // 2**30 for chip in chips}
    wanted = node.instance
    # With an LNC of 2 the listed cores may be physical or logical.
    core_counts = {wanted.num_neuron_cores, wanted.num_logical_cores}
    return Seen(
        ok=len(chips) == wanted.num_neuron_devices
        and cores in core_counts
        and memory == {wanted.hbm_gib_per_device},
        seen=f"{len(chips)} chips, {cores} cores, {sorted(memory)} GiB a chip",
        expected=f"{wanted.num_neuron_devices} chips, {wanted.num_neuron_cores} cores (or "
        f"{wanted.num_logical_cores} logical ones), [{wanted.hbm_gib_per_device}] GiB a chip",
    )


@PROBES.probe("logical-cores", needs=("neuron", "check sums"))
def logical_cores(node: ProbedNode) -> Seen:
    """There is one worker per logical core of the catalogue, and each computed on its own."""
    workers, wanted = node.context.processes_per_node, node.instance.num_logical_cores
    check = node.checks["sums"]
    return Seen(
        ok=check.ok and workers == wanted,
        seen=f"{workers} workers; {check.detail}",
        expected=f"{wanted} workers whose sums are exact",
    )


@PROBES.probe("preflight-on-device", needs=("neuron",))
def preflight(node: ProbedNode) -> Seen:
    """Preflight's three sources (devices, driver, EFA) exist on real hardware and agree."""
    host, wanted = node.host, node.instance
    efa = {host.num_efa_interfaces(), host.num_efa_devices()}
    if (providers := host.num_efa_providers()) is not None:
        efa.add(providers)
    driver = host.driver_version() or ""
    try:
        fits = node.release.accepts_driver(driver)
    except ValueError:
        fits = False
    return Seen(
        ok=host.num_neuron_devices() == wanted.num_neuron_devices
        and fits
        and efa == {wanted.num_efa_interfaces},
        seen=f"{host.num_neuron_devices()} /dev/neuron*, driver {driver or 'none'}, EFA "
        f"{sorted(efa)}, libfabric's tool {'absent' if providers is None else 'present'}",
        expected=f"{wanted.num_neuron_devices} /dev/neuron*, driver {node.release.driver_range}, "
        f"EFA [{wanted.num_efa_interfaces}]",
    )


@PROBES.probe("eks-image-efa", needs=("EKS", "neuron", "EFA"))
def eks_efa(node: ProbedNode) -> Seen:
    """The EKS image's EFA driver and the device plugin give the pod every interface."""
    wanted = node.instance.num_efa_interfaces
    found = node.host.num_efa_interfaces(), node.host.num_efa_devices()
    return Seen(
        ok=found == (wanted, wanted),
        seen=f"{found[0]} interfaces of the host, {found[1]} devices in the pod",
        expected=f"{wanted} of each",
    )


@PROBES.probe("device-path", needs=("Batch", "neuron"))
def device_paths(node: ProbedNode) -> Seen:
    """Devices mapped by host path alone have the same path here, readable and writable."""
    paths = (*node.instance.neuron_device_paths(), *node.instance.efa_device_paths())
    good = [path for path in paths if _is_usable(node.root / path.lstrip("/"))]
    missing = sorted(set(paths) - set(good))
    return Seen(
        ok=not missing,
        seen=f"{len(good)} usable device files"
        + (f"; not usable: {', '.join(missing)}" if missing else ""),
        expected=f"{len(paths)} character devices to read and write",
    )


def _is_usable(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) and os.access(path, os.R_OK | os.W_OK)


@PROBES.probe("container-memory", needs=("Batch", "neuron"))
def container_memory(node: ProbedNode) -> Seen:
    """The container has the memory that the job definition asks for."""
    wanted = node.instance.container_memory_mib
    for path in _CGROUP_FILES:
        if (node.root / path).exists():
            text = node.text(path).strip()
            break
    else:
        raise Missing("a memory limit of the container's group")
    found = None if text == "max" else int(text) // 2**20
    return Seen(
        ok=found == wanted,
        seen="no limit" if found is None else f"a limit of {found} MiB",
        expected=f"a limit of {wanted} MiB",
    )


@PROBES.probe("shared-memory", needs=("Batch", "neuron"))
def shared_memory(node: ProbedNode) -> Seen:
    """/dev/shm, open files and locked memory match the job definition."""
    wanted, host = node.instance.shared_memory_mib, node.host
    shm, files, locked = host.shared_memory_mib(), host.num_files(), host.memlock_bytes()
    return Seen(
        ok=shm == wanted and files >= _FILES and locked is None,
        seen=f"/dev/shm {gib(shm)} GiB, {files} files, {_locked(locked)} locked",
        expected=f"/dev/shm {gib(wanted)} GiB, {_FILES} files or more, any number of bytes locked",
    )


@PROBES.probe("eks-memlock", needs=("EKS", "neuron"))
def eks_memlock(node: ProbedNode) -> Seen:
    """User data has lifted the limit on locked memory for pods."""
    locked = node.host.memlock_bytes()
    return Seen(
        ok=locked is None, seen=f"{_locked(locked)} locked", expected="any number of bytes locked"
    )


def _locked(limit: int | None) -> str:
    return "any number of bytes" if limit is None else f"{limit} bytes"


@PROBES.probe("no-huge-pages", needs=("EKS", "EFA", "two nodes", "check sums"))
def no_huge_pages(node: ProbedNode) -> Seen:
    """EFA carries a collective between pods that requested no huge pages."""
    pages = [line for line in node.text("proc/meminfo").splitlines() if "HugePages_Free" in line]
    check = node.checks["sums"]
    return Seen(
        ok=check.ok,
        seen=f"{' '.join(' '.join(pages).split()) or 'no huge pages'}; {check.detail}",
        expected="exact sums over the nodes",
    )


# Claims that a check of verify settles: needs, name of the check, and the expected finding.
_SAID_BY_CHECKS = {
    # An all-reduce over all ranks is exact on the device.
    "device-all-reduce": ("neuron", "sums", "exact sums in int32 and fp32"),
    # Every gradient matches a CPU's, at the tensor-parallel degree of llama2-7b.
    "nxd-input-gradients": ("torch_xla", "gradients", "gradients of a CPU"),
    # Gradients, losses and norms of BERT and the MNIST network match a CPU's on all ranks.
    "data-parallel-gradients": (
        "torch_xla",
        "data-parallel",
        "gradients, losses and norms of a CPU",
    ),
    # The modules of Llama (verify trains a tiny one) compile and compute correctly.
    "eager-attention-compiles": ("neuron", "parity", "losses of a CPU"),
    # Nothing is compiled after the first step, neither late in a run nor on resuming.
    "one-graph-a-step": ("torch_xla", "graphs", "as many graphs as after the first step"),
}


def _repeat(check: str, expected: str) -> Callable[[ProbedNode], Seen]:
    def look(node: ProbedNode) -> Seen:
        found = node.checks[check]
        return Seen(ok=found.ok, seen=found.detail, expected=expected)

    return look


for _claim, (_device, _check, _expected) in _SAID_BY_CHECKS.items():
    PROBES.probe(_claim, needs=(_device, f"check {_check}"))(_repeat(_check, _expected))


@PROBES.probe(
    "nxd-semantics", needs=("torch_xla", "check gradients", "check parity", "check resume")
)
def nxd(node: ProbedNode) -> Seen:
    """Several ranks train as a CPU does, and resume from a checkpoint without a difference."""
    checks = [node.checks[name] for name in ("gradients", "parity", "resume")]
    return Seen(
        ok=all(check.ok for check in checks) and node.num_ranks > 1,
        seen=f"{node.num_ranks} ranks; {'; '.join(check.detail for check in checks)}",
        expected="several ranks whose gradients, losses and norms are a CPU's, before and after a "
        "checkpoint",
    )


@PROBES.probe("first-step-compiles", needs=("neuron", "check gradients"))
def first_step(node: ProbedNode) -> Seen:
    """Compiling the tiny model takes less time than the hang limit."""
    seconds, limit = node.checks["gradients"].seconds, node.hang_limit_s
    return Seen(
        ok=seconds < limit,
        seen=f"{seconds:.0f} s for the first step of the tiny model, compilation included",
        expected=f"less than {limit:.0f} s",
    )


@PROBES.probe("nxd-upload", needs=("torch_xla", "a bucket", "check resume"))
def nxd_upload(node: ProbedNode) -> Seen:
    """Ranks on NxD wrote a checkpoint to the bucket and read it back."""
    check = node.checks["resume"]
    return Seen(ok=check.ok, seen=check.detail, expected="a checkpoint from which the losses go on")
