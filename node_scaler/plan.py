"""The decisions of one round, made from what that round has read.

State is kept in annotations on nodes and jobs, so that a new process continues where the last one
stopped, and everybody can read it. What has no object to annotate, an instance that is not a node
for example, is remembered by the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import (
    NodeRequest,
    PodsOfNode,
    Wait,
    created_at,
    instance_of,
    is_cordoned,
    marked_since,
    pods_of_nodes,
    reported_fault,
    stamp,
    waits_of,
    why_unusable,
)

Json = Mapping[str, Any]

_ENDS_WITHIN = timedelta(minutes=10)
"""Time after which an instance that should be gone, but is not, is terminated again."""
IN_SERVICE = "InService"
"""The only state in which an instance counts and may be terminated."""
MAX_FAILED_NODES = 2
"""Number of rounds of failed nodes after which a request for nodes is dropped."""
_MARKS = (kubernetes.IDLE_SINCE, kubernetes.UNUSABLE_SINCE, kubernetes.CORDONED_SINCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The Auto Scaling group of the node group."""

    name: str
    desired: int
    most: int
    instances: Mapping[str, str]
    """Lifecycle state of each instance, by id."""
    changing: bool = False
    """True while EKS is replacing the nodes or deleting the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that a round has read."""

    nodes: Sequence[Json]
    """Nodes of the whole cluster."""
    pods: Sequence[Json]
    """Pods of all namespaces."""
    jobs: Sequence[Json]
    """Volcano jobs."""
    group: Group
    request: NodeRequest | None = None
    """The last number of nodes that a user has asked for."""
    strangers: Mapping[str, datetime] = field(default_factory=dict)
    """Instances in service that are not nodes, with the time since when."""
    surplus_since: datetime | None = None
    """Since when the group has wanted instances that it has not got and that no job needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The time limits of the scaler, and what it takes for a usable node."""

    idle: timedelta | None
    """Time after which an unused node is removed; None: only a user's request removes one."""
    hold: timedelta
    """Time for which idle nodes are kept for a job that waits."""
    unusable: timedelta
    """Time after which a node on which no job could run is removed."""
    join: timedelta
    """Time after which an instance that has not become a node is terminated."""
    cordon_time: timedelta
    """Time between cordoning and removing a node: a scheduler may act on what it saw before."""
    devices: Mapping[str, int]
    """Devices of a usable node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """Buy more nodes."""

    number: int
    jobs: tuple[str, ...]
    """Jobs that asked for nodes; none if a user did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lower:
    """Want fewer instances than the group does, but not fewer than it has."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Change a node's annotations, and open or close it to pods."""

    node: str
    annotations: Mapping[str, str | None]
    unschedulable: bool | None = None
    """Cordon or uncordon the node; None leaves it unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Terminate a node's instance and shrink the group by one."""

    node: str
    instance: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Terminate an instance that is not a node and shrink the group by one."""

    instance: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Change the annotations of a job."""

    job: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer a user's request for nodes."""

    request: NodeRequest


