"""The decisions of a reconciliation, from its observations.

State is kept in annotations on nodes and jobs, so that a restarted process resumes, and users can
read it. State without an object to annotate, such as an instance that has not joined, is kept in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from node_scaler.model import (
    IN_SERVICE,
    Answer,
    Discard,
    Group,
    Json,
    Mark,
    NodesInService,
    Note,
    Observation,
    Rules,
    ScaleDown,
    ScaleUp,
    ScalingStep,
    name_of,
)
from node_scaler.scale_in import (
    clear_marks,
    is_cordoned_by_others,
    num_missing,
    removal_key,
    scale_in_steps,
    with_unfit,
)
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import (
    MAX_FAILED_NODES,
    UNFIT,
    NodeRequest,
    PodsOfNode,
    WaitingJob,
    created_at,
    instance_of,
    is_unfit,
    marked_since,
    pods_of_nodes,
    stamp,
    unfit_nodes,
    waiting_jobs,
    why_unusable,
)

_TERMINATION_TIMEOUT = timedelta(minutes=10)
"""Time after a termination request at which an instance that still exists is terminated again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """Steps in order, and a summary of the group's state."""

    steps: tuple[ScalingStep, ...]
    summary: str
    surplus: int
    """Number of pending instances that no job or user needs."""
    nodes: NodesInService
    num_needed: int
    """Number of nodes reserved for waiting jobs, at the end of ``nodes.free``."""
    short: frozenset[str]
    """Jobs for which EC2 has not launched all requested nodes."""
    at_maximum: bool
    """True if nodes are not added for a job because all zones together are at their maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """A new node or instance that did not become usable in time."""

    since: datetime
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """Nodes granted to a waiting job."""

    wait: WaitingJob
    held: int
    """Number of idle nodes held for it."""
    adds_nodes: bool
    """True if its missing nodes are added."""


def plan(seen: Observation, rules: Rules, *, now: datetime) -> ScalingPlan:
    """Decide the steps of a reconciliation; this is a pure function."""
    group = seen.group
    nodes = _classify_nodes(seen, rules, now)
    failures = [] if group.changing else list(_failures(seen, nodes, rules, now))
    request, answers = _update_request(seen.request, failures, rules, now)
    # Skip gangs larger than the group's maximum, and those whose reservation has not started.
    waits = [
        wait
        for wait in waiting_jobs(seen.jobs, seen.pods, now=now)
        if wait.job not in seen.elsewhere
        and wait.size <= group.max_size
        and (wait.not_before is None or wait.not_before <= now)
    ]
    jobs_here = [job for job in seen.jobs if name_of(job) not in seen.elsewhere]
    waits, notes = _update_waiting_jobs(waits, jobs_here, failures, rules, now)
    claims = _claims(waits, nodes, group.max_desired, request)
    notes += [note for wait in waits if (note := _hold_note(wait, nodes, group.max_desired, now))]
    held = sum(claim.held for claim in claims)
    needed, spare = nodes.free[len(nodes.free) - held :], nodes.free[: len(nodes.free) - held]
    jobs = tuple(claim.wait.job for claim in claims if claim.adds_nodes)
    lacking = sum(claim.wait.missing if claim.adds_nodes else claim.held for claim in claims)
    number = len(nodes.busy) + lacking
    if jobs:
        # Nodes cordoned by a user are unavailable until the user uncordons them. Nodes under EKS
        # repair are cordoned too, but soon replaced.
        number = min(group.max_desired, number + _num_cordoned_for_long(nodes.cordoned, rules, now))
    wanted = max(number, min(group.max_desired, request.nodes) if request else 0)
    steps: list[ScalingStep] = [
        *answers,
        *_merge_notes(notes),
        *_resize(seen, request, wanted, rules, now, jobs=jobs),
        *(
            step
            for node in (*nodes.busy, *needed)
            if not is_unfit(node)
            for step in clear_marks(node)
        ),
        *with_unfit(
            scale_in_steps(
                nodes, spare, len(needed), request, rules, now, releases_idle=seen.releases_idle
            ),
            nodes,
            num_replaced=num_missing(waits, nodes, group, request, number),
            now=now,
        ),
        *(
            Discard(instance=instance, since=since)
            for instance, since in seen.unregistered.items()
            if now - since >= rules.join
        ),
    ]
    if group.changing:
        # An update fails if nodes are added or removed concurrently (aws/containers-roadmap issue
        # 916), and the nodes it cordons look like nodes that need replacement.
        steps = [step for step in steps if isinstance(step, Mark | Note | Answer)]
    return ScalingPlan(
        steps=tuple(steps),
        summary=_summary(seen, nodes, len(needed), spare, rules),
        surplus=max(0, group.desired - max(wanted, len(group.instances))),
        nodes=nodes,
        num_needed=len(needed),
        short=frozenset(_short_jobs(claims, nodes, group)),
        at_maximum=any(
            each.wait.scales and each.wait.dropped is None and not each.adds_nodes
            for each in claims
        ),
    )


def _short_jobs(claims: Iterable[_Claim], nodes: NodesInService, group: Group) -> Iterator[str]:
    """Yield the jobs whose instances EC2 has not launched."""
    present = sum(state.startswith(("Pending", IN_SERVICE)) for state in group.instances.values())
    if group.desired <= present:
        return
    coming = present - len(nodes.busy) - len(nodes.cordoned) - len(nodes.unusable)
    for claim in claims:
        coming -= claim.wait.missing if claim.adds_nodes else claim.held
        if claim.adds_nodes and coming < 0:
            yield claim.wait.job


def unregistered_instances(
    nodes: Sequence[Json],
    group: Group,
    before: Mapping[str, datetime],
    discarded: Mapping[str, datetime],
    *,
    now: datetime,
) -> dict[str, datetime]:
    """Return instances in service that have not joined the cluster, and when each was first seen.

    Nothing else terminates them: EC2 considers them healthy, and EKS does not check again
    (aws/containers-roadmap issue 764). The Cluster Autoscaler terminates them too (its FAQ,
    ``max-node-provision-time``).

    Args:
        nodes: Nodes of the cluster.
        group: The Auto Scaling group.
        before: Result of the previous reconciliation.
        discarded: Termination times of instances that may still be listed as in service.
        now: The current time.
    """
    known = {instance_of(node) for node in nodes}
    known |= {instance for instance, at in discarded.items() if now - at < _TERMINATION_TIMEOUT}
    return {
        instance: before.get(instance, now)
        for instance, state in group.instances.items()
        if state == IN_SERVICE and instance not in known
    }


def _num_cordoned_for_long(cordoned: Sequence[Json], rules: Rules, now: datetime) -> int:
    times = [marked_since(node, kubernetes.IDLE_SINCE) for node in cordoned]
    return sum(since is not None and now - since >= rules.unusable for since in times)


# --- nodes and instances -------------------------------------------------------------------------
def _classify_nodes(seen: Observation, rules: Rules, now: datetime) -> NodesInService:
    by_name = {name_of(node): node for node in seen.nodes if _is_in_service(node, seen.group, now)}
    pods = pods_of_nodes(seen.pods, now=now)
    unfit = unfit_nodes(by_name.values(), seen.pods)
    busy, free, cordoned, unusable = list[Json](), list[Json](), list[Json](), dict[str, str]()
    for name, node in by_name.items():
        on_node = pods.get(name, PodsOfNode())
        if on_node.users:
            busy.append(node)
        elif on_node.stuck:
            unusable[name] = f"cannot terminate pod {on_node.stuck[0]}"
        elif name in unfit:
            unusable[name] = UNFIT
        elif (why := why_unusable(node, rules.devices)) is not None:
            unusable[name] = why
        elif is_cordoned_by_others(node):
            cordoned.append(node)
        else:
            free.append(node)
    free.sort(key=removal_key)
    return NodesInService(
        busy=busy, free=free, cordoned=cordoned, unusable=unusable, by_name=by_name
    )


def _is_in_service(node: Json, group: Group, now: datetime) -> bool:
    """Return whether a node's instance is in service; the Node object outlives it by minutes.

    An instance may still be listed as in service after its termination; terminating it twice would
    shrink the group twice, the second time by a node that the group chooses.
    """
    ends = marked_since(node, kubernetes.TERMINATING_SINCE)
    if ends is not None and now - ends < _TERMINATION_TIMEOUT:
        return False
    return group.instances.get(instance_of(node) or "") == IN_SERVICE


def _failures(
    seen: Observation, nodes: NodesInService, rules: Rules, now: datetime
) -> Iterator[_Failure]:
    """Yield new nodes and instances that did not become usable in time.

    A node that fails after it was usable does not count as a failed launch.
    """
    minutes = f"{rules.join / timedelta(minutes=1):g}"
    for instance, since in seen.unregistered.items():
        if now - since >= rules.join:
            what = f"instance {instance} did not join the cluster within {minutes} minutes"
            yield _Failure(since=since, what=what)
    for name, why in nodes.unusable.items():
        unusable = marked_since(nodes.by_name[name], kubernetes.UNUSABLE_SINCE)
        created = created_at(nodes.by_name[name])
        is_new = created is None or (unusable is not None and unusable - created < rules.join)
        if is_new and unusable is not None and now - unusable >= rules.unusable:
            yield _Failure(since=unusable, what=f"node {name} {why}")


# --- requests and waiting jobs -------------------------------------------------------------------
def _update_request(
    request: NodeRequest | None, failures: Sequence[_Failure], rules: Rules, now: datetime
) -> tuple[NodeRequest | None, list[Answer]]:
    """Return the request if it is still active, and its new status if that has changed."""
    if request is None:
        return None, []
    since = request.since or now
    updated = replace(request, since=since)
    # A request for 0 nodes, as in all zones except the first, adds none.
    if updated.dropped is None and request.nodes:
        times = _with_failure(updated.failed_nodes, since, failures, now)
        dropped = _reason(failures) if len(times) >= MAX_FAILED_NODES else None
        updated = replace(updated, failed_nodes=times, dropped=dropped)
    over = rules.idle is not None and now - since >= rules.idle
    in_force = None if over or updated.dropped else updated
    return in_force, [] if updated == request else [Answer(request=updated)]


def _update_waiting_jobs(
    waits: Sequence[WaitingJob],
    jobs: Iterable[Json],
    failures: Sequence[_Failure],
    rules: Rules,
    now: datetime,
) -> tuple[list[WaitingJob], list[Note]]:
    """Drop jobs after node failures or the hold timeout; clear annotations of non-waiting jobs."""
    found, notes = list[WaitingJob](), list[Note]()
    for wait in waits:
        times, dropped = wait.failed_nodes, wait.dropped
        if wait.scales and dropped is None:
            times = _with_failure(times, wait.created, failures, now)
        if dropped is None and len(times) >= MAX_FAILED_NODES:
            dropped = _reason(failures)
        if dropped is None and wait.held_since and now - wait.held_since >= rules.hold:
            minutes = f"{rules.hold / timedelta(minutes=1):g}"
            dropped = f"nodes were held for it for {minutes} minutes, but it did not start"
        if (times, dropped) != (wait.failed_nodes, wait.dropped):
            changes: dict[str, str | None] = {
                kubernetes.FAILED_NODES: ",".join(map(stamp, times)) or None,
                kubernetes.DROPPED: dropped,
            }
            notes.append(Note(job=wait.job, annotations=changes))
        found.append(replace(wait, failed_nodes=times, dropped=dropped))
    waiting = {wait.job for wait in waits}
    ours = (
        kubernetes.HELD_SINCE,
        kubernetes.FAILED_NODES,
        kubernetes.DROPPED,
        kubernetes.SHORT_SINCE,
    )
    for job in jobs:
        kept = [name for name in ours if name in (job["metadata"].get("annotations") or {})]
        if kept and name_of(job) not in waiting:
            notes.append(Note(job=name_of(job), annotations=dict.fromkeys(kept)))
    return found, notes


def _with_failure(
    times: tuple[datetime, ...],
    requested_at: datetime | None,
    failures: Sequence[_Failure],
    now: datetime,
) -> tuple[datetime, ...]:
    """Count a failure of nodes added after the request and after the previous failure."""
    last = times[-1] if times else requested_at
    if any(last is None or failure.since >= last for failure in failures):
        return (*times, now)
    return times


def _reason(failures: Sequence[_Failure]) -> str:
    return f"nodes failed {MAX_FAILED_NODES} times, last: {failures[-1].what}"


def _claims(
    waits: Sequence[WaitingJob], nodes: NodesInService, limit: int, request: NodeRequest | None
) -> list[_Claim]:
    """Grant nodes that are not in use to waiting jobs, oldest first.

    A job that needs another job's nodes gets none until those are free, because it could not start.
    """
    claims = list[_Claim]()
    reserved, free = len(nodes.busy), len(nodes.free)
    # A user's smaller request takes precedence over a job that only uses existing nodes.
    at_most = limit if request is None else max(request.nodes, reserved)
    for wait in waits:
        granted = wait.dropped is None and reserved + wait.missing <= limit
        held = min(wait.missing, free) if granted else 0
        if not wait.scales:
            held = min(held, max(0, at_most - reserved))
        adds_nodes = granted and wait.scales
        claims.append(_Claim(wait=wait, held=held, adds_nodes=adds_nodes))
        free -= held
        reserved += wait.missing if adds_nodes else held
    return claims


def _hold_note(wait: WaitingJob, nodes: NodesInService, limit: int, now: datetime) -> Note | None:
    """Annotate a waiting job with the time from which idle nodes are held for it.

    The timeouts of several jobs run concurrently: Volcano gives idle nodes to any job for which
    they suffice, so none of the waiting jobs could start on them. There is no timeout for a job
    that waits for nodes in use.
    """
    fits = wait.dropped is None and len(nodes.busy) + wait.missing <= limit
    is_held = fits and len(nodes.free) > 0
    if is_held == (wait.held_since is not None):
        return None
    since = stamp(now) if is_held else None
    return Note(job=wait.job, annotations={kubernetes.HELD_SINCE: since})


def _merge_notes(notes: Iterable[Note]) -> list[Note]:
    """Merge the notes about each job into one, so that they are applied atomically."""
    found: dict[str, dict[str, str | None]] = {}
    for note in notes:
        found.setdefault(note.job, {}).update(note.annotations)
    return [Note(job=job, annotations=annotations) for job, annotations in found.items()]


# --- the size of the group -----------------------------------------------------------------------
def _resize(
    seen: Observation,
    request: NodeRequest | None,
    wanted: int,
    rules: Rules,
    now: datetime,
    *,
    jobs: tuple[str, ...],
) -> tuple[ScaleUp | ScaleDown, ...]:
    group = seen.group
    if wanted > group.desired and (jobs or request):
        return (ScaleUp(number=wanted, jobs=jobs),)
    fewest = max(wanted, len(group.instances))
    since = seen.surplus_since
    over = rules.idle is not None and since is not None and now - since >= rules.idle
    if fewest < group.desired and (request or over or seen.releases_idle):
        return (ScaleDown(number=fewest),)
    return ()


def _summary(
    seen: Observation, nodes: NodesInService, num_needed: int, spare: Sequence[Json], rules: Rules
) -> str:
    group, idle = seen.group, (*nodes.cordoned, *spare)
    times = [marked_since(node, kubernetes.IDLE_SINCE) for node in idle]
    first = min((moment for moment in times if moment is not None), default=None)
    first_removal = ""
    if first is not None and rules.idle is not None:
        first_removal = f", the first will be removed at {stamp(first + rules.idle)}"
    unusable = "".join(f"; node {name} {why}" for name, why in nodes.unusable.items())
    missing = f", {len(seen.unregistered)} not joined" if seen.unregistered else ""
    paused = "; paused while EKS updates the group" if group.changing else ""
    return (
        f"{group.desired} of at most {group.max_desired} nodes are desired: "
        f"{len(nodes.busy)} in use, {num_needed} held for waiting jobs, {len(idle)} idle"
        f"{first_removal}{missing}{unusable}{paused}"
    )
