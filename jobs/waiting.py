"""Why a job waits although Batch says nothing: a look at its queue and compute environment."""

from __future__ import annotations

from jobs.aws import BatchClient
from jobs.deployment import Deployment
from jobs.explain import Explanation
from jobs.runs import Job


def why_waiting(batch: BatchClient, deployment: Deployment, job: Job) -> Explanation:
    """Return the first thing that is wrong, or what usually is."""
    queues = batch.describe_job_queues(jobQueues=[deployment.job_queue])["jobQueues"]
    for queue in queues:
        if queue.get("state") != "ENABLED" or queue.get("status") == "INVALID":
            return _broken("job queue", queue)
    environments = batch.describe_compute_environments(
        computeEnvironments=[deployment.compute_environment]
    )["computeEnvironments"]
    vcpus = deployment.instance_type.vcpus_for(job.num_nodes)
    for environment in environments:
        if environment.get("state") != "ENABLED" or environment.get("status") == "INVALID":
            return _broken("compute environment", environment)
        most = environment.get("computeResources", {}).get("maxvCpus")
        if most is not None and most < vcpus:
            return Explanation(
                pattern="",
                meaning=f"the job needs {vcpus} vCPUs, the compute environment may have {most}",
                remedy=f"deploy again: {deployment.redeploy_command(max_nodes=job.num_nodes)}",
            )
    return Explanation(
        pattern="",
        meaning="queue and compute environment are in order; hosts take 5 to 10 minutes to start",
        remedy=(
            f"if it lasts, check that the account's vCPU quota for running On-Demand Trn "
            f"instances (L-2C3B7624) covers {vcpus}, that earlier jobs of the queue are not ahead, "
            "and the activity of the Auto Scaling group that Batch made"
        ),
    )


def _broken(what: str, item: dict[str, str]) -> Explanation:
    reason = item.get("statusReason") or "no reason given"
    return Explanation(
        pattern="",
        meaning=f"the {what} is {item.get('state')} and {item.get('status')}: {reason}",
        remedy="enable it or deploy again with `cdk deploy --all`",
    )
