"""Claims about the hosts, checked with EC2: interfaces, reservations and console output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobs.verify.probes.context import PROBES, ClientContext
from trainium_catalogue.probing import ProbeResult, SubjectMissing
from trainium_catalogue.wording import counted

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
def device_index(context: ClientContext) -> ProbeResult:
    """On a running host, the interfaces of all secondary cards have device index 1."""
    host = context.running_hosts[0]
    secondary = sorted(slot for slot in map(_slot, host["NetworkInterfaces"]) if slot[0] > 0)
    if not secondary:
        raise SubjectMissing("a host with several network cards")
    wanted = context.target.instance_type.num_efa_interfaces - 1
    return ProbeResult(
        ok=len(secondary) == wanted and all(index == 1 for _, index in secondary),
        seen=", ".join(f"card {card}: {index}" for card, index in secondary),
        expected=f"index 1 on each of {counted(wanted, 'secondary card')}",
    )


@PROBES.probe("efa-only-interfaces")
def efa_only(context: ClientContext) -> ProbeResult:
    """EFA-only interfaces are attached and have no address."""
    interfaces = [
        interface
        for interface in context.running_hosts[0]["NetworkInterfaces"]
        if interface.get("InterfaceType") == "efa-only"
    ]
    if not interfaces:
        raise SubjectMissing("a host with EFA-only interfaces")
    addresses = [i["PrivateIpAddress"] for i in interfaces if i.get("PrivateIpAddress")]
    return ProbeResult(
        ok=not addresses,
        seen=f"{counted(len(interfaces), 'EFA-only interface')}, "
        f"addresses: {', '.join(addresses) or 'none'}",
        expected="addresses: none",
    )


def _task_interfaces(context: ClientContext) -> list[Mapping[str, Any]]:
    """Return the interfaces that ECS attached to a host; their descriptions are ECS ARNs."""
    for host in context.running_hosts:
        found = [
            interface
            for interface in host["NetworkInterfaces"]
            if ":ecs:" in interface.get("Description", "")
        ]
        if found:
            return found
    raise SubjectMissing("a running job")


@PROBES.probe("task-interface-slot", needs=("Batch",))
def task_interface(context: ClientContext) -> ProbeResult:
    """The task's interface is the second one on card 0."""
    slots = sorted(map(_slot, _task_interfaces(context)))
    return ProbeResult(
        ok=slots == [(0, 1)],
        seen=", ".join(f"card {card}, index {index}" for card, index in slots),
        expected="card 0, index 1",
    )


@PROBES.probe("task-interface-groups", needs=("Batch",))
def task_groups(context: ClientContext) -> ProbeResult:
    """The task's interface has the environment's security groups, or else the VPC's default one."""
    found = {
        (group["GroupId"], group["GroupName"])
        for interface in _task_interfaces(context)
        for group in interface.get("Groups", ())
    }
    named = set(context.resources.get("securityGroupIds") or ())
    ids, names = {group for group, _ in found}, {name for _, name in found}
    return ProbeResult(
        ok=ids == named if named else names == {"default"},
        seen=", ".join(sorted(f"{name} ({group})" for group, name in found)) or "no group",
        expected=", ".join(sorted(named)) or "the VPC's default security group",
    )


@PROBES.probe("batch-capacity-block", needs=("Batch",))
@PROBES.probe("eks-capacity-block", needs=("EKS",))
def reservation(context: ClientContext) -> ProbeResult:
    """A host was launched in a reservation or Capacity Block."""
    host = context.hosts[0]
    block = host.get("InstanceLifecycle") == "capacity-block"
    reserved = host.get("CapacityReservationId")
    if not block and not reserved:
        raise SubjectMissing("a deployment with a reservation or a Capacity Block")
    return ProbeResult(
        ok=True,
        seen=f"{host['InstanceId']} in {reserved or 'a Capacity Block'}"
        + (", a Capacity Block" if block and reserved else ""),
        expected="a host in the reservation",
    )


@PROBES.probe("batch-reservation", needs=("Batch",))
def reservation_in_group(context: ClientContext) -> ProbeResult:
    """A host is in the reservation and in the compute environment's placement group."""
    host = context.hosts[0]
    reserved = host.get("CapacityReservationId")
    if not reserved:
        raise SubjectMissing("a deployment with a reservation")
    wanted = context.resources.get("placementGroup") or ""
    found = host.get("Placement", {}).get("GroupName") or ""
    return ProbeResult(
        ok=found == wanted,
        seen=f"{host['InstanceId']} in {reserved}, group {found or 'none'}",
        expected=f"group {wanted or 'none'}",
    )


