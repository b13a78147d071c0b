"""Findings before `cdk deploy`, from the changes and the running jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from jobs.deploy_check.account import ActiveJob, DeployedStack
from jobs.deploy_check.assembly import SynthesizedStacks, Template
from jobs.deploy_check.changes import Change, Fate, Update
from jobs.deploy_check.effects import (
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
    has_trainium_nodes,
)
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Amount, picked


class FindingKind(StrEnum):
    """Kinds of findings, most serious first."""

    REFUSED = "refused"
    """AWS would refuse the deployment."""
    LOSES_DATA = "loses-data"
    ENDS_JOBS = "ends-jobs"
    ROLLS_BACK = "rolls-back"
    """Jobs outlast CloudFormation's update timeout."""
    SPLITS_JOBS = "splits-jobs"
    """Pods of a job may run in several zones."""
    STAYS = "stays"
    """A resource is left behind and still costs money."""
    UNKNOWN = "unknown"
    """Could not be checked."""
    CONTINUES = "continues"
    """Instances are replaced, but running jobs have time to finish."""


HARMLESS = frozenset({FindingKind.CONTINUES})


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedJob:
    """A job on a changed resource."""

    run: str
    job_id: str
    status: str
    orchestrator: Orchestrator
    within_minutes: Amount
    """Minutes from the update of its resource until it is ended; 0 for immediately."""
    minutes_left: float | None
    """Minutes until its own time limit; null if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingItem:
    """A consequence of the deployment, and its remedy."""

    kind: FindingKind
    stack: str
    resource: str | None
    """Logical ID; null for a finding about the stack."""
    resource_type: str | None
    message: str
    remedy: str
    jobs: tuple[AffectedJob, ...]


StackAction = Literal["create", "update", "unchanged", "left-behind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployChange:
    """A changed resource."""

    resource: str
    """Logical ID."""
    type: str
    fate: Fate
    because: tuple[str, ...]
    """Properties that cause the fate; empty for an added or removed resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployStack:
    """A stack and its changes."""

    name: str
    action: StackAction
    changes: tuple[DeployChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployDocument:
    """Preview of a deployment's changes and their consequences."""

    deployment: str
    region: str | None
    assembly: str
    """Folder of the cloud assembly."""
    newer_source: str | None
    """A source newer than the assembly; null if it is up to date."""
    stacks: tuple[DeployStack, ...]
    """Stacks of the assembly in order, then deployed stacks not in it."""
    findings: tuple[FindingItem, ...]
    """Findings, most serious first; the exit code is 1 if any has another kind than continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """Access to the running jobs."""

    on_queues: Callable[[list[str]], list[ActiveJob]]
    """Lists the unfinished jobs of queues, given their ARNs."""
    on_cluster: Callable[[], list[ActiveJob] | None]
    """Lists the unfinished jobs on the cluster; None if it does not respond."""
    now_s: float


def find_all(
    update: Update,
    *,
    stacks: Mapping[str, DeployedStack],
    assembly: SynthesizedStacks,
    running: RunningJobs,
) -> list[FindingItem]:
    """Return all findings, most serious first."""
    found = [
        *_busy_stacks(stacks, assembly.templates),
        *_locked_exports(update, stacks, assembly),
        *_left_behind(stacks, assembly.templates),
        *_split(update, stacks, running),
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
) -> Iterator[FindingItem]:
    """Find stacks that CloudFormation cannot update in their current status."""
    for name in assembly:
        stack = stacks.get(name)
        if stack is None:
            continue
        if stack.status.endswith("_IN_PROGRESS"):
            remedy = "wait until it has finished, then check again"
        elif stack.status == "UPDATE_ROLLBACK_FAILED":
            remedy = f"run `aws cloudformation continue-update-rollback --stack-name {name}` first"
        elif stack.status == "DELETE_FAILED":
            remedy = f"run `{_destroy(name)}` first"
        else:
            continue
        message = f"the stack is {stack.status}, so CloudFormation cannot update it"
        yield _of_stack(FindingKind.REFUSED, name, message, remedy)


def _locked_exports(
    update: Update, stacks: Mapping[str, DeployedStack], assembly: SynthesizedStacks
) -> Iterator[FindingItem]:
    """Find exports in use, which cannot be removed or changed (CloudFormation User Guide)."""
    deployed = {name: stack.template for name, stack in stacks.items()}
    for stack, template in update.after.items():
        kept = _exports(template)
        for name, value in _exports(deployed[stack]).items():
            importers = _importers(deployed, name)
            if kept.get(name) == value or not importers:
                continue
            # Stacks not in the assembly do not change.
            still_importing = importers & _importers({**deployed, **update.after}, name)
            if not still_importing and assembly.dependencies[stack] >= importers:
                continue  # its importers are updated first, and no longer import it
            users = ", ".join(sorted(importers))
            change = "would change" if name in kept else "would be removed"
            if gone := sorted(importers - set(assembly.templates)):
                remedy = f"{_KEEP}; or run `{_destroy(gone[0])}` first"
            elif not still_importing:
                remedy = (
                    f"first run `cdk deploy --exclusively {users.replace(',', '')}`, because the "
                    "new templates of these stacks no longer import it; then run `cdk deploy --all`"
                )
            else:
                remedy = (
                    f"keep the setting as it was; or destroy {users} first, with the deployed -c "
                    "settings, then deploy all, which recreates their resources"
                )
            message = (
                f"export {name} {change}, which CloudFormation refuses, because it is in use by "
                f"{users}"
            )
            yield _of_stack(FindingKind.REFUSED, stack, message, remedy)


def _exports(template: Template) -> dict[str, str]:
    """Return the values of a template's exports by name."""
    return {
        output["Export"]["Name"]: json.dumps(output["Value"])
        for output in template.get("Outputs", {}).values()
        if "Export" in output
    }


def _importers(templates: Mapping[str, Template], export: str) -> set[str]:
    """Find the stacks that import an export."""
    wanted = json.dumps({"Fn::ImportValue": export})
    return {name for name, template in templates.items() if wanted in json.dumps(template)}


def _name_conflict(change: Change) -> Iterator[FindingItem]:
    """Find a replacement whose name or addresses conflict, because it is created first."""
    names = NAMED.get(change.resource_type, ())
    same = [name for name in names if name in change.properties and name not in change.changed]
    if change.fate is Fate.REPLACED and names and len(same) == len(names):
        yield _of_change(
            FindingKind.REFUSED,
            change,
            f"it is replaced ({_why(change)}), and its replacement is created first with the same "
            f"{' and '.join(same)}, which AWS refuses",
            "keep the setting as it was; or destroy its stack first, and those that depend on it, "
            "with the deployed -c settings, then deploy again",
        )


def _mixed_update(change: Change) -> Iterator[FindingItem]:
    """Find a node group that combines a new image or version with another change.

    Not allowed by the CloudFormation template reference, AWS::EKS::Nodegroup, ReleaseVersion and
    Version (aws/containers-roadmap issue 1258).
    """
    if change.resource_type != NODE_GROUP or change.fate is not Fate.UPDATED:
        return
    changed = change.changed_properties
    if changed & VERSIONS and (others := sorted(changed - VERSIONS)):
        yield _of_change(
            FindingKind.REFUSED,
            change,
            f"its image or version changes together with {', '.join(others)}, which CloudFormation "
            "refuses",
            "deploy twice: first with only the new Neuron release or Kubernetes version, then with "
            "the other settings",
        )


def _lost(change: Change) -> Iterator[FindingItem]:
    """Find a resource whose contents are lost, or that is retained outside the stack."""
    if not change.gone and change.fate is not Fate.MAYBE_REPLACED:
        return
    what = f"it is {change.fate}" if change.gone else f"it {change.fate}"
    if change.fate is not Fate.REMOVED:
        what = f"{what} ({_why(change)})"
    if change.keeps_old:
        yield _of_change(
            FindingKind.STAYS,
            change,
            f"{what}; the current one is retained with its contents outside the stack",
            "copy what you need, then delete it manually when it is no longer used",
        )
    elif meaning := STATEFUL.get(change.resource_type):
        yield _of_change(
            FindingKind.LOSES_DATA,
            change,
            f"{what}: {meaning}",
            "copy what you need first; or keep the setting as it was",
        )


def _ended(
    change: Change, stacks: Mapping[str, DeployedStack], running: RunningJobs
) -> Iterator[FindingItem]:
    """Find running or waiting jobs that a change affects."""
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
            f"{effect.what}; its running jobs are unknown",
            "check again from a machine that can reach the cluster",
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
            "wait until they have ended, or stop them; a training run submitted again under its "
            "name resumes from its newest checkpoint",
            ending,
        ),
        (
            FindingKind.ROLLS_BACK,
            f"CloudFormation allows {UPDATE_TIMEOUT_MINUTES} minutes for it, and these jobs may "
            "take longer: the stack then probably rolls back, which replaces the instances again",
            "deploy after they have ended; or stop them, deploy, and submit them again: a training "
            "run resumes from its newest checkpoint",
            slow,
        ),
        (
            FindingKind.CONTINUES,
            "these jobs keep running on their instances, up to their own time limit, and `cdk "
            "deploy` waits for them",
            "deploy after they have ended, if you can; later jobs and retries get new instances",
            [job for job in staying if job not in ending and job not in slow],
        ),
    ):
        if touched:
            affected = [_affected(job, now_s, effect.within_minutes) for job in touched]
            yield _of_change(kind, change, f"{effect.what}; {message}", remedy, affected)


