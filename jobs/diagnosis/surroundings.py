"""What is around a run: queues, capacity, hosts and the cluster. Everything is only read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobs.aws import Aws
from jobs.batch.request import check_rules, find_group
from jobs.capacity import ENDED_RESERVATIONS, needed_quota, utc
from jobs.deployment import Deployment
from jobs.diagnosis.evidence import EvidenceSource, Fact, RunEvidence, of_job, read_logs
from jobs.eks.cluster import JOBS
from jobs.eks.nodes import NodeGroup, look_at_nodes, read_node_group
from jobs.eks.service import EksService
from jobs.eks.waiting import NO_NEWS, events_of, gang_of, leaving, time_of, unschedulable
from jobs.errors import Refusal
from jobs.job import ENDED, Job, RunSummary, counted
from jobs.orchestrators import JobService
from trainium_catalogue import kubernetes
from trainium_catalogue.contract import TAG_DEPLOYMENT, Orchestrator
from trainium_catalogue.eks import cluster_addresses_per_node
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.instances import EfaLayout
from trainium_catalogue.workloads import Hardware

_CONSOLES = 2
"""Hosts whose console is read: the newest."""
_SCALER_MINUTES = 30
"""Failed launches that are older say nothing of now."""
_UNSEEN_S = 60.0
"""Volcano's controller gives a job a phase within seconds."""
_HOST_LINE = re.compile(r"trainium: HOST NOT READY[^\n]*")
_LOST_HOST = re.compile(r"Host EC2 \(instance (i-[0-9a-f]+)\)")
_PROBLEM_EVENTS = ("Warning", "Unschedulable", "Failed")
_OF_THE_HOST = (None, ExitCode.HOST, ExitCode.KILLED, ExitCode.STOPPED)


