"""Claims about the hosts, checked with EC2: interfaces, reservations and console output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobs.verify.probes.desk import PROBES, Desk
from trainium_catalogue.probing import Missing, Seen

# Lines of constructs/trainium_constructs/host_setup.sh.
_READY = re.compile(r"trainium: ready: (?P<what>.*)")
_NOT_READY = re.compile(r"trainium: HOST NOT READY(?P<why>[^\n]*)")
_OTHER_DRIVER = re.compile(r"trainium: driver '(?P<driver>[^']*)' does not fit [^\n]*")
_EFA = re.compile(r"trainium: installing EFA (?P<version>\S+)")
_ENDED = ("shutting-down", "terminated")


def _slot(interface: Mapping[str, Any]) -> tuple[int, int]:
    attachment = interface["Attachment"]
    return int(attachment.get("NetworkCardIndex", 0)), int(attachment["DeviceIndex"])


@PROBES.probe("secondary-card-device-index")
def device_index(desk: Desk) -> Seen:
    """On a running host, every secondary card's interface has device index 1."""
    host = desk.running_hosts[0]
    secondary = sorted(slot for slot in map(_slot, host["NetworkInterfaces"]) if slot[0] > 0)
    if not secondary:
        raise Missing("a host with several network cards")
    wanted = desk.target.instance_type.num_efa_interfaces - 1
    return Seen(
        ok=len(secondary) == wanted and all(index == 1 for _, index in secondary),
        seen=", ".join(f"card {card}: {index}" for card, index in secondary),
        expected=f"index 1 on each of {wanted} secondary cards",
    )


@PROBES.probe("efa-only-interfaces")
def efa_only(desk: Desk) -> Seen:
    """EFA-only interfaces are attached and have no address."""
    interfaces = [
        interface
        for interface in desk.running_hosts[0]["NetworkInterfaces"]
        if interface.get("InterfaceType") == "efa-only"
    ]
    if not interfaces:
        raise Missing("a host with EFA-only interfaces")
    addresses = [i["PrivateIpAddress"] for i in interfaces if i.get("PrivateIpAddress")]
    return Seen(
        ok=not addresses,
        seen=f"{len(interfaces)} EFA-only interfaces, addresses: {', '.join(addresses) or 'none'}",
        expected="addresses: none",
    )


def _task_interfaces(desk: Desk) -> list[Mapping[str, Any]]:
    """Interfaces of one host that ECS attached for a task; their description is the task's ARN."""
    for host in desk.running_hosts:
        found = [
            interface
            for interface in host["NetworkInterfaces"]
            if ":ecs:" in interface.get("Description", "")
        ]
        if found:
            return found
    raise Missing("a job that runs now")


@PROBES.probe("task-interface-slot", needs=("Batch",))
def task_interface(desk: Desk) -> Seen:
    """The task's interface is the second one on card 0."""
    slots = sorted(map(_slot, _task_interfaces(desk)))
    return Seen(
        ok=slots == [(0, 1)],
        seen=", ".join(f"card {card}, index {index}" for card, index in slots),
        expected="card 0, index 1",
    )


@PROBES.probe("task-interface-groups", needs=("Batch",))
def task_groups(desk: Desk) -> Seen:
    """The task's interface has the environment's groups, or the default group if it has none."""
    found = {
        (group["GroupId"], group["GroupName"])
        for interface in _task_interfaces(desk)
        for group in interface.get("Groups", ())
    }
    named = set(desk.resources.get("securityGroupIds") or ())
    ids, names = {group for group, _ in found}, {name for _, name in found}
    return Seen(
        ok=ids == named if named else names == {"default"},
        seen=", ".join(sorted(f"{name} ({group})" for group, name in found)) or "no group",
        expected=", ".join(sorted(named)) or "the VPC's default group",
    )


@PROBES.probe("batch-capacity-block", needs=("Batch",))
@PROBES.probe("eks-capacity-block", needs=("EKS",))
def reservation(desk: Desk) -> Seen:
    """A host was started in a reservation or block."""
    host = desk.hosts[0]
    block = host.get("InstanceLifecycle") == "capacity-block"
    reserved = host.get("CapacityReservationId")
    if not block and not reserved:
        raise Missing("a deployment with a reservation or a Capacity Block")
    return Seen(
        ok=True,
        seen=f"{host['InstanceId']} in {reserved or 'a block'}"
        + (", a Capacity Block" if block else ""),
        expected="a host in the reservation",
    )