def _ends(job: ActiveJob, effect: Effect, jobs: list[ActiveJob], now_s: float) -> bool:
    """Return whether the update ends a job before its own time limit."""
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
        return "these jobs end immediately"
    hours = effect.within_minutes / 60
    span = f"{hours:g} h" if hours >= 1 else f"{effect.within_minutes:g} min"
    return f"Batch ends jobs that are still running {span} later"


def _left_behind(
    stacks: Mapping[str, DeployedStack], assembly: Iterable[str]
) -> Iterator[FindingItem]:
    """Find deployed stacks that are not in the assembly."""
    for name in sorted(set(stacks) - set(assembly)):
        types = [entry["Type"] for entry in stacks[name].template.get("Resources", {}).values()]
        costly = [kind for kind in COSTLY if kind in types]
        cost = "may still cost money"
        if costly:
            cost = f"you are still billed for its {', '.join(costly)}"
        message = f"the assembly no longer has this stack: it is not deleted, and {cost}"
        remedy = f"{_KEEP}; to remove it, run `{_destroy(name)}`"
        yield _of_stack(FindingKind.STAYS, name, message, remedy)


def _split(
    update: Update, stacks: Mapping[str, DeployedStack], running: RunningJobs
) -> Iterator[FindingItem]:
    """Find jobs submitted before a second zone existed, whose pods are not pinned to a zone."""
    for name, template in update.after.items():
        before, after = (
            sum(map(has_trainium_nodes, each.get("Resources", {}).values()))
            for each in (stacks[name].template, template)
        )
        if before != 1 or after < 2 or (jobs := running.on_cluster()) == []:
            continue
        yield _of_stack(
            FindingKind.UNKNOWN if jobs is None else FindingKind.SPLITS_JOBS,
            name,
            message="nodes will be in several zones; pods of earlier jobs are not restricted to "
            "one zone, and may start in different ones"
            + ("; the jobs are unknown" if jobs is None else ""),
            remedy="wait until they have ended, or stop them and submit them again after the "
            "deployment; a training run resumes from its newest checkpoint",
            jobs=[_affected(job, running.now_s) for job in jobs or ()],
        )