ScalingStep = Raise | Lower | Mark | Remove | Discard | Note | Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """Steps in order, and the state of the group in a sentence."""

    steps: tuple[ScalingStep, ...]
    summary: str
    surplus: int
    """Instances that the group wants, has not got, and no job or user needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """The nodes in service."""

    busy: Sequence[Json]
    """Used by pods, whatever their condition."""
    free: Sequence[Json]
    """Unused, and a job could run there; the first to go comes first."""
    closed: Sequence[Json]
    """Unused, and cordoned by a person or another program."""
    unusable: Mapping[str, str]
    """Why no job could run on the others, by name."""
    by_name: Mapping[str, Json]

    def __len__(self) -> int:
        return len(self.by_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """A node or instance that is removed because no job could run on it."""

    since: datetime
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """What a waiting job is granted."""

    wait: Wait
    held: int
    """Idle nodes kept for it."""
    bought: bool
    """True if the nodes that it lacks are bought."""


def plan(seen: Observation, rules: Rules, *, now: datetime) -> ScalingPlan:
    """Decide what to do; the same objects at the same time give the same plan."""
    group = seen.group
    nodes = _in_service(seen, rules, now)
    failures = [] if group.changing else list(_failures(seen, nodes, rules, now))
    request, answers = _answered(seen.request, failures, rules, now)
    # A gang larger than the group's maximum never starts.
    waits = [wait for wait in waits_of(seen.jobs, seen.pods, now=now) if wait.size <= group.most]
    waits, notes = _noted(waits, seen.jobs, failures, rules, now)
    claims = _claims(waits, nodes, group.most, request)
    notes += [note for wait in waits if (note := _hold_note(wait, nodes, group.most, now))]
    held = sum(claim.held for claim in claims)
    needed, spare = nodes.free[len(nodes.free) - held :], nodes.free[: len(nodes.free) - held]
    jobs = tuple(claim.wait.job for claim in claims if claim.bought)
    lacking = sum(claim.wait.missing if claim.bought else claim.held for claim in claims)
    number = len(nodes.busy) + lacking
    if jobs:
        # Nodes that a person has cordoned cannot serve, and are for that person to give back.
        # Those that EKS repairs are cordoned too, and soon replaced.
        number = min(group.most, number + _num_closed_for_long(nodes.closed, rules, now))
    wanted = max(number, min(group.most, request.nodes) if request else 0)
    steps: list[ScalingStep] = [
        *answers,
        *_merged(notes),
        *_resize(seen, request, wanted, rules, now, jobs=jobs),
        *(step for node in (*nodes.busy, *needed) for step in _give_back(node)),
        *_leaving(nodes, spare, len(needed), request, rules, now),
        *(
            Discard(instance=instance, since=since)
            for instance, since in seen.strangers.items()
            if now - since >= rules.join
        ),
    ]
    if group.changing:
        # An update fails if others remove or add nodes meanwhile (aws/containers-roadmap issue
        # 916), and the nodes that it has cordoned look like nodes that need a replacement.
        steps = [step for step in steps if isinstance(step, Mark | Note | Answer)]
    return ScalingPlan(
        steps=tuple(steps),
        summary=_summary(seen, nodes, len(needed), spare, rules),
        surplus=max(0, group.desired - max(wanted, len(group.instances))),
    )


def strangers(
    nodes: Sequence[Json],
    group: Group,
    before: Mapping[str, datetime],
    discarded: Mapping[str, datetime],
    *,
    now: datetime,
) -> dict[str, datetime]:
    """Instances in service that are not nodes, and since when.

    Args:
        nodes: Nodes of the cluster.
        group: The Auto Scaling group.
        before: The last round's answer.
        discarded: When instances were terminated, which may be described as in service for a while.
        now: The time.

    Nobody else terminates them: EC2 finds them healthy, and EKS does not look again
    (aws/containers-roadmap issue 764). The Cluster Autoscaler does the same (its FAQ,
    ``max-node-provision-time``).
    """
    known = {instance_of(node) for node in nodes}
    known |= {instance for instance, at in discarded.items() if now - at < _ENDS_WITHIN}
    return {
        instance: before.get(instance, now)
        for instance, state in group.instances.items()
        if state == IN_SERVICE and instance not in known
    }


def _num_closed_for_long(closed: Sequence[Json], rules: Rules, now: datetime) -> int:
    times = [marked_since(node, kubernetes.IDLE_SINCE) for node in closed]
    return sum(since is not None and now - since >= rules.unusable for since in times)


# --- what there is -------------------------------------------------------------------------------
def _in_service(seen: Observation, rules: Rules, now: datetime) -> _Nodes:
    by_name = {_name(node): node for node in seen.nodes if _is_there(node, seen.group, now)}
    pods = pods_of_nodes(seen.pods, now=now)
    busy, free, closed, unusable = list[Json](), list[Json](), list[Json](), dict[str, str]()
    for name, node in by_name.items():
        on_it = pods.get(name, PodsOfNode())
        if on_it.users:
            busy.append(node)
        elif on_it.stuck:
            unusable[name] = f"cannot end pod {on_it.stuck[0]}"
        elif (why := why_unusable(node, rules.devices)) is not None:
            unusable[name] = why
        elif _is_closed_by_others(node):
            closed.append(node)
        else:
            free.append(node)
    free.sort(key=_first_to_go)
    return _Nodes(busy=busy, free=free, closed=closed, unusable=unusable, by_name=by_name)


def _is_there(node: Json, group: Group, now: datetime) -> bool:
    """Tell whether a node's instance is in service: its object outlives it for minutes.

    An instance may still be described as in service after its termination; terminating it twice
    would shrink the group twice, the second time by a node of the group's choice.
    """
    ends = marked_since(node, kubernetes.TERMINATING_SINCE)
    if ends is not None and now - ends < _ENDS_WITHIN:
        return False
    return group.instances.get(instance_of(node) or "") == IN_SERVICE


def _failures(seen: Observation, nodes: _Nodes, rules: Rules, now: datetime) -> Iterator[_Failure]:
    """Yield the nodes and instances whose time to become usable is over.

    A node that broke after it had been usable is none: it was not bought in vain.
    """
    minutes = f"{rules.join / timedelta(minutes=1):g}"
    for instance, since in seen.strangers.items():
        if now - since >= rules.join:
            what = f"instance {instance} has not joined the cluster within {minutes} minutes"
            yield _Failure(since=since, what=what)
    for name, why in nodes.unusable.items():
        unusable = marked_since(nodes.by_name[name], kubernetes.UNUSABLE_SINCE)
        created = created_at(nodes.by_name[name])
        is_new = created is None or (unusable is not None and unusable - created < rules.join)
        if is_new and unusable is not None and now - unusable >= rules.unusable:
            yield _Failure(since=unusable, what=f"node {name} {why}")


# --- what is asked for ---------------------------------------------------------------------------
def _answered(
    request: NodeRequest | None, failures: Sequence[_Failure], rules: Rules, now: datetime
) -> tuple[NodeRequest | None, list[Answer]]:
    """Return the request if it is still in force, and the answer if there is something new."""
    if request is None:
        return None, []
    since = request.since or now
    answered = replace(request, since=since)
    if answered.dropped is None:
        times = _with_failure(answered.failed_nodes, since, failures, now)
        dropped = _reason(failures) if len(times) >= MAX_FAILED_NODES else None
        answered = replace(answered, failed_nodes=times, dropped=dropped)
    over = rules.idle is not None and now - since >= rules.idle
    in_force = None if over or answered.dropped else answered
    return in_force, [] if answered == request else [Answer(request=answered)]


def _noted(
    waits: Sequence[Wait],
    jobs: Iterable[Json],
    failures: Sequence[_Failure],
    rules: Rules,
    now: datetime,
) -> tuple[list[Wait], list[Note]]:
    """Drop the waits that have cost enough, and clear the notes of jobs that wait no more."""
    found, notes = list[Wait](), list[Note]()
    for wait in waits:
        times, dropped = wait.failed_nodes, wait.dropped
        if wait.scales and dropped is None:
            times = _with_failure(times, wait.created, failures, now)
        if dropped is None and len(times) >= MAX_FAILED_NODES:
            dropped = _reason(failures)
        if dropped is None and wait.held_since and now - wait.held_since >= rules.hold:
            minutes = f"{rules.hold / timedelta(minutes=1):g}"
            dropped = f"nodes were held for it for {minutes} minutes, and it has not started"
        if (times, dropped) != (wait.failed_nodes, wait.dropped):
            changes: dict[str, str | None] = {
                kubernetes.FAILED_NODES: ",".join(map(stamp, times)) or None,
                kubernetes.DROPPED: dropped,
            }
            notes.append(Note(job=wait.job, annotations=changes))
        found.append(replace(wait, failed_nodes=times, dropped=dropped))
    waiting = {wait.job for wait in waits}
    ours = (kubernetes.HELD_SINCE, kubernetes.FAILED_NODES, kubernetes.DROPPED)
    for job in jobs:
        kept = [name for name in ours if name in (job["metadata"].get("annotations") or {})]
        if kept and _name(job) not in waiting:
            notes.append(Note(job=_name(job), annotations=dict.fromkeys(kept)))
    return found, notes


def _with_failure(
    times: tuple[datetime, ...],
    asked: datetime | None,
    failures: Sequence[_Failure],
    now: datetime,
) -> tuple[datetime, ...]:
    """Count a failure of what was bought after the request and after the failure before it."""
    last = times[-1] if times else asked
    if any(last is None or failure.since >= last for failure in failures):
        return (*times, now)
    return times


def _reason(failures: Sequence[_Failure]) -> str:
    return f"nodes have failed {MAX_FAILED_NODES} times, the last: {failures[-1].what}"


def _claims(
    waits: Sequence[Wait], nodes: _Nodes, most: int, request: NodeRequest | None
) -> list[_Claim]:
    """Grant nodes to the jobs that wait, oldest first, without those in use.

    A job that must wait for another job's nodes gets none until then: it could not use them.
    """
    claims = list[_Claim]()
    reserved, free = len(nodes.busy), len(nodes.free)
    # A user's smaller number counts more than a job that takes what there is.
    at_most = most if request is None else max(request.nodes, reserved)
    for wait in waits:
        granted = wait.dropped is None and reserved + wait.missing <= most
        held = min(wait.missing, free) if granted else 0
        if not wait.scales:
            held = min(held, max(0, at_most - reserved))
        bought = granted and wait.scales
        claims.append(_Claim(wait=wait, held=held, bought=bought))
        free -= held
        reserved += wait.missing if bought else held
    return claims


def _hold_note(wait: Wait, nodes: _Nodes, most: int, now: datetime) -> Note | None:
    """Note since when nodes have been idle while the job waits.

    The clocks of several jobs run at the same time: Volcano gives idle nodes to any job for which
    they are enough, so none of these could start on them. A job that has to wait for nodes in use
    has time.
    """
    fits = wait.dropped is None and len(nodes.busy) + wait.missing <= most
    is_held = fits and len(nodes.free) > 0
    if is_held == (wait.held_since is not None):
        return None
    since = stamp(now) if is_held else None
    return Note(job=wait.job, annotations={kubernetes.HELD_SINCE: since})


def _merged(notes: Iterable[Note]) -> list[Note]:
    """Make one note of those about a job: a clock must not restart while a reason gets lost."""
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
) -> tuple[Raise | Lower, ...]:
    group = seen.group
    if wanted > group.desired and (jobs or request):
        return (Raise(number=wanted, jobs=jobs),)
    fewest = max(wanted, len(group.instances))
    since = seen.surplus_since
    over = rules.idle is not None and since is not None and now - since >= rules.idle
    if fewest < group.desired and (request or over):
        return (Lower(number=fewest),)
    return ()


# --- nodes that stay or go -----------------------------------------------------------------------
def _give_back(node: Json) -> tuple[Mark, ...]:
    """Clear a node's marks; uncordon it if it was cordoned by us."""
    annotations = node["metadata"].get("annotations") or {}
    ours = [mark for mark in _MARKS if mark in annotations]
    if not ours:
        return ()
    opened = False if kubernetes.CORDONED_SINCE in ours else None
    return (Mark(node=_name(node), annotations=dict.fromkeys(ours), unschedulable=opened),)


