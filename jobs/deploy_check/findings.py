"""Findings to read before `cdk deploy`, from what changes and what is running."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from jobs.deploy_check.account import ActiveJob, BatchJobs, Stack
from jobs.deploy_check.assembly import Assembly
from jobs.deploy_check.changes import Change, Fate, Update
from jobs.deploy_check.effects import (
    CLUSTER,
    ENVIRONMENT,
    NODE_GROUP,
    QUEUE,
    UPDATE_TIMEOUT_MINUTES,
    Effect,
    effect_on_cluster,
    effect_on_environment,
    effect_on_node_group,
    effect_on_queue,
    mixed_with_version,
)
from jobs.deploy_check.replacements import Replacements
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Amount

STATEFUL: Mapping[str, str] = {
    "AWS::FSx::FileSystem": "what is on it is lost: what was imported from the bucket is imported "
    "again, the rest is not; runs that read or write it fail",
    "AWS::S3::Bucket": "datasets, checkpoints, caches and results are in it",
    "AWS::ECR::Repository": "its images are gone; `cdk deploy` pushes today's again, and jobs that "
    "wait with another one cannot start",
    "AWS::EKS::Cluster": "every job, volume claim and object in it is gone",
    "AWS::Logs::LogGroup": "the log lines in it are gone",
}
"""Types whose contents cannot be restored, and what losing them means."""

COSTLY = (
    "AWS::EKS::Cluster",
    "AWS::EKS::Nodegroup",
    "AWS::FSx::FileSystem",
    "AWS::EC2::NatGateway",
    "AWS::EC2::VPCEndpoint",
    "AWS::S3::Bucket",
    "AWS::ECR::Repository",
)
"""Types that are billed while they exist."""


class FindingKind(StrEnum):
    """Kinds of findings, most serious first."""

    REFUSED = "refused"
    """The deployment would fail, because AWS refuses it."""
    LOSES_DATA = "loses-data"
    ENDS_JOBS = "ends-jobs"
    ROLLS_BACK = "rolls-back"
    """Jobs outlast CloudFormation's time for the update."""
    STAYS = "stays"
    """Something is left behind and keeps costing money."""
    UNKNOWN = "unknown"
    """Could not be checked."""
    GOES_ON = "goes-on"
    """Instances are replaced under running jobs, which have time to end by themselves."""


