"""Explain why a job waits if Batch gives no reason, from its queue and compute environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.aws import BatchClient
from jobs.capacity import TRAINIUM
from jobs.deployment import Deployment
from jobs.job import Explanation, Job, JobKind


def why_waiting(batch: BatchClient, deployment: Deployment, job: Job) -> Explanation:
    """Explain the first problem found, or else name the most common ones."""
    on_cpu = job.shape.kind is not JobKind.NODES
    queues = batch.describe_job_queues(jobQueues=[job.job_queue])["jobQueues"]
    environment_names: list[str] = []
    for queue in queues:
        if queue.get("state") != "ENABLED" or queue.get("status") == "INVALID":
            return _explain_unusable("job queue", queue)
        environment_names += [
            item["computeEnvironment"] for item in queue.get("computeEnvironmentOrder", ())
        ]
    environments = batch.describe_compute_environments(computeEnvironments=environment_names)[
        "computeEnvironments"
    ]
    for environment in environments:
        if environment.get("state") != "ENABLED" or environment.get("status") == "INVALID":
            return _explain_unusable("compute environment", environment)
    if on_cpu:
        return Explanation(
            meaning="queue and compute environment are healthy; an instance takes minutes to start",
            remedy=(
                "if this persists, there may be no Spot capacity for the deployment's "
                "cpu_instance_types (deploy with more of them, or without Spot), or the account's "
                "quota of standard instances is exhausted"
            ),
        )
    return _explain_multi_node(deployment, job, environments)


def waits_for(batch: BatchClient, job: Job) -> Explanation | None:
    """Name the jobs that must succeed before this one starts, and their states."""
    described = batch.describe_jobs(jobs=list(job.depends_on))["jobs"]
    if not described:
        return None
    waiting = [f"run {item['jobName']} ({item['status']})" for item in described]
    runs = " and ".join(f"`python -m jobs logs {item['jobName']} --follow`" for item in described)
    return Explanation(
        meaning=f"the job waits for {' and '.join(waiting)} to succeed",
        remedy=f"follow with {runs}",
    )


def _explain_multi_node(
    deployment: Deployment, job: Job, environments: Sequence[Mapping[str, Any]]
) -> Explanation:
    vcpus = deployment.instance_type.vcpus_for(job.num_nodes)
    for environment in environments:
        most = environment.get("computeResources", {}).get("maxvCpus")
        if most is not None and most < vcpus:
            return Explanation(
                meaning=f"the job needs {vcpus} vCPUs; the compute environment allows only {most}",
                remedy=f"deploy again: {deployment.redeploy(max_nodes=job.num_nodes)}",
            )
    return Explanation(
        meaning="queue and compute environment are healthy; hosts take 5 to 10 minutes to start",
        remedy=(
            f"if this persists, check that the account's vCPU quota for {TRAINIUM.name} "
            f"({TRAINIUM.code}) covers {vcpus}, that no other jobs are ahead in the queue, and "
            "the activity of the Auto Scaling group that Batch created; a host that does not "
            "become ready shuts down after five minutes and is replaced, and its console output "
            "shows why (`aws ec2 get-console-output --latest --instance-id ...`); such hosts are "
            f"billed as long as the job waits: stop it with `python -m jobs stop {job.run}`"
        ),
    )


def _explain_unusable(what: str, item: Mapping[str, Any]) -> Explanation:
    reason = item.get("statusReason") or "no reason given"
    remedy = "enable it or deploy again with `cdk deploy --all`"
    if "none of the instances joined" in reason:  # user guide, INVALID compute environment
        remedy = (
            "Batch has terminated the hosts; read the console output of one (`aws ec2 "
            "get-console-output --latest --instance-id ...`, lines with 'trainium:'; available for "
            "about an hour), fix the problem and deploy again; if the environment stays INVALID, "
            "disable and enable it (`aws batch update-compute-environment`)"
        )
    return Explanation(
        meaning=f"the {what} is {item.get('state')} and {item.get('status')}: {reason}",
        remedy=remedy,
    )