def _leaving(
    nodes: _Nodes,
    spare: Sequence[Json],
    num_needed: int,
    request: NodeRequest | None,
    rules: Rules,
    now: datetime,
) -> Iterator[ScalingStep]:
    """Take the nodes that serve no job a step further: marked, cordoned, removed."""
    asked = None if request is None or not request.since else request.since + rules.cordon_time
    since = None if request is None else request.since
    fewer = asked if request and len(nodes) > request.nodes else None
    room = len(spare)
    if request is not None:
        room = max(0, request.nodes - len(nodes.busy) - num_needed)
    going, staying = spare[: max(0, len(spare) - room)], spare[max(0, len(spare) - room) :]

    def let_go(node: Json, mark: str, why: str, *, at_once: bool) -> tuple[ScalingStep, ...]:
        limit = rules.unusable if mark == kubernetes.UNUSABLE_SINCE else rules.idle
        return _let_go(node, mark, why, timedelta(0) if at_once else limit, rules, now)

    for name, why in nodes.unusable.items():
        node = nodes.by_name[name]
        yield from let_go(
            node, kubernetes.UNUSABLE_SINCE, why, at_once=_is_before(node, fewer, now)
        )
    for node in nodes.closed:
        why = "cordoned and idle"
        yield from let_go(node, kubernetes.IDLE_SINCE, why, at_once=_is_before(node, fewer, now))
    for node in going:
        yield from let_go(node, kubernetes.IDLE_SINCE, "idle", at_once=_is_before(node, asked, now))
    for node in staying:
        mark, limit = kubernetes.IDLE_SINCE, rules.idle
        yield from _let_go(node, mark, "idle", limit, rules, now, not_before=since)


