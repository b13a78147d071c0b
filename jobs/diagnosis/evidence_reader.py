"""Read-only evidence from the environment of a job: queues, capacity, hosts, cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from jobs.aws import Aws, pages
from jobs.batch.request import check_group, find_group
from jobs.capacity import needed_quota, read_quota, read_window, utc
from jobs.deployment import Deployment
from jobs.diagnosis.evidence import EvidenceSource, Fact, RunEvidence, of_job, read_logs
from jobs.eks.cluster import JOBS
from jobs.eks.nodes import NodeGroup, count_nodes, read_node_groups, scale_command
from jobs.eks.service import EksService
from jobs.eks.waiting import (
    UNINFORMATIVE,
    events_of,
    explain_terminating_pods,
    gang_of,
    time_of,
    unschedulable,
)
from jobs.errors import Refusal
from jobs.job import ENDED, Job, JobRequest, RunSummary
from jobs.orchestrators import JobService
from jobs.prerequisites import list_hosts
from trainium_catalogue import kubernetes
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.eks import cluster_addresses_per_node
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.instances import EfaLayout
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import Hardware

Subject = TypeVar("Subject", bound=Job | JobRequest)
_CONSOLES = 2
"""Number of newest hosts whose console output is read."""
_RECENT_MINUTES = 30
"""Maximum age of a failed launch to report."""
_USABLE_NODE_GROUP_STATUSES = ("ACTIVE", "CREATING", "UPDATING")
"""States of a node group that can have nodes (Amazon EKS API reference, Nodegroup)."""
_UNSEEN_S = 60.0
"""Age after which a job without a phase indicates a problem: Volcano sets it within seconds."""
_HOST_LINE = re.compile(r"trainium: HOST NOT READY[^\n]*")
_LOST_HOST = re.compile(r"Host EC2 \(instance (i-[0-9a-f]+)\)")
_PROBLEM_EVENTS = ("Warning", "Unschedulable", "Failed")
"""Types and reasons of Kubernetes events that indicate a problem."""
_HOST_EXIT_CODES = (None, ExitCode.HOST, ExitCode.KILLED, ExitCode.STOPPED)
"""Exit codes that the state of a host or cluster node may explain; None if there is none."""


@dataclass(slots=True)
class EvidenceReader(Generic[Subject]):
    """Reads the environment of a job or a planned job, source by source."""

    aws: Aws
    target: Deployment
    service: JobService
    job: Subject
    evidence: RunEvidence

    @property
    def _layout(self) -> EfaLayout:
        return EfaLayout((self.target.settings or {}).get("efa_layout", EfaLayout.EFA))

    def ahead(self) -> Iterator[Fact]:
        """Yield runs that use the nodes or are ahead in the queue, if too few nodes are left."""
        if self.job.hardware is Hardware.CPU:
            return
        others = [each for each in self.service.runs() if self._is_ahead(each)]
        taken = sum(each.num_nodes or 0 for each in others)
        if others:
            names = ", ".join(f"{each.run} ({each.status}, {each.num_nodes})" for each in others)
            text = f"{names}: {taken} of at most {counted(self.target.max_nodes, 'node')}"
            needed = taken + self.job.num_nodes
            self.evidence.names["scale"] = scale_command(
                self.target, min(needed, self.target.max_nodes)
            )
            is_problem = needed > self.target.max_nodes
            yield Fact(source=EvidenceSource.AHEAD, text=text, is_problem=is_problem)

    def _is_ahead(self, other: RunSummary) -> bool:
        if other.ended or other.hardware is Hardware.CPU:
            return False
        if isinstance(self.job, JobRequest):
            return True
        if other.job_id == self.job.job_id or self._zone not in (None, other.zone):
            return False
        earlier = other.created_at_ms < (self.job.created_at_ms or 0)
        return other.status in ("STARTING", "RUNNING") or (other.status == "RUNNABLE" and earlier)

    @property
    def _zone(self) -> str | None:
        """Zone of the job's queue; None with a single zone, and on EKS."""
        zone = self.target.zone_of(self.job.job_queue)
        return None if zone is None else zone.zone

    def quota(self) -> Iterator[Fact]:
        """Yield the account's quota and the job's vCPUs."""
        needed = needed_quota(self.target, self.job.hardware, self.job.num_nodes)
        if needed is not None:
            quota, vcpus = needed
            value = read_quota(self.aws.quotas(), quota)
            self.evidence.quotas[quota.code] = int(value)
            text = f"{quota.code} ({quota.name}) is {value:g} vCPUs; the job needs {vcpus}"
            yield Fact(source=EvidenceSource.QUOTA, text=text, is_problem=value < vcpus)

    def reservation(self) -> Iterator[Fact]:
        """Yield the state of the deployment's reservation or Capacity Block."""
        if self.job.hardware is Hardware.CPU:
            return
        window, now = read_window(self.aws, self.target), datetime.now(UTC)
        if window is None:
            return
        needed = self.job.num_nodes
        is_problem = False  # an ended or future window is recognized by its text
        if isinstance(self.job, JobRequest) and window.ends is not None and window.ends > now:
            hours = self.job.time_limit_hours
            if max(now, window.starts) + timedelta(hours=hours) > window.ends:
                ends = f"{window.name} ends at {utc(window.ends)}"
                text = f"{ends}, before the time limit of {hours:g} h is reached"
                yield Fact(source=EvidenceSource.RESERVATION, text=text)
        if window.has_ended(now):
            text = f"{window.name} has ended ({window.state})"
        elif window.starts > now:
            text = f"{window.name} starts at {utc(window.starts)}"
        elif window.num_instances < needed:
            total = counted(window.num_instances, "instance")
            text = f"{window.name} has only {total}; the job needs {needed}"
        else:
            free = f"{window.num_free} of {counted(window.num_instances, 'instance')} free"
            text = f"{window.name} has {free}; the job needs {needed}"
            is_problem = window.num_free < needed and self._waits
        yield Fact(source=EvidenceSource.RESERVATION, text=text, is_problem=is_problem)

    @property
    def _waits(self) -> bool:
        return isinstance(self.job, JobRequest) or self.job.status == "RUNNABLE"

    def activities(self, groups: Iterable[str]) -> Iterator[Fact]:
        """Yield the errors of launches, newest first, back to the last successful one."""
        for name in groups:
            listed = self.aws.autoscaling().describe_scaling_activities(
                AutoScalingGroupName=name, MaxRecords=20
            )["Activities"]
            last_message = ""
            for activity in listed:  # newest first (Auto Scaling API reference)
                if activity["StatusCode"] == "Successful" and "Launching" in activity.get(
                    "Description", ""
                ):
                    break
                age = datetime.now(UTC) - activity["StartTime"]
                message = str(activity.get("StatusMessage", ""))
                old = age.total_seconds() > 60 * _RECENT_MINUTES
                if (
                    activity["StatusCode"] in ("Failed", "Cancelled")
                    and message != last_message
                    and not old
                ):
                    last_message = message
                    yield Fact(source=EvidenceSource.ACTIVITY, text=message, is_problem=True)

    def addresses(self, subnets: Iterable[str], needed: int) -> Iterator[Fact]:
        """Yield the free addresses of the subnets, and how many the missing nodes need."""
        ids = list(subnets)
        if not ids or needed < 1:
            return
        found = self.aws.ec2().describe_subnets(SubnetIds=ids)["Subnets"]
        free = sum(int(each["AvailableIpAddressCount"]) for each in found)
        text = f"{', '.join(ids)}: {free} free; the job's missing nodes need {needed}"
        yield Fact(source=EvidenceSource.ADDRESSES, text=text, is_problem=free < needed)

    def read_environments(self) -> list[Mapping[str, Any]]:
        """Read the queue and its compute environments; return the environments."""
        names: list[str] = []
        found: list[Mapping[str, Any]] = []
        read = self.evidence.read
        read("queue", "batch:DescribeJobQueues", lambda: self._queue(names))
        read(
            "compute environment",
            "batch:DescribeComputeEnvironments",
            lambda: self._environment(names, found),
        )
        return found

    def _queue(self, names: list[str]) -> Iterator[Fact]:
        # A planned job may run in any zone.
        is_planned = isinstance(self.job, JobRequest) and self._zone is not None
        asked = self.target.node_queues if is_planned else (self.job.job_queue,)
        queues = self.aws.batch().describe_job_queues(jobQueues=list(asked))["jobQueues"]
        existing = {queue[key] for queue in queues for key in ("jobQueueArn", "jobQueueName")}
        for name in asked:
            if name not in existing:
                text = f"queue {name} does not exist"
                yield Fact(source=EvidenceSource.QUEUE, text=text, is_problem=True)
        for queue in queues:
            names += [each["computeEnvironment"] for each in queue["computeEnvironmentOrder"]]
            yield _state_of(EvidenceSource.QUEUE, queue)

    def _environment(self, names: list[str], found: list[Mapping[str, Any]]) -> Iterator[Fact]:
        if not names:
            return  # an empty list would describe every environment in the account
        query = {"computeEnvironments": names}
        found += self.aws.batch().describe_compute_environments(**query)["computeEnvironments"]
        needed = self.target.instance_type.vcpus_for(self.job.num_nodes)
        for environment in found:
            yield (state := _state_of(EvidenceSource.ENVIRONMENT, environment))
            if state.is_problem or len(found) == 1:
                self.evidence.names["environment"] = environment["computeEnvironmentName"]
            limit = (environment.get("computeResources") or {}).get("maxvCpus")
            if limit is not None and self.job.hardware is Hardware.TRAINIUM:
                text = f"the compute environment has at most {limit} vCPUs; the job needs {needed}"
                yield Fact(source=EvidenceSource.LIMIT, text=text, is_problem=limit < needed)

    def _groups(self, environments: Iterable[Mapping[str, Any]]) -> list[str]:
        names = [str(each["computeEnvironmentName"]) for each in environments]
        return [str(each["AutoScalingGroupName"]) for each in scaling_groups(self.aws, names)]

    def _subnets(
        self, environments: Iterable[Mapping[str, Any]], *, num_running: int = 0
    ) -> Iterator[Fact]:
        of_node = self.target.instance_type.addresses_per_node(self._layout)
        on_nodes = self.job.hardware is Hardware.TRAINIUM
        needed = (self.job.num_nodes - num_running) * (of_node if on_nodes else 1)
        for environment in environments:
            subnets = (environment.get("computeResources") or {}).get("subnets") or ()
            yield from self.addresses(subnets, needed)

    def default_group(self) -> Iterator[Fact]:
        """Check whether the security group of tasks allows traffic between its members."""
        if self.target.vpc is None:
            return
        group = find_group(self.aws.ec2(), self.target.vpc)
        if group is None:
            self.evidence.unread.append(
                f"default security group of {self.target.vpc}: no such group is visible"
            )
            return
        self.evidence.names["group"] = group["GroupId"]
        text, is_problem = (
            f"{group['GroupId']} allows traffic between its members in both directions",
            False,
        )
        try:
            check_group(self.target, group, lambda text: None)
        except Refusal as refusal:
            text, is_problem = refusal.message, refusal.code == "closed-default-group"
        yield Fact(source=EvidenceSource.GROUP, text=text, is_problem=is_problem)

    def nodes(self, service: EksService) -> Iterator[Fact]:
        """Yield the unusable nodes, and the number of usable ones."""
        nodes = count_nodes(service.cluster(), self.target)
        for remark in nodes.remarks:
            yield Fact(source=EvidenceSource.NODE, text=remark, is_problem=True)
        needs = counted(self.job.num_nodes, "node")
        in_zone = " in one zone" if self.target.eks and self.target.eks.has_zones else ""
        text = f"the job needs {needs}; the cluster has {nodes.in_one_zone} ready{in_zone}"
        # With --scale, missing nodes are added.
        waits = not (self.job.scales if isinstance(self.job, JobRequest) else self.job.ended)
        is_problem = nodes.in_one_zone < self.job.num_nodes and waits
        yield Fact(source=EvidenceSource.NODES, text=text, is_problem=is_problem)

    def _free_addresses(self, service: EksService, groups: Iterable[NodeGroup]) -> Iterator[Fact]:
        usable = count_nodes(service.cluster(), self.target).in_one_zone
        of_node = cluster_addresses_per_node(self.target.instance_type, self._layout)
        needed = (self.job.num_nodes - usable) * of_node
        for group in groups:
            yield from self.addresses(group.subnets, needed)

    def _node_group(self, groups: list[NodeGroup]) -> Iterator[Fact]:
        for group in read_node_groups(self.aws, self.target):
            groups.append(group)
            zone = f" in {group.zone}" if group.zone else ""
            for issue in group.health_issues:
                yield Fact(source=EvidenceSource.NODE_GROUP, text=issue, is_problem=True)
            text = f"the node group{zone} is {group.status}"
            is_problem = group.status not in _USABLE_NODE_GROUP_STATUSES
            yield Fact(source=EvidenceSource.NODE_GROUP, text=text, is_problem=is_problem)
            text = f"the maximum size of the node group{zone} is {group.max_size}; the job needs "
            text += str(self.job.num_nodes)
            is_problem = group.max_size < self.job.num_nodes
            yield Fact(source=EvidenceSource.LIMIT, text=text, is_problem=is_problem)


