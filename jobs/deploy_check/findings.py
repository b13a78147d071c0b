"""Findings to read before `cdk deploy`, from what changes and what is running."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from jobs.deploy_check.account import ActiveJob, DeployedStack
from jobs.deploy_check.assembly import SynthesizedStacks, Template
from jobs.deploy_check.changes import Change, Fate, Update
from jobs.deploy_check.meaning import (
    COSTLY,
    ENVIRONMENT,
    NAMED,
    NODE_GROUP,
    QUEUE,
    STATEFUL,
    UPDATE_TIMEOUT_MINUTES,
    VERSIONS,
    Effect,
    effect_of,
)
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Amount


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
class DeployFinding:
    """One thing to know, and what to do about it."""

    kind: FindingKind
    stack: str
    message: str
    remedy: str
    change: Change | None = None
    """None if it is about the stack."""
    jobs: tuple[ActiveJob, ...] = ()
    within_minutes: float = 0
    """Minutes until the jobs are ended, counted from the update of their resource; 0: at once."""


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
class FindingItem:
    """One thing to know, and what to do about it."""

    kind: FindingKind
    stack: str
    resource: str | None
    """Logical id; null where it is about the stack."""
    resource_type: str | None
    message: str
    remedy: str
    jobs: tuple[TouchedJob, ...]


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
    findings: tuple[FindingItem, ...]
    """Most serious first; the exit code is 1 where one is of another kind than goes-on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Sources of the running jobs."""

    on_queues: Callable[[list[str]], list[ActiveJob]]
    """Unfinished jobs of Batch's queues, by their ARNs."""
    on_cluster: Callable[[], list[ActiveJob] | None]
    """Unfinished jobs on the cluster; None if it does not answer."""
    now_s: float


def find_all(
    update: Update,
    *,
    stacks: Mapping[str, DeployedStack],
    assembly: SynthesizedStacks,
    running: Running,
) -> list[DeployFinding]:
    """Find everything, most serious first."""
    found = [
        *_busy_stacks(stacks, assembly.templates),
        *_locked_exports(update, stacks, assembly),
        *_left_behind(stacks, assembly.templates),
    ]
    for change in update.changes:
        found += [
            *_name_conflict(change),
            *_mixed_update(change),
            *_lost(change),
            *_ended(change, stacks, running),
        ]
    order = list(FindingKind)
    return sorted(found, key=lambda finding: order.index(finding.kind))


def _busy_stacks(
    stacks: Mapping[str, DeployedStack], assembly: Iterable[str]
) -> Iterator[DeployFinding]:
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
        yield DeployFinding(kind=FindingKind.REFUSED, stack=name, message=message, remedy=remedy)


def _locked_exports(
    update: Update, stacks: Mapping[str, DeployedStack], assembly: SynthesizedStacks
) -> Iterator[DeployFinding]:
    """Find exports in use, which cannot be removed or changed (CloudFormation User Guide)."""
    deployed = {name: stack.template for name, stack in stacks.items()}
    for stack, template in update.after.items():
        kept = _exports(template)
        for name, value in _exports(deployed[stack]).items():
            importers = _importers(deployed, name)
            if kept.get(name) == value or not importers:
                continue
            # Stacks missing from the assembly stay as they are.
            still = importers & _importers({**deployed, **update.after}, name)
            if not still and assembly.before[stack] >= importers:
                continue  # its importers are updated first and drop it
            users = ", ".join(sorted(importers))
            done = "would get another value" if name in kept else "would be removed"
            if gone := sorted(importers - set(assembly.templates)):
                remedy = f"{_KEEP}; or first: {_destroy(gone[0])}"
            elif not still:
                remedy = (
                    f"first: `cdk deploy --exclusively {users.replace(',', '')}`, whose new "
                    "templates do not import it; then deploy all"
                )
            else:
                remedy = (
                    f"leave the setting as it was; or destroy {users} first, with the -c settings "
                    "that were deployed, then deploy all: what is in them ends and comes back"
                )
            message = f"export {name} {done}, which CloudFormation refuses: in use by {users}"
            yield DeployFinding(
                kind=FindingKind.REFUSED, stack=stack, message=message, remedy=remedy
            )


def _exports(template: Template) -> dict[str, str]:
    """Collect the values of a template's exports by name."""
    return {
        output["Export"]["Name"]: json.dumps(output["Value"])
        for output in template.get("Outputs", {}).values()
        if "Export" in output
    }


def _importers(templates: Mapping[str, Template], export: str) -> set[str]:
    """Find the stacks that import an export."""
    wanted = json.dumps({"Fn::ImportValue": export})
    return {name for name, template in templates.items() if wanted in json.dumps(template)}


def _name_conflict(change: Change) -> Iterator[DeployFinding]:
    """Find a replacement that clashes with the old name or addresses: the new one is made first."""
    names = NAMED.get(change.resource_type, ())
    same = [name for name in names if name in change.properties and name not in change.changed]
    if change.fate is Fate.REPLACED and names and len(same) == len(names):
        yield _of_change(
            FindingKind.REFUSED,
            change,
            f"it is replaced ({_why(change)}), the new one is made first, and it would have the "
            f"{' and '.join(same)} of the old one: AWS refuses that",
            "leave the setting as it was; or destroy its stack first, and those that need it, with "
            "the -c settings that were deployed, then deploy again",
        )