def _is_before(node: Json, asked: datetime | None, now: datetime) -> bool:
    """Tell whether the node was idle or unusable already when a user asked for fewer."""
    marks = (kubernetes.IDLE_SINCE, kubernetes.UNUSABLE_SINCE)
    since = next((moment for mark in marks if (moment := marked_since(node, mark))), now)
    return asked is not None and since <= asked


def _let_go(
    node: Json,
    mark: str,
    why: str,
    limit: timedelta | None,
    rules: Rules,
    now: datetime,
    *,
    not_before: datetime | None = None,
) -> tuple[ScalingStep, ...]:
    """Take a node one step further.

    Args:
        node: The node.
        mark: The annotation that holds the time since when.
        why: Why it goes.
        limit: Time since then after which it is cordoned; None: never.
        rules: Time limits.
        now: The time.
        not_before: Earliest time at which that time starts: a user asked for the node then.
    """
    since = marked_since(node, mark)
    cordoned = marked_since(node, kubernetes.CORDONED_SINCE)
    opened_by_others = cordoned is not None and not is_cordoned(node)
    if since is None or opened_by_others or (not_before is not None and since < not_before):
        # Also restarts the clock of a node whose mark somebody has removed to keep it longer.
        start = now if since is None or not_before is None else max(not_before, since)
        start = now if opened_by_others else start
        marks = {**dict.fromkeys(_MARKS), mark: stamp(start)}
        closed = None if cordoned is None else False
        if (limit == timedelta(0) or reported_fault(node)) and not is_cordoned(node):
            # With a reported fault a pod could still be placed there.
            marks[kubernetes.CORDONED_SINCE], closed = stamp(now), True
        return (Mark(node=_name(node), annotations=marks, unschedulable=closed),)
    if limit is None or now - since < limit:
        return ()
    if _is_closed_by_others(node):
        cordoned = since + limit
    elif cordoned is None:
        marks = {kubernetes.CORDONED_SINCE: stamp(now)}
        return (Mark(node=_name(node), annotations=marks, unschedulable=True),)
    if now - cordoned < rules.cordon_time:
        return ()
    instance = instance_of(node)
    assert instance is not None  # it is in service
    return (Remove(node=_name(node), instance=instance, why=f"{why} since {stamp(since)}"),)