_KEEP = "pass the -c settings it was deployed with (orchestrators, for example) and check again"
"""Remedy for a stack missing from the assembly: most likely a setting was forgotten."""


def _destroy(stack: str) -> str:
    # `cdk destroy` only covers the app's stacks, and a stack left behind is no longer among them.
    return f"aws cloudformation delete-stack --stack-name {stack}"


def _why(change: Change) -> str:
    return ", ".join(change.reasons) or "its type changes"


def _affected(job: ActiveJob, now_s: float, within_minutes: float = 0) -> AffectedJob:
    left_s = job.seconds_left(now_s)
    minutes_left = None if left_s is None else left_s // 60
    return picked(
        AffectedJob, job.summary, within_minutes=within_minutes, minutes_left=minutes_left
    )


def _of_stack(
    kind: FindingKind, stack: str, message: str, remedy: str, jobs: Iterable[AffectedJob] = ()
) -> FindingItem:
    return FindingItem(
        kind=kind,
        stack=stack,
        resource=None,
        resource_type=None,
        message=message,
        remedy=remedy,
        jobs=tuple(jobs),
    )


def _of_change(
    kind: FindingKind, change: Change, message: str, remedy: str, jobs: Iterable[AffectedJob] = ()
) -> FindingItem:
    found = _of_stack(kind, change.stack, message, remedy, jobs)
    return replace(found, resource=change.logical_id, resource_type=change.resource_type)
