"""Place each gang in a single zone, and move it to the next one if that zone lacks capacity.

The pods of a gang select nodes by the label of their run, which the scaler adds to nodes of one
zone once there are enough for the whole gang. So Volcano cannot split a gang, and a move changes
neither the job's spec nor its pods: the scaler annotates the job with the zone, in one patch, and
everything else follows from what it observes. State stays consistent even if the scaler
dies in between, or a job is stopped.

Rejected alternatives, based on the source of Volcano 1.15.1:

- A zone selector in the job: its webhook only allows updates to change ``minAvailable``,
  ``replicas`` and the priority (pkg/webhooks/admission/jobs/validate, validateJobUpdate), so a move
  would have to delete and recreate the job, and need permission to do so.
- A hard ``networkTopology``, with a HyperNode per zone: nothing enforces it unless the plugin
  network-topology-aware is configured, which the chart does not do by default
  (pkg/scheduler/framework, HyperNodeGradientForJobFn returns the whole cluster), so a gang could be
  split silently.

Labels take effect in the scheduler's next session: its cache updates changed nodes
(pkg/scheduler/cache, UpdateNode), and the predicates plugin uses Kubernetes' own NodeAffinity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from node_scaler.model import Assign, Json, Move, Note, Rules, name_of
from node_scaler.plan import ScalingPlan
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import WaitingJob, stamp
from trainium_catalogue.wording import counted

ZoneStep = Assign | Move | Note


def place(
    waits: Sequence[WaitingJob],
    runs: Collection[str],
    nodes: Sequence[Json],
    plans: Mapping[str, ScalingPlan],
    rules: Rules,
    *,
    now: datetime,
) -> Iterator[ZoneStep]:
    """Assign nodes to waiting gangs, oldest first, and move those without capacity.

    Args:
        waits: Waiting gangs, whether or not nodes are added for them.
        runs: Runs with an unfinished job.
        nodes: All nodes of the cluster.
        plans: Plans by zone, in the order that gangs try them.
        rules: Timeouts.
        now: The time.
    """
    owners = {name_of(node): owner for node in nodes if (owner := _owner(node)) is not None}
    for name, owner in owners.items():
        if owner not in runs:
            yield Assign(node=name, run=None)
    taken = {name for name, owner in owners.items() if owner in runs}
    for wait in waits:
        own = {name for name, owner in owners.items() if owner == wait.run}
        found = _find_zone(wait, plans, taken - own)
        if found is None:
            # Release its nodes for the next gang.
            if not wait.placed:
                yield from (Assign(node=name, run=None) for name in sorted(own))
            yield from _track_shortage(wait, plans, rules, now)
            continue
        zone, names = found
        taken |= set(names)
        previous = wait.zones.current(plans)
        if zone != previous:
            why = f"enough nodes are free in {zone}"
            yield Move(job=wait.job, annotations=_move_annotations(previous, zone, now), why=why)
        elif wait.zones.short_since is not None:
            yield Note(job=wait.job, annotations={kubernetes.SHORT_SINCE: None})
        if not wait.run:
            continue
        if outside := own - set(plans[zone].nodes.by_name):
            # Never assign nodes of two zones: assign the new ones in a later reconciliation.
            yield from (Assign(node=name, run=None) for name in sorted(outside))
        else:
            yield from (Assign(node=name, run=wait.run) for name in names if name not in own)


def _find_zone(
    wait: WaitingJob, plans: Mapping[str, ScalingPlan], taken: Collection[str]
) -> tuple[str, list[str]] | None:
    """Find a zone with enough nodes for all unplaced pods, the gang's own zone first."""
    own = wait.zones.current(plans)
    # A gang with placed pods stays in their zone.
    current = [
        zone
        for zone, decided in plans.items()
        if any(node in decided.nodes.by_name for node in wait.placed)
    ]
    for zone in current[:1] or (own, *(zone for zone in plans if zone != own)):
        decided = plans[zone]
        free = decided.nodes.free
        if zone not in (own, *current):
            # In other zones, use only nodes that no other gang waits for.
            free = free[: len(free) - decided.num_needed]
        names = [name for node in free if (name := name_of(node)) not in taken]
        if len(names) >= wait.missing:
            # The gang's own nodes come last, like all assigned nodes.
            return zone, names[len(names) - wait.missing :]
    return None


def _track_shortage(
    wait: WaitingJob, plans: Mapping[str, ScalingPlan], rules: Rules, now: datetime
) -> Iterator[Move | Note]:
    """Track how long a gang has been without capacity, and move it after its time limit."""
    noted, here = wait.zones, wait.zones.current(plans)
    if wait.job not in plans[here].short:
        if noted.short_since is not None:
            yield Note(job=wait.job, annotations={kubernetes.SHORT_SINCE: None})
        return
    if noted.short_since is None:
        yield Note(job=wait.job, annotations={kubernetes.SHORT_SINCE: stamp(now)})
        return
    next_zone = noted.next(plans)
    if next_zone is not None and now - noted.short_since >= noted.patience / rules.speedup:
        minutes = counted(noted.patience // timedelta(minutes=1), "minute")
        yield Move(
            job=wait.job,
            annotations={
                **_move_annotations(here, next_zone, now),
                kubernetes.ZONES_TRIED: ",".join(dict.fromkeys((*noted.tried, here))),
            },
            why=f"no capacity in {here} for {minutes}; moving to {next_zone}",
        )


def _move_annotations(previous: str, zone: str, now: datetime) -> dict[str, str | None]:
    return {
        kubernetes.ZONE: zone,
        kubernetes.ZONE_LEFT: f"{previous}={stamp(now)}",
        kubernetes.SHORT_SINCE: None,
    }


def _owner(node: Json) -> str | None:
    owner: str | None = (node["metadata"].get("labels") or {}).get(kubernetes.LABEL_RUN)
    return owner
