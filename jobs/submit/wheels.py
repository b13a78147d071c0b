"""The dependencies of a program on the way to its job: the wheels that are there or are collected.

On Batch the program's job depends on the one that collects them. A job of the cluster cannot wait
for one of Batch, and on its nodes it must not: they cost while they wait. So for the cluster this
command waits, and submits the program's job when the wheels are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.aws import BatchClient
from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import JobRequest
from jobs.orchestrators import JobService
from jobs.program.requirements import Requirements
from trainium_catalogue import contract

_RUN_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """The wheels that a program's requirements mean in the deployment's image."""

    key: str
    requirements: Requirements
    request: JobRequest
    """The job that collects them."""
    service: JobService
    """Batch, whatever runs the program."""
    are_collected: bool = False

    @property
    def line(self) -> str:
        """Say for the plan what there is to do."""
        packages = self.requirements.count
        what = f"dependencies: {packages} required" if packages != 1 else "dependencies: 1 required"
        if self.are_collected:
            return f"{what}, collected already"
        return (
            f"{what}; first, as run {self.request.run}: collect them on one ordinary CPU instance, "
            f"at most {self.request.time_limit_hours:g} h; the program starts when that has "
            "succeeded"
        )


def wheels_run(key: str) -> str:
    """Name the run that collects the wheels of a key."""
    return f"wheels-{key[:_RUN_LENGTH]}"


def image_of(batch: BatchClient, target: Deployment) -> str:
    """Read the image in which the deployment collects wheels, and runs its programs."""
    definition = target.job_definition
    found = batch.describe_job_definitions(jobDefinitions=[definition])["jobDefinitions"]
    if not found:
        raise Refusal(
            "no-job-definition",
            f"Batch does not know {definition} (any more); deploy again with {target.redeploy()}",
        )
    image = str(found[0]["containerProperties"]["image"])
    if target.eks is not None and target.eks.image != image:
        raise Refusal(
            "two-images",
            f"the cluster's jobs run {target.eks.image}, and wheels are collected in {image}: the "
            f"deployment is between two versions; deploy again with {target.redeploy()}",
        )
    return image


def are_collected(bucket: Bucket, key: str) -> bool:
    """Tell whether the wheels of a key are in the bucket."""
    return bucket.head(f"{contract.wheels_prefix(key)}{contract.WHEELS_MARKER}") is not None


def keep_requirements(bucket: Bucket, run: str, wheels: Wheels) -> None:
    """Put the text where the job that collects wheels looks for it."""
    text = wheels.requirements.text.encode()
    bucket.write(contract.requirements_key(run, wheels.key), text)