@PROBES.probe("batch-reservation", needs=("Batch",))
def reservation_in_group(desk: Desk) -> Seen:
    """A host is in the reservation and in the environment's placement group."""
    host = desk.hosts[0]
    reserved = host.get("CapacityReservationId")
    if not reserved:
        raise Missing("a deployment with a reservation")
    wanted = desk.resources.get("placementGroup") or ""
    found = host.get("Placement", {}).get("GroupName") or ""
    return Seen(
        ok=found == wanted,
        seen=f"{host['InstanceId']} in {reserved}, group {found or 'none'}",
        expected=f"group {wanted or 'none'}",
    )


@PROBES.probe("batch-tags-hosts", needs=("Batch",))
def host_tags(desk: Desk) -> Seen:
    """A host has the tags that its environment gives, including its name."""
    wanted = desk.resources.get("tags") or {}
    found = {tag["Key"]: tag["Value"] for tag in desk.hosts[0].get("Tags", ())}
    return Seen(
        ok=bool(wanted) and all(found.get(key) == value for key, value in wanted.items()),
        seen=_tags({key: found.get(key, "none") for key in wanted}),
        expected=_tags(wanted),
    )


def _tags(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "none"


@PROBES.probe("shutdown-terminates", needs=("Batch",))
def shutdown_behaviour(desk: Desk) -> Seen:
    """A host that shuts itself down is terminated, not kept as a stopped one."""
    host = desk.running_hosts[0]["InstanceId"]
    answer = desk.client("ec2").describe_instance_attribute(
        InstanceId=host, Attribute="instanceInitiatedShutdownBehavior"
    )
    found = str(answer["InstanceInitiatedShutdownBehavior"]["Value"])
    return Seen(ok=found == "terminate", seen=f"{host}: {found}", expected="terminate")


@PROBES.probe("ami-driver", needs=("Batch",))
def image_driver(desk: Desk) -> Seen:
    """The boot found a suitable driver and had none to install."""
    text = _console_with(desk, _READY)
    other = _OTHER_DRIVER.search(text)
    ready = _READY.search(text)
    assert ready is not None
    return Seen(
        ok=other is None,
        seen=f"the image carried driver {other['driver'] or 'none'}" if other else ready["what"],
        expected=f"a driver that {desk.release.name} accepts: {desk.release.driver_range}",
    )


@PROBES.probe("driver-package", needs=("Batch",))
def driver_package(desk: Desk) -> Seen:
    """A host whose image carried another driver installed the pinned one and became ready."""
    text = _console_with(desk, _OTHER_DRIVER, "a host that had to install the driver")
    return _became_ready(text)


@PROBES.probe("efa-installer", needs=("Batch",))
def efa_installer(desk: Desk) -> Seen:
    """A host installed EFA and became ready."""
    return _became_ready(_console_with(desk, _EFA, "a host that had to install EFA"))


def _became_ready(text: str) -> Seen:
    ready, failed = _READY.search(text), _NOT_READY.search(text)
    said = ready or failed
    return Seen(
        ok=ready is not None,
        seen=said[0] if said else "neither ready nor given up yet",
        expected="trainium: ready",
    )


def _console_with(desk: Desk, line: re.Pattern[str], what: str = "a host that is ready") -> str:
    for text in desk.consoles.values():
        if line.search(text):
            return text
    raise Missing(what)


def _failed_host(desk: Desk) -> Mapping[str, Any]:
    for host in desk.hosts:
        if _NOT_READY.search(desk.consoles.get(host["InstanceId"], "")):
            return host
    raise Missing("a host that failed to get ready")


@PROBES.probe("not-ready-host-stays-out", needs=("Batch",))
def stays_out(desk: Desk) -> Seen:
    """A host that failed is not among the container instances."""
    failed = _failed_host(desk)["InstanceId"]
    ecs, cluster = desk.client("ecs"), desk.environment["ecsClusterArn"]
    arns = ecs.list_container_instances(cluster=cluster)["containerInstanceArns"]
    described = (
        ecs.describe_container_instances(cluster=cluster, containerInstances=arns)[
            "containerInstances"
        ]
        if arns
        else []
    )
    joined = {instance["ec2InstanceId"] for instance in described}
    return Seen(
        ok=failed not in joined,
        seen=f"{failed} {'joined' if failed in joined else 'stayed out of'} the cluster",
        expected=f"{failed} stayed out of the cluster",
    )


@PROBES.probe("not-ready-host-ends", needs=("Batch",))
def host_ends(desk: Desk) -> Seen:
    """A host that failed has ended, and another one was started after it."""
    failed = _failed_host(desk)
    state = str(failed["State"]["Name"])
    if state == "running":
        raise Missing("the minutes that a failed host takes to end")
    later = [h for h in desk.hosts if str(h["LaunchTime"]) > str(failed["LaunchTime"])]
    return Seen(
        ok=state in _ENDED,
        seen=f"{failed['InstanceId']} is {state}; {len(later)} hosts were started after it",
        expected="terminated, and replaced while a job waits",
    )