@PROBES.probe("batch-tags-hosts", needs=("Batch",))
def host_tags(context: ClientContext) -> ProbeResult:
    """A host has the tags of its compute environment, including its name."""
    wanted = context.resources.get("tags") or {}
    found = {tag["Key"]: tag["Value"] for tag in context.hosts[0].get("Tags", ())}
    return ProbeResult(
        ok=bool(wanted) and all(found.get(key) == value for key, value in wanted.items()),
        seen=_tags({key: found.get(key, "none") for key in wanted}),
        expected=_tags(wanted),
    )


def _tags(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "none"


@PROBES.probe("shutdown-terminates", needs=("Batch",))
def shutdown_behavior(context: ClientContext) -> ProbeResult:
    """A host that shuts itself down is terminated rather than stopped."""
    host = context.running_hosts[0]["InstanceId"]
    response = context.client("ec2").describe_instance_attribute(
        InstanceId=host, Attribute="instanceInitiatedShutdownBehavior"
    )
    found = str(response["InstanceInitiatedShutdownBehavior"]["Value"])
    return ProbeResult(ok=found == "terminate", seen=f"{host}: {found}", expected="terminate")


@PROBES.probe("ami-driver", needs=("Batch",))
def image_driver(context: ClientContext) -> ProbeResult:
    """The AMI had a suitable driver, so none was installed on boot."""
    text = _console_with(context, _READY)
    other = _OTHER_DRIVER.search(text)
    ready = _READY.search(text)
    assert ready is not None
    return ProbeResult(
        ok=other is None,
        seen=f"the image had driver {other['driver'] or 'none'}" if other else ready["what"],
        expected=f"a driver supported by {context.release.name}: {context.release.driver_range}",
    )


@PROBES.probe("driver-package", needs=("Batch",))
def driver_package(context: ClientContext) -> ProbeResult:
    """A host whose image had a different driver installed the pinned one and became ready."""
    text = _console_with(context, _OTHER_DRIVER, "a host that had to install the driver")
    return _check_readiness(text)


@PROBES.probe("efa-installer", needs=("Batch",))
def efa_installer(context: ClientContext) -> ProbeResult:
    """A host installed EFA and became ready."""
    return _check_readiness(_console_with(context, _EFA, "a host that had to install EFA"))


def _check_readiness(text: str) -> ProbeResult:
    ready, failed = _READY.search(text), _NOT_READY.search(text)
    outcome = ready or failed
    return ProbeResult(
        ok=ready is not None,
        seen=outcome[0] if outcome else "neither ready nor failed yet",
        expected="trainium: ready",
    )


def _console_with(
    context: ClientContext, line: re.Pattern[str], what: str = "a host that is ready"
) -> str:
    for text in context.consoles.values():
        if line.search(text):
            return text
    raise SubjectMissing(what)


def _failed_host(context: ClientContext) -> Mapping[str, Any]:
    for host in context.hosts:
        if _NOT_READY.search(context.consoles.get(host["InstanceId"], "")):
            return host
    raise SubjectMissing("a host that did not become ready")


@PROBES.probe("not-ready-host-stays-out", needs=("Batch",))
def stays_out(context: ClientContext) -> ProbeResult:
    """A failed host is not among the container instances."""
    failed = _failed_host(context)["InstanceId"]
    ecs, cluster = context.client("ecs"), context.environment["ecsClusterArn"]
    arns = ecs.list_container_instances(cluster=cluster)["containerInstanceArns"]
    described = (
        ecs.describe_container_instances(cluster=cluster, containerInstances=arns)[
            "containerInstances"
        ]
        if arns
        else []
    )
    joined = {instance["ec2InstanceId"] for instance in described}
    return ProbeResult(
        ok=failed not in joined,
        seen=f"{failed} {'joined' if failed in joined else 'did not join'} the cluster",
        expected=f"{failed} did not join the cluster",
    )


@PROBES.probe("not-ready-host-ends", needs=("Batch",))
def host_ends(context: ClientContext) -> ProbeResult:
    """A failed host was terminated; also report the hosts launched after it."""
    failed = _failed_host(context)
    state = str(failed["State"]["Name"])
    if state == "running":
        raise SubjectMissing("a failed host that has had time to terminate")
    later = [h for h in context.hosts if str(h["LaunchTime"]) > str(failed["LaunchTime"])]
    return ProbeResult(
        ok=state in _ENDED,
        seen=f"{failed['InstanceId']} is {state}; {counted(len(later), 'host')} launched after it",
        expected="terminated, and replaced if a job is waiting",
    )