class _JobEvidenceReader(EvidenceReader[Job]):
    """Reads the environment of an existing job, depending on its status."""

    def dependencies(self) -> Iterator[Fact]:
        """Yield the jobs that must succeed first."""
        for job_id in self.job.depends_on:
            other = self.service.describe(job_id)
            if other is not None and not other.succeeded:
                text = f"the job starts once run {other.run} ({other.status}) has succeeded"
                yield Fact(source=EvidenceSource.DEPENDENCY, text=text, is_problem=True)

    def consoles(self) -> Iterator[Fact]:
        """Yield lines from the console output of hosts that did not become ready."""
        for host in list_hosts(self.aws.ec2(), self.target)[:_CONSOLES]:
            name = host["InstanceId"]
            output = str(self.aws.ec2().get_console_output(InstanceId=name).get("Output", ""))
            for line in _HOST_LINE.findall(output):
                yield Fact(source=EvidenceSource.HOST, text=f"{name}: {line}", is_problem=True)

    def lost_hosts(self) -> Iterator[Fact]:
        """Yield EC2's reasons for terminating the hosts named in status reasons."""
        reasons = " ".join(fact.text for fact in self.evidence.facts if not fact.past)
        if names := sorted(set(_LOST_HOST.findall(reasons))):
            for page in self.aws.ec2().describe_instances(InstanceIds=names)["Reservations"]:
                for host in page["Instances"]:
                    why = host.get("StateReason") or {}
                    text = f"{host['InstanceId']}: {why.get('Code')}: {why.get('Message')}"
                    yield Fact(source=EvidenceSource.HOST, text=text)

    def batch(self) -> None:
        """Read the queue, the compute environment and the prerequisites of its hosts."""
        environments = self.read_environments()
        read = self.evidence.read
        read("runs ahead", "batch:ListJobs", self.ahead)
        read("quota", "servicequotas:GetServiceQuota", self.quota)
        read("reservation", "ec2:DescribeCapacityReservations", self.reservation)
        read(
            "scaling activities",
            "autoscaling:DescribeScalingActivities",
            lambda: self.activities(self._groups(environments)),
        )
        read("hosts", "ec2:DescribeInstances and ec2:GetConsoleOutput", self.consoles)
        read("subnet", "ec2:DescribeSubnets", lambda: self._subnets(environments))

    def cluster(self, service: EksService) -> None:
        """Read the gang, its pods, the nodes, and the prerequisites of new nodes."""
        groups: list[NodeGroup] = []
        read = self.evidence.read
        read("events", "list events in the cluster", lambda: self._events(service))
        read(
            "previous attempt", "list pods in the cluster", lambda: self._terminating_pods(service)
        )
        if self.job.ended or self.job.status == "RUNNING":
            return
        read("runs ahead", "list jobs in the cluster", self.ahead)
        read("quota", "servicequotas:GetServiceQuota", self.quota)
        read("reservation", "ec2:DescribeCapacityReservations", self.reservation)
        read("node group", "eks:DescribeNodegroup", lambda: self._node_group(groups))
        read(
            "scaling activities",
            "autoscaling:DescribeScalingActivities",
            lambda: self.activities(each.scaling_group for each in groups if each.scaling_group),
        )
        read("job", "get jobs in the cluster", lambda: self._scaler(service))
        read("subnet", "ec2:DescribeSubnets", lambda: self._free_addresses(service, groups))

    def _events(self, service: EksService) -> Iterator[Fact]:
        cluster = service.cluster()
        gang = None if self.job.ended else gang_of(cluster, self.job.job_id)
        pods = [node.name for node in self.job.nodes if node.name]
        names = [self.job.job_id, *([gang["metadata"]["name"]] if gang else []), *pods]
        began_ms = -1
        if self.job.status == "RUNNING":
            # Ignore events that kept the pods from starting.
            starts = [node.last.started_at_ms or 0 for node in self.job.nodes if node.last]
            began_ms = max(starts, default=began_ms)
        elif gang is not None and (reason := unschedulable(gang)):
            yield Fact(source=EvidenceSource.EVENT, text=f"Unschedulable: {reason}")
        for event in sorted(events_of(cluster, names), key=time_of, reverse=True):
            if time_of(event) <= began_ms:
                break
            kind = (event.get("type"), event.get("reason"))
            if any(word in kind for word in _PROBLEM_EVENTS) and UNINFORMATIVE not in str(
                event.get("message")
            ):
                text = " ".join(f"{event.get('reason')}: {event.get('message')}".split())
                yield Fact(source=EvidenceSource.EVENT, text=text)

    def _terminating_pods(self, service: EksService) -> Iterator[Fact]:
        found = (
            explain_terminating_pods(service, self.job) if self.job.status == "RUNNABLE" else None
        )
        if found is not None:
            yield Fact(source=EvidenceSource.TERMINATING_PODS, text=found.meaning, is_problem=True)

    def _scaler(self, service: EksService) -> Iterator[Fact]:
        job = service.cluster().get(f"{JOBS}/{self.job.job_id}")
        notes = job["metadata"].get("annotations") or {}
        if (dropped := notes.get(kubernetes.DROPPED)) is not None:
            yield Fact(source=EvidenceSource.SCALER, text=f"gave up: {dropped}", is_problem=True)
        elif notes.get(kubernetes.SCALE) == "true":
            yield Fact(source=EvidenceSource.SCALER, text="has a request for the missing nodes")
        age_s = datetime.now(UTC).timestamp() - (self.job.created_at_ms or 0) / 1000
        if self.job.status == "SUBMITTED" and age_s > _UNSEEN_S:
            text = f"Volcano has not processed the job within {age_s:.0f} s of its creation"
            yield Fact(source=EvidenceSource.STATE, text=text, is_problem=True)


