"""Preflight: a node's checks before workers start; each finding names its remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.core.contract import DeviceKind, NodeContract
from training.core.host import Host, gib
from training.launcher.settings import uses_efa
from training.launcher.verdict import Verdict
from trainium_catalogue.exit_codes import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A check that passed."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A check that does not apply here."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A check that failed, and the remedy."""

    finding: str
    remedy: str


Outcome = Passed | Skipped | Failed

_CPU = "the device is the CPU"
_ANOTHER_HOST = "another attempt follows; if it meets the same host again, end that instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower bounds on operating system resources."""

    num_files: int
    shared_memory_mib: int
    disk_gib: float


def bounds(node: NodeContract) -> Bounds:
    """Bounds for a Trainium host, or the smaller ones that gloo on a CPU needs."""
    if node.device is DeviceKind.CPU or node.instance is None:
        # Docker's defaults satisfy 16 MiB of shared memory and 512 files.
        return Bounds(num_files=512, shared_memory_mib=16, disk_gib=0.1)
    return Bounds(
        # Workers hold sockets to all peers and one file per device queue
        # (aws-neuron-sdk issue 713: "too many open files").
        num_files=65536,
        shared_memory_mib=node.instance.shared_memory_mib,
        # Compiled graphs, and core dumps of the runtime.
        disk_gib=20,
    )


def check_devices(node: NodeContract, host: Host) -> Outcome:
    """Check that all chips of the instance type are in the container."""
    if node.device is DeviceKind.CPU or node.instance is None:
        return Skipped(what="Neuron devices", why=_CPU)
    found, wanted = host.num_neuron_devices(), node.instance.num_neuron_devices
    if found == wanted:
        return Passed(what=f"{found} Neuron devices")
    return Failed(
        finding=f"{found} of {wanted} Neuron devices (/dev/neuron*)",
        remedy="the host's driver is not loaded, or the job definition maps other devices; "
        + _ANOTHER_HOST,
    )


def check_driver(node: NodeContract, host: Host) -> Outcome:
    """Check that the host's driver works with the runtime in the image."""
    if node.device is DeviceKind.CPU or node.release is None:
        return Skipped(what="Neuron driver", why=_CPU)
    wanted = f"release {node.release.name} wants {node.release.driver_range}"
    version = host.driver_version()
    if version is None:
        return Failed(
            finding="no Neuron driver is loaded on the host",
            remedy=f"use the AMI that the release pins; {wanted}",
        )
    try:
        fits = node.release.accepts_driver(version)
    except ValueError:
        fits = False
    if fits:
        return Passed(what=f"Neuron driver {version}")
    return Failed(
        finding=f"Neuron driver {version} on the host; {wanted}",
        remedy="deploy with the AMI that the release pins (remove ami_id), or another release",
    )


def check_efa(node: NodeContract, host: Host) -> Outcome:
    """Check that all EFA interfaces are there, as container devices and to libfabric."""
    if not uses_efa(node) or node.instance is None:
        why = _CPU if node.device is DeviceKind.CPU else "the job has one node"
        return Skipped(what="EFA", why=why)
    wanted = node.instance.num_efa_interfaces
    remedy = "the launch template, the EFA driver of the host or the job definition's devices; "
    for found, where in (
        (host.num_efa_interfaces(), "interfaces of the host (/sys/class/infiniband)"),
        (host.num_efa_devices(), "devices of the container (/dev/infiniband/uverbs*)"),
        (host.num_efa_providers(), "providers that libfabric finds (fi_info -p efa)"),
    ):
        if found is not None and found != wanted:
            return Failed(finding=f"{found} of {wanted} EFA {where}", remedy=remedy + _ANOTHER_HOST)
    return Passed(what=f"{wanted} EFA interfaces")


def check_memlock(node: NodeContract, host: Host) -> Outcome:
    """Check that EFA and the Neuron runtime may pin memory without limit."""
    if node.device is DeviceKind.CPU:
        return Skipped(what="memlock", why=_CPU)
    limit = host.memlock_bytes()
    if limit is None:
        return Passed(what="memlock unlimited")
    return Failed(
        finding=f"memlock is limited to {limit} bytes",
        remedy="set the ulimit memlock -1 in the job definition",
    )


def check_files(node: NodeContract, host: Host) -> Outcome:
    """Check that enough files may be open for the sockets of all peers."""
    wanted, found = bounds(node).num_files, host.num_files()
    if found >= wanted:
        return Passed(what=f"nofile {found}")
    return Failed(
        finding=f"nofile is {found}, below {wanted}",
        remedy=f"set the ulimit nofile {wanted} or more in the job definition",
    )