@dataclass(slots=True)
class _Surroundings:
    """Reads the sources of one job, one after the other."""

    aws: Aws
    target: Deployment
    service: JobService
    job: Job
    evidence: RunEvidence

    @property
    def _layout(self) -> EfaLayout:
        return EfaLayout((self.target.settings or {}).get("efa_layout", EfaLayout.EFA))

    # --- either orchestrator ---------------------------------------------------------------------
    def dependencies(self) -> Iterator[Fact]:
        """Yield the jobs that have to succeed first."""
        for job_id in self.job.depends_on:
            other = self.service.describe(job_id)
            if other is not None and not other.succeeded:
                text = f"it begins when run {other.run} ({other.status}) has succeeded"
                yield Fact(source=EvidenceSource.DEPENDENCY, text=text, wrong=True)

    def ahead(self) -> Iterator[Fact]:
        """Yield the runs that have the nodes, or came first, if the others are too few."""
        if self.job.hardware is Hardware.CPU:
            return
        others = [each for each in self.service.runs() if self._is_ahead(each)]
        taken = sum(each.num_nodes or 0 for each in others)
        if others:
            names = ", ".join(f"{each.run} ({each.status}, {each.num_nodes})" for each in others)
            text = f"{names}: {taken} of at most {counted(self.target.max_nodes, 'node')}"
            wrong = taken + self.job.num_nodes > self.target.max_nodes
            yield Fact(source=EvidenceSource.AHEAD, text=text, wrong=wrong)

    def _is_ahead(self, other: RunSummary) -> bool:
        if other.ended or other.job_id == self.job.job_id or other.hardware is Hardware.CPU:
            return False
        earlier = other.created_at_ms < (self.job.created_at_ms or 0)
        return other.status in ("STARTING", "RUNNING") or (other.status == "RUNNABLE" and earlier)

    def quota(self) -> Iterator[Fact]:
        """Yield the account's quota and what the job needs of it."""
        needed = needed_quota(self.target, self.job.hardware, self.job.num_nodes)
        if needed is not None:
            quota, vcpus = needed
            found = self.aws.quotas().get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
            value = float(found["Quota"]["Value"])
            self.evidence.quotas[quota.code] = int(value)
            text = f"{quota.code} ({quota.name}) is {value:g} vCPUs, the job needs {vcpus}"
            yield Fact(source=EvidenceSource.QUOTA, text=text, wrong=value < vcpus)

    def reservation(self) -> Iterator[Fact]:
        """Yield the state of the deployment's reservation or Capacity Block."""
        settings = self.target.settings or {}
        name = settings.get("capacity_block_id") or settings.get("capacity_reservation_id")
        if name is None or self.job.hardware is Hardware.CPU:
            return
        (found,) = self.aws.ec2().describe_capacity_reservations(CapacityReservationIds=[name])[
            "CapacityReservations"
        ]
        now, free = datetime.now(UTC), found.get("AvailableInstanceCount", 0)
        start = found.get("StartDate", now)
        if found["State"] in ENDED_RESERVATIONS or found.get("EndDate", now) < now:
            text, wrong = f"{name} has ended ({found['State']})", True
        elif start > now:
            text, wrong = f"{name} starts at {utc(start)}", True
        else:
            text = f"{name} has {free} of {found.get('TotalInstanceCount')} instances free"
            wrong = free < self.job.num_nodes and self.job.status == "RUNNABLE"
        yield Fact(source=EvidenceSource.RESERVATION, text=text, wrong=wrong)

    def activities(self, groups: Iterable[str]) -> Iterator[Fact]:
        """Yield why launches failed, newest first, until one that did not."""
        for name in groups:
            listed = self.aws.autoscaling().describe_scaling_activities(
                AutoScalingGroupName=name, MaxRecords=20
            )["Activities"]
            said = ""
            for activity in listed:  # newest first (Auto Scaling API reference)
                if activity["StatusCode"] == "Successful" and "Launching" in activity.get(
                    "Description", ""
                ):
                    break
                age = datetime.now(UTC) - activity["StartTime"]
                message = str(activity.get("StatusMessage", ""))
                old = age.total_seconds() > 60 * _SCALER_MINUTES
                if (
                    activity["StatusCode"] in ("Failed", "Cancelled")
                    and message != said
                    and not old
                ):
                    said = message
                    yield Fact(source=EvidenceSource.ACTIVITY, text=said)

    def addresses(self, subnets: Iterable[str], needed: int) -> Iterator[Fact]:
        """Yield the free addresses of the subnets, and how many the missing nodes take."""
        ids = list(subnets)
        if not ids or needed < 1:
            return
        found = self.aws.ec2().describe_subnets(SubnetIds=ids)["Subnets"]
        free = sum(int(each["AvailableIpAddressCount"]) for each in found)
        text = f"{', '.join(ids)}: {free} free, the job's nodes need {needed}"
        yield Fact(source=EvidenceSource.ADDRESSES, text=text, wrong=free < needed)

    def consoles(self) -> Iterator[Fact]:
        """Yield what hosts that did not become ready say of themselves."""
        kind = self.target.instance_type.name
        filters = [
            {"Name": f"tag:{TAG_DEPLOYMENT}", "Values": [self.target.name]},
            {"Name": "instance-type", "Values": [kind]},
        ]
        pages = self.aws.ec2().describe_instances(Filters=filters)["Reservations"]
        hosts = [each for page in pages for each in page["Instances"]]
        hosts.sort(key=lambda each: str(each.get("LaunchTime")), reverse=True)
        for host in hosts[:_CONSOLES]:
            name = host["InstanceId"]
            said = str(self.aws.ec2().get_console_output(InstanceId=name).get("Output", ""))
            for line in _HOST_LINE.findall(said):
                yield Fact(source=EvidenceSource.HOST, text=f"{name}: {line}", wrong=True)

    def lost_hosts(self) -> Iterator[Fact]:
        """Yield why EC2 ended the hosts that a reason names."""
        said = " ".join(fact.text for fact in self.evidence.facts if not fact.past)
        if names := sorted(set(_LOST_HOST.findall(said))):
            for page in self.aws.ec2().describe_instances(InstanceIds=names)["Reservations"]:
                for host in page["Instances"]:
                    why = host.get("StateReason") or {}
                    text = f"{host['InstanceId']}: {why.get('Code')}: {why.get('Message')}"
                    yield Fact(source=EvidenceSource.HOST, text=text)

    # --- Batch -----------------------------------------------------------------------------------
    def batch(self) -> None:
        """Read queue, compute environment and what its hosts need."""
        names: list[str] = []
        environments: list[Mapping[str, Any]] = []
        read = self.evidence.read
        read("queue", "batch:DescribeJobQueues", lambda: self._queue(names))
        read(
            "compute environment",
            "batch:DescribeComputeEnvironments",
            lambda: self._environment(names, environments),
        )
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

    def _queue(self, names: list[str]) -> Iterator[Fact]:
        on_nodes = self.job.hardware is Hardware.TRAINIUM
        name = self.target.job_queue if on_nodes else self.target.cpu_job_queue
        for queue in self.aws.batch().describe_job_queues(jobQueues=[name])["jobQueues"]:
            names += [each["computeEnvironment"] for each in queue["computeEnvironmentOrder"]]
            yield _state_of(EvidenceSource.QUEUE, queue)

    def _environment(self, names: list[str], found: list[Mapping[str, Any]]) -> Iterator[Fact]:
        if not names:
            return  # every one of the account would be described
        asked = {"computeEnvironments": names}
        found += self.aws.batch().describe_compute_environments(**asked)["computeEnvironments"]
        needed = self.target.instance_type.vcpus_for(self.job.num_nodes)
        for environment in found:
            yield (state := _state_of(EvidenceSource.ENVIRONMENT, environment))
            if state.wrong or len(found) == 1:
                self.evidence.names["environment"] = environment["computeEnvironmentName"]
            most = (environment.get("computeResources") or {}).get("maxvCpus")
            if most is not None and self.job.hardware is Hardware.TRAINIUM:
                text = f"the compute environment may have {most} vCPUs, the job needs {needed}"
                yield Fact(source=EvidenceSource.LIMIT, text=text, wrong=most < needed)

    def _groups(self, environments: Iterable[Mapping[str, Any]]) -> list[str]:
        """Find the groups that Batch made: it puts the environment's name into theirs."""
        names = [f"{each['computeEnvironmentName']}-asg-" for each in environments]
        found: list[str] = []
        token: dict[str, str] = {}
        while names:
            page = self.aws.autoscaling().describe_auto_scaling_groups(MaxRecords=100, **token)
            listed = [str(each["AutoScalingGroupName"]) for each in page["AutoScalingGroups"]]
            found += [each for each in listed if any(name in each for name in names)]
            if not page.get("NextToken"):
                break
            token = {"NextToken": page["NextToken"]}
        return found

    def _subnets(self, environments: Iterable[Mapping[str, Any]]) -> Iterator[Fact]:
        of_node = self.target.instance_type.addresses_per_node(self._layout)
        needed = self.job.num_nodes * (of_node if self.job.hardware is Hardware.TRAINIUM else 1)
        for environment in environments:
            subnets = (environment.get("computeResources") or {}).get("subnets") or ()
            yield from self.addresses(subnets, needed)

    def default_group(self) -> Iterator[Fact]:
        """Yield what the group that tasks carry lacks, if anything."""
        if self.target.vpc is not None:
            group = find_group(self.aws.ec2(), self.target.vpc)
            try:
                if group is not None:
                    self.evidence.names["group"] = group["GroupId"]
                    check_rules(self.target, group, lambda text: None)
            except Refusal as refusal:
                yield Fact(source=EvidenceSource.GROUP, text=refusal.message, wrong=True)

    # --- the cluster -----------------------------------------------------------------------------
    def cluster(self, service: EksService) -> None:
        """Read the gang, its pods, the nodes and what adds nodes."""
        groups: list[NodeGroup] = []
        read = self.evidence.read
        read("events", "list events in the cluster", lambda: self._events(service))
        read("the attempt before", "list pods in the cluster", lambda: self._leaving(service))
        if self.job.ended or self.job.status == "RUNNING":
            return
        read("runs ahead", "list jobs in the cluster", self.ahead)
        read("quota", "servicequotas:GetServiceQuota", self.quota)
        read("reservation", "ec2:DescribeCapacityReservations", self.reservation)
        read("node group", "eks:DescribeNodegroup", lambda: self._node_group(groups))
        read(
            "scaling activities",
            "autoscaling:DescribeScalingActivities",
            lambda: self.activities(each.scaling_group for each in groups),
        )
        read("job", "get jobs in the cluster", lambda: self._scaler(service))
        read("subnet", "ec2:DescribeSubnets", lambda: self._free_addresses(service, groups))

    def nodes(self, service: EksService) -> Iterator[Fact]:
        """Yield the nodes that cannot be used, and how many can."""
        nodes = look_at_nodes(service.cluster(), self.target)
        for remark in nodes.remarks:
            yield Fact(source=EvidenceSource.NODE, text=remark, wrong=True)
        needs = counted(self.job.num_nodes, "node")
        text = f"the job needs {needs}, the cluster has {nodes.usable} that are ready"
        wrong = nodes.usable < self.job.num_nodes and not self.job.ended
        yield Fact(source=EvidenceSource.NODES, text=text, wrong=wrong)

    def _free_addresses(self, service: EksService, groups: Iterable[NodeGroup]) -> Iterator[Fact]:
        usable = look_at_nodes(service.cluster(), self.target).usable
        of_node = cluster_addresses_per_node(self.target.instance_type, self._layout)
        needed = (self.job.num_nodes - usable) * of_node
        yield from self.addresses((subnet for each in groups for subnet in each.subnets), needed)

    def _node_group(self, groups: list[NodeGroup]) -> Iterator[Fact]:
        groups.append(group := read_node_group(self.aws, self.target))
        for trouble in group.troubles:
            yield Fact(source=EvidenceSource.NODE_GROUP, text=trouble)
        if group.most < self.job.num_nodes:
            text = f"the node group may have {group.most}, the job needs {self.job.num_nodes}"
            yield Fact(source=EvidenceSource.LIMIT, text=text, wrong=True)

    def _events(self, service: EksService) -> Iterator[Fact]:
        cluster = service.cluster()
        gang = None if self.job.ended else gang_of(cluster, self.job.job_id)
        pods = [node.name for node in self.job.nodes if node.name]
        names = [self.job.job_id, *([gang["metadata"]["name"]] if gang else []), *pods]
        if gang is not None and (said := unschedulable(gang)):
            yield Fact(source=EvidenceSource.EVENT, text=f"Unschedulable: {said}")
        for event in sorted(events_of(cluster, names), key=time_of, reverse=True):
            kind = (event.get("type"), event.get("reason"))
            if any(word in kind for word in _PROBLEM_EVENTS) and NO_NEWS not in str(
                event.get("message")
            ):
                text = " ".join(f"{event.get('reason')}: {event.get('message')}".split())
                yield Fact(source=EvidenceSource.EVENT, text=text)

    def _leaving(self, service: EksService) -> Iterator[Fact]:
        found = leaving(service.view(), self.job) if self.job.status == "RUNNABLE" else None
        if found is not None:
            yield Fact(source=EvidenceSource.LEAVING, text=found.meaning, wrong=True)

    def _scaler(self, service: EksService) -> Iterator[Fact]:
        job = service.cluster().get(f"{JOBS}/{self.job.job_id}")
        notes = job["metadata"].get("annotations") or {}
        if (dropped := notes.get(kubernetes.DROPPED)) is not None:
            yield Fact(source=EvidenceSource.SCALER, text=f"given up: {dropped}", wrong=True)
        elif notes.get(kubernetes.SCALE) == "true":
            yield Fact(source=EvidenceSource.SCALER, text="asked for the missing nodes")
        age_s = datetime.now(UTC).timestamp() - (self.job.created_at_ms or 0) / 1000
        if self.job.status == "SUBMITTED" and age_s > _UNSEEN_S:
            text = f"Volcano has not looked at the job for {age_s:.0f} s"
            yield Fact(source=EvidenceSource.STATE, text=text, wrong=True)