def scaling_groups(aws: Aws, environments: Sequence[str]) -> list[Mapping[str, Any]]:
    """Find Batch's Auto Scaling groups, whose names contain the name of the compute environment."""
    if not environments:
        return []
    list_groups = aws.autoscaling().describe_auto_scaling_groups
    return [
        group
        for page in pages(list_groups, token="NextToken", MaxRecords=100)
        for group in page["AutoScalingGroups"]
        if any(f"{name}-asg-" in group["AutoScalingGroupName"] for name in environments)
    ]


def _state_of(source: EvidenceSource, item: Mapping[str, Any]) -> Fact:
    """Describe the state of a job queue or compute environment."""
    text = f"{item.get('state')} and {item.get('status')}: {item.get('statusReason', '')}"
    is_problem = item.get("state") != "ENABLED" or item.get("status") == "INVALID"
    return Fact(source=source, text=text.rstrip(": "), is_problem=is_problem)


def gather(aws: Aws, target: Deployment, service: JobService, job: Job) -> RunEvidence:
    """Gather the evidence for a job's status: why it waits, or how it ended."""
    evidence = of_job(job)
    reader = _JobEvidenceReader(aws, target, service, job, evidence)
    waits = job.status not in (*ENDED, "RUNNING")
    if job.succeeded:
        return evidence
    if waits and job.depends_on:
        evidence.read("jobs it waits for", "batch:DescribeJobs", reader.dependencies)
    if waits and job.orchestrator is Orchestrator.BATCH:
        reader.batch()
    if job.attempts or job.ended or job.status == "RUNNING":
        read_logs(evidence, service, job)
    if isinstance(service, EksService):
        reader.cluster(service)
        if not job.ended or evidence.exit_code in _HOST_EXIT_CODES:
            evidence.read("nodes", "list nodes in the cluster", lambda: reader.nodes(service))
    elif job.ended:
        evidence.read("hosts", "ec2:DescribeInstances", reader.lost_hosts)
        if evidence.exit_code == ExitCode.PREFLIGHT:
            evidence.read(
                "default security group", "ec2:DescribeSecurityGroups", reader.default_group
            )
    return evidence
