"""What a Volcano job is made from: one workload, on so many nodes of one deployment."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.submit.prepared import COMPILE_TIME_LIMIT_HOURS
from jobs.submit.request import JobRequest
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.contract import ATTEMPTS
from trainium_catalogue.instances import InstanceType
from trainium_catalogue.workloads import LAUNCH_PARAMETERS

(_STOP_GRACE,) = (item for item in LAUNCH_PARAMETERS if item.name == "stop-grace-s")
MAX_RUN_CHARACTERS = 63
"""Of a label's value (Kubernetes documentation, Labels and Selectors)."""
_CLOSING_S = 30
_SPARE_S = 3600
"""To pull an image, to meet, and to end cleanly."""
_MAX_NAME_CHARACTERS = 36
"""With TorchX's suffix of up to 14 characters and ``-node-999-0`` a host name of 63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Everything that goes into the job."""

    run: str
    workload: str
    command: Sequence[str]
    num_nodes: int
    time_limit_s: int
    """Of one attempt; the launcher ends the job with it."""
    deployment: str
    region: str
    bucket: str
    neuron_release: str
    instance_type: InstanceType
    image: str
    lustre_claim: str | None
    stop_grace_s: float = 90.0
    """That the launcher gives its workers."""
    after_job: str | None = None
    """Job that compiles for this one."""
    scales: bool = False
    """Let the node scaler get the nodes that are missing."""

    @property
    def name(self) -> str:
        """The run as a name in the cluster: the job's Service begins with a letter (RFC 1035)."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.run.lower()).strip("-")
        begun = plain if plain[:1].isalpha() else f"run-{plain}"
        return begun[:_MAX_NAME_CHARACTERS].rstrip("-")

    @property
    def labels(self) -> dict[str, str]:
        """Of the job and of its pods."""
        return {
            kubernetes.LABEL_DEPLOYMENT: self.deployment,
            kubernetes.LABEL_RUN: self.run,
            kubernetes.LABEL_WORKLOAD: self.workload,
        }

    @property
    def annotations(self) -> dict[str, str]:
        """Of the job."""
        after = {kubernetes.AFTER: self.after_job} if self.after_job else {}
        return {**after, **({kubernetes.SCALE: "true"} if self.scales else {})}

    @property
    def grace_s(self) -> int:
        """When the kubelet kills a pod that was told to end: later than the launcher."""
        return math.ceil(self.stop_grace_s) + _CLOSING_S

    @property
    def deadline_s(self) -> int:
        """When the kubelet ends a pod whose launcher has not ended it.

        The kubelet counts from before the image is pulled, and while a job that compiles is waited
        for; the launcher does not.
        """
        waits_s = ATTEMPTS * COMPILE_TIME_LIMIT_HOURS * 3600 if self.after_job else 0
        return self.time_limit_s + round(waits_s) + _SPARE_S

    @property
    def environment(self) -> dict[str, str]:
        """What a job definition of Batch holds."""
        lustre = {contract.ENV_LUSTRE: contract.LUSTRE_MOUNT} if self.lustre_claim else {}
        after = {contract.ENV_AFTER_JOB: self.after_job} if self.after_job else {}
        return {
            contract.ENV_DEPLOYMENT: self.deployment,
            contract.ENV_BUCKET: self.bucket,
            contract.ENV_REGION: self.region,
            contract.ENV_INSTANCE_TYPE: self.instance_type.name,
            contract.ENV_NEURON_RELEASE: self.neuron_release,
            **lustre,
            contract.ENV_RUN: self.run,
            contract.ENV_NUM_NODES: str(self.num_nodes),
            contract.ENV_TIME_LIMIT: str(self.time_limit_s),
            **after,
        }


def launch_spec(request: JobRequest, deployment: Deployment) -> LaunchSpec:
    """The job of a request that this deployment's cluster can run."""
    assert deployment.eks is not None
    return LaunchSpec(
        run=request.run,
        workload=request.workload,
        command=request.command(),
        num_nodes=request.num_nodes,
        time_limit_s=request.time_limit_seconds,
        deployment=deployment.name,
        region=deployment.region,
        bucket=deployment.bucket,
        neuron_release=deployment.neuron_release,
        instance_type=deployment.instance_type,
        image=deployment.eks.image,
        lustre_claim=deployment.eks.lustre_claim,
        stop_grace_s=float(request.parameters.get(_STOP_GRACE.name, _STOP_GRACE.default)),
        after_job=next(iter(request.depends_on), None),
        scales=request.scales,
    )


def check_run_label(run: str) -> None:
    """Refuse a run name that cannot be a label's value."""
    if len(run) <= MAX_RUN_CHARACTERS and run[-1].isalnum():
        return
    nearest = run[:MAX_RUN_CHARACTERS].rstrip("-_")
    raise Refusal(
        "run-name",
        f"{run!r} cannot be a run on the cluster, where it is a label: it takes at most "
        f"{MAX_RUN_CHARACTERS} characters and ends with a letter or digit; {nearest!r} would do",
    )
