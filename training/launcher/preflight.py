"""Preflight: checks of a node before its workers start; each finding names its remedy."""

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
    of_host: bool = False
    """True if another host of this type may pass; False for a fault of the image, the job
    definition or the release."""


Outcome = Passed | Skipped | Failed

_ANOTHER_HOST = "another attempt follows, on another host if the job's other hosts are healthy"


def _no_hardware(node: NodeContract) -> str:
    return "the device is emulated" if node.is_emulated else "the device is the CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Minimum operating-system resources."""

    num_files: int
    shared_memory_mib: int
    disk_gib: float


def bounds(node: NodeContract) -> Bounds:
    """Return the bounds for a Trainium host, or lower ones for gloo on a CPU."""
    if not node.has_hardware or node.instance is None:
        # Docker's default limits satisfy these minimums of 16 MiB of shared memory and 512 files.
        # The main node's launcher also holds a socket per peer.
        num_peers = node.num_nodes - 1
        return Bounds(num_files=512 + num_peers, shared_memory_mib=16, disk_gib=0.1)
    return Bounds(
        # Workers hold sockets to all peers and a file per device queue (aws-neuron-sdk issue 713:
        # "too many open files").
        num_files=65536,
        shared_memory_mib=node.instance.shared_memory_mib,
        # For compiled graphs and the runtime's core dumps.
        disk_gib=20,
    )


def check_devices(node: NodeContract, host: Host) -> Outcome:
    """Check that all chips of the instance type are visible in the container."""
    if not node.has_hardware or node.instance is None:
        return Skipped(what="Neuron devices", why=_no_hardware(node))
    found, wanted = host.num_neuron_devices(), node.instance.num_neuron_devices
    if found == wanted:
        return Passed(what=f"{found} Neuron devices")
    return Failed(
        finding=f"{found} of {wanted} Neuron devices (/dev/neuron*)",
        remedy="the host's driver is not loaded, or the job definition maps other devices; "
        + _ANOTHER_HOST,
        of_host=True,
    )


def check_driver(node: NodeContract, host: Host) -> Outcome:
    """Check that the host's driver is compatible with the runtime in the image."""
    if not node.has_hardware or node.release is None:
        return Skipped(what="Neuron driver", why=_no_hardware(node))
    wanted = f"release {node.release.name} requires {node.release.driver_range}"
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
    """Check that all EFA interfaces are visible to the kernel, the container and libfabric."""
    if not uses_efa(node) or node.instance is None:
        why = _no_hardware(node) if not node.has_hardware else "the job has one node"
        return Skipped(what="EFA", why=why)
    wanted = node.instance.num_efa_interfaces
    remedy = "check the launch template, the host's EFA driver and the job definition's devices; "
    for found, where in (
        (host.num_efa_interfaces(), "interfaces of the host (/sys/class/infiniband)"),
        (host.num_efa_devices(), "devices of the container (/dev/infiniband/uverbs*)"),
        (host.num_efa_domains(), "domains that libfabric finds (fi_info -p efa)"),
    ):
        if found is not None and found != wanted:
            finding = f"{found} of {wanted} EFA {where}"
            return Failed(finding=finding, remedy=remedy + _ANOTHER_HOST, of_host=True)
    return Passed(what=f"{wanted} EFA interfaces")


def check_memlock(node: NodeContract, host: Host) -> Outcome:
    """Check that EFA and the Neuron runtime may pin unlimited memory."""
    if not node.has_hardware:
        return Skipped(what="memlock", why=_no_hardware(node))
    limit = host.memlock_bytes()
    if limit is None:
        return Passed(what="memlock unlimited")
    return Failed(
        finding=f"memlock is limited to {limit} bytes",
        remedy="set the memlock ulimit to -1 in the job definition",
    )


def check_files(node: NodeContract, host: Host) -> Outcome:
    """Check that the open-files limit covers the sockets of all peers."""
    wanted, found = bounds(node).num_files, host.max_open_files()
    if found >= wanted:
        return Passed(what=f"nofile {found}")
    return Failed(
        finding=f"nofile is {found}, below {wanted}",
        remedy=f"set the nofile ulimit to {wanted} or more in the job definition",
    )


def check_shared_memory(node: NodeContract, host: Host) -> Outcome:
    """Check that /dev/shm is as large as the job definition requests."""
    wanted, found = bounds(node).shared_memory_mib, host.shared_memory_mib()
    if found >= wanted:
        return Passed(what=f"/dev/shm {gib(found)} GiB")
    return Failed(
        finding=f"/dev/shm has {found} MiB, below {wanted} MiB",
        remedy=f"set linuxParameters.sharedMemorySize to {wanted} in the job definition",
    )


def check_disk(node: NodeContract, host: Host) -> Outcome:
    """Check that there is enough free disk space for a run's local files."""
    wanted, found = bounds(node).disk_gib, host.free_disk_gib()
    if found >= wanted:
        return Passed(what=f"{found:.1f} GiB of disk free")
    return Failed(
        finding=f"{found:.2f} GiB of disk free at {host.disk}, below {wanted:g} GiB",
        remedy="raise root_volume_gib, or free disk space on this machine",
    )


def check_packages(node: NodeContract, host: Host) -> Outcome:
    """Check that the image contains the packages the device needs."""
    wanted = {
        DeviceKind.CPU: ("torch",),
        DeviceKind.XLA: ("torch", "torch_xla"),
        DeviceKind.TORCH_NEURON: ("torch", "torch_neuronx"),
    }[node.device]
    if node.is_emulated:
        wanted = ("torch", "trainium_emulators")
    missing = [name for name in wanted if not host.has_package(name)]
    if not missing:
        return Passed(what=" and ".join(wanted))
    return Failed(
        finding=f"the image has no {' and no '.join(missing)}",
        remedy="build the image from the base image that the Neuron release names",
    )


def check_process(node: NodeContract, host: Host) -> Outcome:
    """Check that the launcher is not PID 1, which ignores signals from within its container."""
    if host.pid() != 1:
        return Passed(what="an init process")
    return Failed(
        finding="the launcher is PID 1 of the container, so its guardian could not kill it",
        remedy="set linuxParameters.initProcessEnabled in the job definition",
    )


def check_lustre(node: NodeContract, host: Host) -> Outcome:
    """Check that the deployment's file system is mounted and writable."""
    if node.lustre is None:
        return Skipped(what="Lustre", why="the deployment has none")
    remedy = (
        "the host's mount or the job definition's volume is missing; read the boot log of "
        "the host; "
    )
    # In the rehearsal, on a CPU, a folder stands in for the file system.
    is_real = node.has_hardware
    if is_real and host.file_system_type(node.lustre) != "lustre":
        return Failed(
            finding=f"no Lustre file system is mounted at {node.lustre}",
            remedy=remedy + _ANOTHER_HOST,
            of_host=True,
        )
    if not host.is_writable(node.lustre):
        return Failed(
            finding=f"{node.lustre} cannot be written to",
            remedy="the file system is full or read-only; free some space, or deploy a larger one",
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
    """Combine all failed checks into one verdict; return None if every check passed."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if not failed:
        return None
    findings = "; ".join(f"{outcome.finding} -> {outcome.remedy}" for outcome in failed)
    reason = f"node {node.node_index} failed preflight: {findings}"
    unfit = any(outcome.of_host for outcome in failed)
    return Verdict(code=ExitCode.PREFLIGHT, reason=reason, unfit_host=unfit)


def report_lines(outcomes: list[Outcome]) -> list[str]:
    """Format the outcomes for the log.

    One line lists the passed checks, one line per reason the skipped ones, and each failed check
    has its own line.
    """
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