def _is_closed_by_others(node: Json) -> bool:
    """Tell whether somebody else has cordoned the node: it stays closed to pods."""
    return is_cordoned(node) and marked_since(node, kubernetes.CORDONED_SINCE) is None


def _first_to_go(node: Json) -> tuple[str, str]:
    """Sort key: nodes idle longest first."""
    since = marked_since(node, kubernetes.IDLE_SINCE)
    return "~" if since is None else stamp(since), _name(node)


def _name(entry: Json) -> str:
    return str(entry["metadata"]["name"])


def _summary(
    seen: Observation, nodes: _Nodes, num_needed: int, spare: Sequence[Json], rules: Rules
) -> str:
    group, idle = seen.group, (*nodes.closed, *spare)
    times = [marked_since(node, kubernetes.IDLE_SINCE) for node in idle]
    first = min((moment for moment in times if moment is not None), default=None)
    goes = ""
    if first is not None and rules.idle is not None:
        goes = f", the first goes at {stamp(first + rules.idle)}"
    unusable = "".join(f"; node {name} {why}" for name, why in nodes.unusable.items())
    missing = f", {len(seen.strangers)} have not joined" if seen.strangers else ""
    left_alone = "; EKS changes the group, which is left alone" if group.changing else ""
    return (
        f"{group.desired} of at most {group.most} nodes are wanted: {len(nodes.busy)} in use, "
        f"{num_needed} kept for jobs that wait, {len(idle)} idle{goes}{missing}{unusable}"
        f"{left_alone}"
    )