HARMLESS = frozenset({FindingKind.GOES_ON})


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedJob:
    """A job on a resource that the deployment changes."""

    run: str
    job_id: str
    status: str
    orchestrator: Orchestrator
    within_minutes: Amount
    """Minutes until it is ended, counted from the update of its resource; 0: at once."""
    minutes_left: float | None
    """Minutes until its own time limit; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployFinding:
    """One thing to know, and what to do about it."""

    kind: FindingKind
    stack: str
    resource: str | None
    """Logical id; null where it is about the stack."""
    resource_type: str | None
    message: str
    remedy: str
    jobs: tuple[TouchedJob, ...] = ()


StackAction = Literal["create", "update", "unchanged", "left-behind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployChange:
    """One resource that changes."""

    resource: str
    """Logical id."""
    type: str
    fate: Fate
    because: tuple[str, ...]
    """Properties that decide; empty where the resource comes or goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployStack:
    """One stack and its changes."""

    name: str
    action: StackAction
    changes: tuple[DeployChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployDocument:
    """What a deployment would change, and what to know before."""

    deployment: str
    region: str | None
    assembly: str
    """Folder of the cloud assembly."""
    newer_source: str | None
    """A source that was changed after the assembly was made; null where it is up to date."""
    stacks: tuple[DeployStack, ...]
    """Those of the assembly in its order, then deployed ones that it lacks."""
    findings: tuple[DeployFinding, ...]
    """Most serious first; the exit code is 1 where one is of another kind than goes-on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Sources of the running jobs."""

    batch: BatchJobs
    cluster: Callable[[], list[ActiveJob] | None]
    """Unfinished jobs on the cluster; None if it does not answer."""
    now_s: float


def find_all(
    update: Update,
    *,
    stacks: Mapping[str, Stack],
    assembly: Assembly,
    running: Running,
    replacements: Replacements,
) -> list[DeployFinding]:
    """Find everything, most serious first."""
    changes = update.changes()
    found = [
        *_busy_stacks(stacks, assembly.templates),
        *_locked_exports(update, assembly),
        *_name_conflicts(changes, replacements),
        *_mixed_updates(changes),
        *_lost(changes),
        *_ended(changes, stacks, running),
        *_left_behind(stacks, assembly.templates),
    ]
    order = list(FindingKind)
    return sorted(found, key=lambda finding: order.index(finding.kind))


def _busy_stacks(stacks: Mapping[str, Stack], assembly: Iterable[str]) -> Iterator[DeployFinding]:
    """Find stacks that CloudFormation cannot update in their present state."""
    for name in assembly:
        stack = stacks.get(name)
        if stack is None:
            continue
        if stack.status.endswith("_IN_PROGRESS"):
            remedy = "wait until that has ended, then check again"
        elif stack.status == "UPDATE_ROLLBACK_FAILED":
            remedy = f"first: aws cloudformation continue-update-rollback --stack-name {name}"
        elif stack.status == "DELETE_FAILED":
            remedy = f"first: {_destroy(name)}"
        else:
            continue
        message = f"it is {stack.status}, and CloudFormation takes no other update meanwhile"
        yield _of_stack(FindingKind.REFUSED, name, message, remedy)


def _locked_exports(update: Update, assembly: Assembly) -> Iterator[DeployFinding]:
    """Find exports in use, which cannot be removed or changed (CloudFormation User Guide)."""
    for export in update.exports():
        if not export.still_imported and assembly.before[export.stack] >= set(export.importers):
            continue  # its importers are updated first and drop it
        users = ", ".join(export.importers)
        done = "would be removed" if export.removed else "would get another value"
        gone = [name for name in export.importers if name not in assembly.templates]
        if gone:
            remedy = f"{_KEEP}; or first: {_destroy(gone[0])}"
        elif not export.still_imported:
            remedy = (
                f"first: `cdk deploy --exclusively {' '.join(export.importers)}`, whose new "
                "templates do not import it; then deploy all"
            )
        else:
            remedy = (
                f"leave the setting as it was; or destroy {users} first, with the -c settings that "
                "were deployed, then deploy all: what is in them ends and comes back"
            )
        message = f"export {export.name} {done}, which CloudFormation refuses: in use by {users}"
        yield _of_stack(FindingKind.REFUSED, export.stack, message, remedy)


def _name_conflicts(changes: list[Change], replacements: Replacements) -> Iterator[DeployFinding]:
    """Find replacements that clash with the old name or addresses: the new resource comes first."""
    for change in changes:
        if change.fate is not Fate.REPLACED:
            continue
        names = replacements.names(change.resource_type)
        if change.resource_type == "AWS::EC2::Subnet":
            # EC2 refuses a subnet whose range overlaps another's (API, CreateSubnet).
            names = ("VpcId", "CidrBlock")
        given = change.new.get("Properties", {})
        same = [name for name in names if name in given and (name,) not in change.paths]
        if not names or len(same) != len(names):
            continue
        yield _of_change(
            FindingKind.REFUSED,
            change,
            f"it is replaced ({_why(change)}), the new one is made first, and it would have the "
            f"{' and '.join(same)} of the old one: AWS refuses that",
            "leave the setting as it was; or destroy its stack first, and those that need it, with "
            "the -c settings that were deployed, then deploy again",
        )


def _mixed_updates(changes: list[Change]) -> Iterator[DeployFinding]:
    """Find node groups that would get a new image or version along with another change."""
    for change in changes:
        if others := mixed_with_version(change):
            yield _of_change(
                FindingKind.REFUSED,
                change,
                f"it gets another image or version together with {', '.join(others)}: "
                "CloudFormation refuses to combine them",
                "deploy twice: first with the new Neuron release or Kubernetes version alone, then "
                "with the other settings",
            )


def _lost(changes: list[Change]) -> Iterator[DeployFinding]:
    """Find resources whose contents are lost, or that are left outside the stack."""
    for change in changes:
        if change.fate not in (Fate.REPLACED, Fate.MAYBE_REPLACED, Fate.REMOVED):
            continue
        why = "" if change.fate is Fate.REMOVED else f" ({_why(change)})"
        meaning = STATEFUL.get(change.resource_type)
        if change.keeps_old:
            yield _of_change(
                FindingKind.STAYS,
                change,
                f"it is {change.fate}{why}; the one of today stays, with what is in it, outside of "
                "the stack",
                "copy what is needed, then delete it by hand when nobody uses it",
            )
        elif meaning is not None:
            yield _of_change(
                FindingKind.LOSES_DATA,
                change,
                f"it is {change.fate}{why}: {meaning}",
                "copy what you need first; or leave the setting as it was",
            )


def _ended(
    changes: list[Change], stacks: Mapping[str, Stack], running: Running
) -> Iterator[DeployFinding]:
    """Find running or waiting jobs on what changes."""
    for change in changes:
        physical = stacks[change.stack].physical_ids.get(change.logical_id, "")
        effect, jobs = None, None
        if change.resource_type == ENVIRONMENT and (effect := effect_on_environment(change)):
            jobs = running.batch.of_environment(physical)
        elif change.resource_type == QUEUE and (effect := effect_on_queue(change)):
            jobs = running.batch.of_queue(physical)
        elif (change.resource_type == NODE_GROUP and (effect := effect_on_node_group(change))) or (
            change.resource_type == CLUSTER and (effect := effect_on_cluster(change))
        ):
            jobs = running.cluster()
            if jobs is None:
                yield _of_change(
                    FindingKind.UNKNOWN,
                    change,
                    f"{effect.what}; which jobs run there is not known",
                    "check again from where the cluster answers",
                )
        if effect is None or not jobs:
            continue
        ending = [job for job in jobs if _ends(job, effect, jobs, running.now_s)]
        if ending:
            yield _of_change(
                FindingKind.ENDS_JOBS,
                change,
                f"{effect.what}; {_when(effect)}",
                "wait until they have ended, or stop them; a training run that is submitted again "
                "under its name continues from its newest checkpoint",
                jobs=_touched(ending, effect, running.now_s),
            )
        staying = [job for job in jobs if job.on_hosts and effect.within_minutes]
        slow = [job for job in staying if _outlasts(job, UPDATE_TIMEOUT_MINUTES, running.now_s)]
        if slow and effect.within_minutes > UPDATE_TIMEOUT_MINUTES:
            yield _of_change(
                FindingKind.ROLLS_BACK,
                change,
                f"{effect.what}; CloudFormation gives that {UPDATE_TIMEOUT_MINUTES} minutes, and "
                "these jobs may take longer: the stack then probably rolls back, which replaces "
                "the instances once more",
                "deploy when they have ended; or stop them, deploy, and submit them again: a "
                "training run continues from its newest checkpoint",
                jobs=_touched(slow, effect, running.now_s),
            )
        going_on = [job for job in staying if job not in ending and job not in slow]
        if going_on:
            yield _of_change(
                FindingKind.GOES_ON,
                change,
                f"{effect.what}; these jobs go on where they are, until their own time limit at "
                "most, and `cdk deploy` waits for them",
                "deploy once they have ended, if you can; what starts later, another attempt too, "
                "gets new instances",
                jobs=_touched(going_on, effect, running.now_s),
            )


def _ends(job: ActiveJob, effect: Effect, jobs: list[ActiveJob], now_s: float) -> bool:
    """Tell whether a job is ended before it would end by itself."""
    if not job.on_hosts:
        return effect.waiting_too
    if effect.size is not None:
        return effect.size < sum(item.summary.num_nodes or 0 for item in jobs if item.on_hosts)
    return _outlasts(job, effect.within_minutes, now_s)


def _outlasts(job: ActiveJob, minutes: float, now_s: float) -> bool:
    left_s = job.seconds_left(now_s)
    return left_s is None or left_s > minutes * 60


def _touched(jobs: list[ActiveJob], effect: Effect, now_s: float) -> tuple[TouchedJob, ...]:
    return tuple(
        TouchedJob(
            run=job.summary.run,
            job_id=job.summary.job_id,
            status=job.summary.status,
            orchestrator=job.summary.orchestrator,
            within_minutes=effect.within_minutes,
            minutes_left=None if (left_s := job.seconds_left(now_s)) is None else left_s // 60,
        )
        for job in jobs
    )


def _when(effect: Effect) -> str:
    if effect.within_minutes == 0:
        return "these jobs end at once"
    hours = effect.within_minutes / 60
    span = f"{hours:g} hours" if hours >= 1 else f"{effect.within_minutes:g} minutes"
    return f"of what runs now Batch ends {span} later what is still there"


def _left_behind(stacks: Mapping[str, Stack], assembly: Iterable[str]) -> Iterator[DeployFinding]:
    """Find stacks that no `cdk deploy` of this assembly touches."""
    for name in sorted(set(stacks) - set(assembly)):
        types = [entry["Type"] for entry in stacks[name].template.get("Resources", {}).values()]
        costly = [kind for kind in COSTLY if kind in types]
        has = f" ({', '.join(costly)})" if costly else ""
        message = f"the assembly no longer has this stack: it stays, and what it has{has} costs"
        yield _of_stack(
            FindingKind.STAYS, name, message, f"{_KEEP}; to remove it: {_destroy(name)}"
        )


_KEEP = "give the -c settings that it was deployed with (orchestrators, say) and check again"
"""Remedy for a stack that the assembly lacks: most likely a setting was forgotten."""


def _destroy(stack: str) -> str:
    # `cdk destroy` only knows the stacks of the app, which no longer has this one.
    return f"aws cloudformation delete-stack --stack-name {stack}"


def _why(change: Change) -> str:
    return ", ".join(change.reasons) or "another type"


def _of_stack(kind: FindingKind, stack: str, message: str, remedy: str) -> DeployFinding:
    return DeployFinding(
        kind=kind, stack=stack, resource=None, resource_type=None, message=message, remedy=remedy
    )


def _of_change(
    kind: FindingKind,
    change: Change,
    message: str,
    remedy: str,
    *,
    jobs: tuple[TouchedJob, ...] = (),
) -> DeployFinding:
    return DeployFinding(
        kind=kind,
        stack=change.stack,
        resource=change.logical_id,
        resource_type=change.resource_type,
        message=message,
        remedy=remedy,
        jobs=jobs,
    )