def check_shared_memory(node: NodeContract, host: Host) -> Outcome:
    """Check that /dev/shm is as large as the job definition asks for."""
    wanted, found = bounds(node).shared_memory_mib, host.shared_memory_mib()
    if found >= wanted:
        return Passed(what=f"/dev/shm {gib(found)} GiB")
    return Failed(
        finding=f"/dev/shm has {found} MiB, below {wanted} MiB",
        remedy=f"set linuxParameters.sharedMemorySize to {wanted} in the job definition",
    )


def check_disk(node: NodeContract, host: Host) -> Outcome:
    """Check that the disk has room for what a run writes on the node."""
    wanted, found = bounds(node).disk_gib, host.free_disk_gib()
    if found >= wanted:
        return Passed(what=f"{found:.1f} GiB of disk free")
    return Failed(
        finding=f"{found:.2f} GiB of disk free at {host.disk}, below {wanted:g} GiB",
        remedy="raise root_volume_gib, or free disk on this machine",
    )


def check_packages(node: NodeContract, host: Host) -> Outcome:
    """Check that the image holds the packages the device needs."""
    wanted = {
        DeviceKind.CPU: ("torch",),
        DeviceKind.XLA: ("torch", "torch_xla"),
        DeviceKind.TORCH_NEURON: ("torch", "torch_neuronx"),
    }[node.device]
    missing = [name for name in wanted if not host.has_package(name)]
    if not missing:
        return Passed(what=" and ".join(wanted))
    return Failed(
        finding=f"the image has no {' and no '.join(missing)}",
        remedy="build the image from the base image that the Neuron release names",
    )


def check_process(node: NodeContract, host: Host) -> Outcome:
    """Check that the launcher can be killed: process 1 ignores its own container's signals."""
    if host.pid() != 1:
        return Passed(what="an init process")
    return Failed(
        finding="the launcher is process 1 of the container, so its guardian could not end it",
        remedy="set linuxParameters.initProcessEnabled in the job definition",
    )


def check_lustre(node: NodeContract, host: Host) -> Outcome:
    """Check that the deployment's file system is mounted and writable."""
    if node.lustre is None:
        return Skipped(what="Lustre", why="the deployment has none")
    remedy = (
        "the host's mount or the job definition's volume is missing; read the boot messages of "
        "the host; "
    )
    # On a CPU, in the rehearsal, a folder replaces the file system.
    is_real = node.device is not DeviceKind.CPU
    if is_real and host.file_system_type(node.lustre) != "lustre":
        return Failed(
            finding=f"no Lustre file system is mounted at {node.lustre}",
            remedy=remedy + _ANOTHER_HOST,
        )
    if not host.is_writable(node.lustre):
        return Failed(
            finding=f"{node.lustre} cannot be written to",
            remedy="the file system is full or read-only; free some of it, or deploy a larger one",
        )
    return Passed(what=f"{'Lustre' if is_real else 'a folder for Lustre'} at {node.lustre}")


CHECKS: tuple[Callable[[NodeContract, Host], Outcome], ...] = (
    check_packages,
    check_devices,
    check_driver,
    check_efa,
    check_memlock,
    check_files,
    check_shared_memory,
    check_disk,
    check_lustre,
    check_process,
)


def preflight(node: NodeContract, host: Host) -> list[Outcome]:
    """Run every check."""
    return [check(node, host) for check in CHECKS]


def problem(node: NodeContract, outcomes: list[Outcome]) -> Verdict | None:
    """Combine all failed checks into one verdict; None if there are none."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if not failed:
        return None
    findings = "; ".join(f"{outcome.finding} -> {outcome.remedy}" for outcome in failed)
    reason = f"node {node.node_index} failed preflight: {findings}"
    return Verdict(code=ExitCode.PREFLIGHT, reason=reason)


def report_lines(outcomes: list[Outcome]) -> list[str]:
    """Format the checks for the log: one line for each kind of outcome."""
    lines = []
    if passed := [outcome.what for outcome in outcomes if isinstance(outcome, Passed)]:
        lines.append(f"preflight passed: {', '.join(passed)}")
    skipped: dict[str, list[str]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Skipped):
            skipped.setdefault(outcome.why, []).append(outcome.what)
    for why, what in skipped.items():
        lines.append(f"preflight skipped: {', '.join(what)} ({why})")
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            lines.append(f"preflight FAILED: {outcome.finding}; remedy: {outcome.remedy}")
    return lines