def _state_of(source: EvidenceSource, item: Mapping[str, Any]) -> Fact:
    """Describe a queue or an environment of Batch."""
    text = f"{item.get('state')} and {item.get('status')}: {item.get('statusReason', '')}"
    wrong = item.get("state") != "ENABLED" or item.get("status") == "INVALID"
    return Fact(source=source, text=text.rstrip(": "), wrong=wrong)


def gather(aws: Aws, target: Deployment, service: JobService, job: Job) -> RunEvidence:
    """Read what a job's state asks for: what it waits for, or how it ended."""
    evidence = of_job(job)
    around = _Surroundings(aws, target, service, job, evidence)
    waits = job.status not in (*ENDED, "RUNNING")
    if job.succeeded:
        return evidence
    if waits and job.depends_on:
        evidence.read("jobs it waits for", "batch:DescribeJobs", around.dependencies)
    if waits and job.orchestrator is Orchestrator.BATCH:
        around.batch()
    if job.attempts or job.ended or job.status == "RUNNING":
        read_logs(evidence, service, job)
    if isinstance(service, EksService):
        around.cluster(service)
        if not job.ended or evidence.exit_code in _OF_THE_HOST:
            evidence.read("nodes", "list nodes in the cluster", lambda: around.nodes(service))
    elif job.ended:
        evidence.read("hosts", "ec2:DescribeInstances", around.lost_hosts)
        if evidence.exit_code == ExitCode.PREFLIGHT:
            evidence.read("default group", "ec2:DescribeSecurityGroups", around.default_group)
    return evidence
