"""Context of client-side probes: the account, the deployment, its jobs and its bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_status
from jobs.deployment import Deployment, EksTarget
from jobs.eks.cluster import Cluster
from jobs.errors import Refusal, is_denied, is_transient
from jobs.job import Job
from jobs.orchestrators import Services
from jobs.prerequisites import list_hosts
from trainium_catalogue.contract import RUNS_PREFIX, run_prefix
from trainium_catalogue.probing import Probes, ProbeSite, SubjectMissing
from trainium_catalogue.releases import NeuronRelease, find_release

REMEDY = "`python -m jobs doctor` shows the remedy"
"""Remedy where a prerequisite of runs is not met; probes only report what they found."""
_NEWEST_JOBS = 20
_MAX_RUNS = 200
"""Maximum number of runs to examine, since each takes several requests."""


@dataclass
class ClientContext:
    """A read-only view of the deployment, with the caller's credentials."""

    aws: Aws
    target: Deployment
    services: Services
    """Services that run its jobs."""
    job: Job | None = None
    """Job of the ``verify`` run, if Batch or the cluster still has it."""
    _clients: dict[str, Any] = field(default_factory=dict, repr=False)

    def client(self, service: str) -> Any:
        """Return a boto3 client; probes only call Describe, Get, Head and List."""
        if service not in self._clients:
            self._clients[service] = self.aws.client(service)
        return self._clients[service]

    @property
    def met_requirements(self) -> frozenset[str]:
        """Requirements of probes that are met here."""
        facts = {
            "AWS": not self.aws.is_emulated,
            "Batch": self.target.compute_environment is not None,
            "EKS": self.target.eks is not None,
            "a run of verify": self.job is not None,
        }
        return frozenset(name for name, holds in facts.items() if holds)

    @property
    def bucket(self) -> Bucket:
        """The deployment's bucket."""
        return Bucket(client=self.client("s3"), name=self.target.bucket)

    @property
    def release(self) -> NeuronRelease:
        """The deployment's Neuron release."""
        return find_release(self.target.neuron_release)

    @property
    def eks(self) -> EksTarget:
        """The cluster's settings; raises ``SubjectMissing`` without a cluster."""
        if self.target.eks is None:
            raise SubjectMissing("EKS")
        return self.target.eks

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster's API."""
        return Cluster(self.aws, self.eks.cluster, self.eks.namespace)

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """The compute environment of the nodes."""
        found = self.client("batch").describe_compute_environments(
            computeEnvironments=[self.target.compute_environment]
        )["computeEnvironments"]
        if not found:
            raise SubjectMissing("the compute environment")
        environment: Mapping[str, Any] = found[0]
        return environment

    @property
    def resources(self) -> Mapping[str, Any]:
        """The environment's compute resources."""
        found: Mapping[str, Any] = self.environment.get("computeResources") or {}
        return found

    @cached_property
    def node_group(self) -> Mapping[str, Any]:
        """The Trainium node group; with several zones, that of the first."""
        name = next(iter(self.eks.node_groups.values()))
        found: Mapping[str, Any] = self.client("eks").describe_nodegroup(
            clusterName=self.eks.cluster, nodegroupName=name
        )["nodegroup"]
        return found

    @cached_property
    def subnets(self) -> list[Mapping[str, Any]]:
        """The nodes' subnets."""
        ids = (
            self.resources.get("subnets")
            if self.target.compute_environment is not None
            else self.node_group.get("subnets")
        )
        if not ids:
            raise SubjectMissing("subnets of the nodes")
        return list(self.client("ec2").describe_subnets(SubnetIds=list(ids))["Subnets"])

    @cached_property
    def hosts(self) -> list[Mapping[str, Any]]:
        """The nodes' instances, newest first, including those terminated in the last hour."""
        found = list_hosts(self.client("ec2"), self.target)
        if not found:
            raise SubjectMissing("a host, running or terminated within the last hour")
        return found

    @property
    def running_hosts(self) -> list[Mapping[str, Any]]:
        """Running hosts."""
        found = [host for host in self.hosts if host["State"]["Name"] == "running"]
        if not found:
            raise SubjectMissing("a running host")
        return found

    @cached_property
    def consoles(self) -> dict[str, str]:
        """Console output of the hosts, by instance id."""
        found = {}
        for host in self.hosts:
            response = self.client("ec2").get_console_output(InstanceId=host["InstanceId"])
            # EC2 keeps 64 KB, for some types only the tail.
            if text := response.get("Output"):
                found[str(host["InstanceId"])] = str(text)
        if not found:
            raise SubjectMissing("console output of a host")
        return found

    @cached_property
    def jobs(self) -> list[Job]:
        """The newest ended jobs, with their attempts."""
        ended = [pair for pair in self.services.runs() if pair[1].ended]
        newest = sorted(ended, key=lambda pair: pair[1].created_at_ms, reverse=True)[:_NEWEST_JOBS]
        found = [service.describe(each.job_id, each.shape) for service, each in newest]
        return [job for job in found if job is not None]

    @cached_property
    def runs(self) -> list[str]:
        """Names of runs in the bucket."""
        return self.bucket.names(RUNS_PREFIX)[:_MAX_RUNS]

    @cached_property
    def statuses(self) -> dict[str, dict[str, Any]]:
        """Status of each run that has one."""
        found = {run: read_status(self.bucket, run) for run in self.runs}
        return {run: status for run, status in found.items() if status}

    def result(self, run: str, name: str) -> dict[str, Any] | None:
        """Read a document from a run's results."""
        return self.bucket.document(f"{run_prefix(run, 'results')}{name}")


def _missing(error: Exception) -> str | None:
    """Return the missing prerequisite of a probe, if an error has no bearing on its claim."""
    if is_denied(error):
        return f"permission for {getattr(error, 'operation_name', None) or 'the cluster'}"
    if isinstance(error, Refusal):
        return error.message
    return "a timely response" if is_transient(error) else None


PROBES: Probes[ClientContext] = Probes(ProbeSite.CLIENT, missing=_missing)
