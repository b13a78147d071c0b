"""What runs a submission: Batch or the cluster."""

from __future__ import annotations

from jobs.deployment import Deployment
from jobs.errors import Refusal
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware, Workload


def chosen_orchestrator(
    deployment: Deployment, workload: Workload, asked: Orchestrator | None
) -> Orchestrator:
    """What runs the workload: --on, or the only one there is, or Batch."""
    if workload.hardware is Hardware.CPU:
        if asked is Orchestrator.EKS:
            raise Refusal(
                "not-on-eks",
                f"--on eks: {workload.name} runs on ordinary CPU instances, which Batch starts on "
                "every deployment; leave --on out",
            )
        return Orchestrator.BATCH
    there = deployment.orchestrators
    if asked is None:
        # Of two, Batch; one whose stack was destroyed is refused only where nothing else is left.
        candidates = deployment.usable or there
        asked = Orchestrator.BATCH if Orchestrator.BATCH in candidates else candidates[0]
    if asked not in there:
        both = ",".join(sorted({*there, asked}))
        raise Refusal(
            "not-deployed",
            f"--on {asked}: deployment {deployment.name!r} has {' and '.join(there)} only; submit "
            f"with --on {there[0]}, or deploy again with "
            f"`{deployment.redeploy_command(orchestrators=both)}` and the other -c settings it was "
            "deployed with",
        )
    if asked in deployment.unusable:
        raise deployment.unusable[asked]
    return asked