def _mixed_update(change: Change) -> Iterator[DeployFinding]:
    """Find a node group that would get a new image or version along with another change.

    CloudFormation template reference, AWS::EKS::Nodegroup, ReleaseVersion and Version: no other
    property at the same time (aws/containers-roadmap issue 1258).
    """
    if change.resource_type != NODE_GROUP or change.fate is not Fate.UPDATED:
        return
    changed = change.changed_properties
    if changed & VERSIONS and (others := sorted(changed - VERSIONS)):
        yield _of_change(
            FindingKind.REFUSED,
            change,
            f"it gets another image or version together with {', '.join(others)}: "
            "CloudFormation refuses to combine them",
            "deploy twice: first with the new Neuron release or Kubernetes version alone, then "
            "with the other settings",
        )


def _lost(change: Change) -> Iterator[DeployFinding]:
    """Find a resource whose contents are lost, or that is left outside the stack."""
    if not change.gone and change.fate is not Fate.MAYBE_REPLACED:
        return
    what = f"it is {change.fate}"
    if change.fate is not Fate.REMOVED:
        what = f"{what} ({_why(change)})"
    if change.keeps_old:
        yield _of_change(
            FindingKind.STAYS,
            change,
            f"{what}; the one of today stays, with what is in it, outside of the stack",
            "copy what is needed, then delete it by hand when it is no longer used",
        )
    elif meaning := STATEFUL.get(change.resource_type):
        yield _of_change(
            FindingKind.LOSES_DATA,
            change,
            f"{what}: {meaning}",
            "copy what you need first; or leave the setting as it was",
        )


def _ended(
    change: Change, stacks: Mapping[str, DeployedStack], running: Running
) -> Iterator[DeployFinding]:
    """Find running or waiting jobs on what changes."""
    effect = effect_of(change)
    if effect is None:
        return
    if change.resource_type == ENVIRONMENT:
        # Each environment has the queues of its own stack.
        jobs: list[ActiveJob] | None = running.on_queues(
            stacks[change.stack].physical_ids_of(QUEUE)
        )
    elif change.resource_type == QUEUE:
        arn = stacks[change.stack].physical_ids.get(change.logical_id)
        jobs = running.on_queues([arn]) if arn else []
    else:
        jobs = running.on_cluster()
    if jobs is None:
        yield _of_change(
            FindingKind.UNKNOWN,
            change,
            f"{effect.what}; which jobs run there is not known",
            "check again from where the cluster answers",
        )
        return
    now_s = running.now_s
    ending = [job for job in jobs if _ends(job, effect, jobs, now_s)]
    staying = [job for job in jobs if job.on_hosts and effect.within_minutes]
    slow = [
        job
        for job in staying
        if effect.within_minutes > UPDATE_TIMEOUT_MINUTES
        and _outlasts(job, UPDATE_TIMEOUT_MINUTES, now_s)
    ]
    for kind, message, remedy, touched in (
        (
            FindingKind.ENDS_JOBS,
            _when(effect),
            "wait until they have ended, or stop them; a training run that is submitted again "
            "under its name continues from its newest checkpoint",
            ending,
        ),
        (
            FindingKind.ROLLS_BACK,
            f"CloudFormation gives that {UPDATE_TIMEOUT_MINUTES} minutes, and these jobs may take "
            "longer: the stack then probably rolls back, which replaces the instances once more",
            "deploy when they have ended; or stop them, deploy, and submit them again: a training "
            "run continues from its newest checkpoint",
            slow,
        ),
        (
            FindingKind.GOES_ON,
            "these jobs go on where they are, until their own time limit at most, and `cdk deploy` "
            "waits for them",
            "deploy once they have ended, if you can; what starts later, another attempt too, "
            "gets new instances",
            [job for job in staying if job not in ending and job not in slow],
        ),
    ):
        if touched:
            yield DeployFinding(
                kind=kind,
                stack=change.stack,
                message=f"{effect.what}; {message}",
                remedy=remedy,
                change=change,
                jobs=tuple(touched),
                within_minutes=effect.within_minutes,
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


def _when(effect: Effect) -> str:
    if effect.within_minutes == 0:
        return "these jobs end at once"
    hours = effect.within_minutes / 60
    span = f"{hours:g} hours" if hours >= 1 else f"{effect.within_minutes:g} minutes"
    return f"of what runs now Batch ends {span} later what is still there"


def _left_behind(
    stacks: Mapping[str, DeployedStack], assembly: Iterable[str]
) -> Iterator[DeployFinding]:
    """Find stacks that no `cdk deploy` of this assembly touches."""
    for name in sorted(set(stacks) - set(assembly)):
        types = [entry["Type"] for entry in stacks[name].template.get("Resources", {}).values()]
        costly = [kind for kind in COSTLY if kind in types]
        has = f" ({', '.join(costly)})" if costly else ""
        message = f"the assembly no longer has this stack: it stays, and what it has{has} costs"
        yield DeployFinding(
            kind=FindingKind.STAYS,
            stack=name,
            message=message,
            remedy=f"{_KEEP}; to remove it: {_destroy(name)}",
        )


_KEEP = "give the -c settings that it was deployed with (orchestrators, say) and check again"
"""Remedy for a stack that the assembly lacks: most likely a setting was forgotten."""


def _destroy(stack: str) -> str:
    # `cdk destroy` only knows the stacks of the app, which no longer has this one.
    return f"aws cloudformation delete-stack --stack-name {stack}"


def _why(change: Change) -> str:
    return ", ".join(change.reasons) or "another type"


def _of_change(kind: FindingKind, change: Change, message: str, remedy: str) -> DeployFinding:
    return DeployFinding(
        kind=kind, stack=change.stack, message=message, remedy=remedy, change=change
    )
