"""Upper bound of a submission's instance cost, and the cost cap that it must not exceed.

The bound covers everything with a limit: attempts, time limits, grace periods, the time that the
queue or the node scaler keeps instances waiting for a job, and idle timeouts. Unlimited costs are
listed separately (``not_included``).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from jobs.deployment import Deployment
from jobs.eks.request import deadline_s, grace_s
from jobs.errors import Refusal
from jobs.job import JobRequest
from trainium_catalogue.contract import ATTEMPTS, RUNNABLE_TIME_LIMIT_MINUTES, Orchestrator
from trainium_catalogue.documents import Amount, Natural, Positive
from trainium_catalogue.eks import DEFAULT_IDLE_MINUTES
from trainium_catalogue.instances import LIST_PRICE_REGIONS, InstanceType
from trainium_catalogue.kubernetes import UNFIT_HOST_DELAY_S
from trainium_catalogue.node_use import CORDON_S, JOIN_S, MAX_FAILED_NODES, UNUSABLE_S
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, Hardware

(_STOP_GRACE,) = (item for item in LAUNCH_PARAMETERS if item.name == "stop-grace-s")
_REPLACED_S = JOIN_S + UNUSABLE_S + CORDON_S
"""Longest time until the node scaler removes an instance that never becomes usable."""
_ZONE_ID = re.compile(r"[a-z0-9]+-az[0-9]+")
_TENTHS = 10
"""Proposed time limits are multiples of a tenth of an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledHours:
    """Upper bound of the billed hours of each of a job's instances."""

    attempts: Positive
    wait: Amount
    """Wait before each attempt, while other instances of the job are missing or being replaced."""
    attempt: Amount
    """Time limit of an attempt, with its grace period."""
    idle: Amount
    """Idle time after the last attempt."""
    moves: Natural = 0
    """Zones in which hosts may wait for others before the job moves to the next zone."""

    @property
    def total(self) -> float:
        """Total hours: attempts with their longest waits, moves, and the final idle time."""
        before_moves = self.moves * (self.wait + self.idle)
        return self.attempts * (self.wait + self.attempt) + self.idle + before_moves

    def text(self) -> str:
        """Describe the hours in words."""
        idle = f" and {self.idle:.3g} h idle after the last" if self.idle else ""
        waited = f"{self.wait + self.idle:.3g} h"
        moves = (
            f", {counted(self.moves, 'move')} to another zone after {waited}" if self.moves else ""
        )
        return (
            f"{counted(self.attempts, 'attempt')} of {self.attempt:.4g} h with the grace period, "
            f"{self.wait:.3g} h of waiting before each{idle}{moves}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCap:
    """A cost cap, and where it is set."""

    usd: float
    source: str
    """Option or context key, for refusals."""
    raised: Callable[[int], str]
    """Builds the option or command that raises the cap to an amount."""


def billed_hours(
    orchestrator: Orchestrator,
    time_limit_hours: float,
    *,
    parameters: Mapping[str, Value],
    settings: Mapping[str, str],
    waits: bool = False,
) -> BilledHours:
    """Bound the billed hours of a job.

    Args:
        orchestrator: Its orchestrator.
        time_limit_hours: Time limit of an attempt.
        parameters: Its parameters, including the grace period.
        settings: Context keys that its deployment sets.
        waits: True if it occupies its nodes while it waits for a compile job.
    """
    time_limit_s = round(time_limit_hours * 3600)
    wait_minutes = _minutes(settings, "runnable_time_limit_minutes", RUNNABLE_TIME_LIMIT_MINUTES)
    moves = max(0, len(_ZONE_ID.findall(settings.get("zone_ids", ""))) - 1)
    if orchestrator is Orchestrator.BATCH:
        # A job cannot exceed the default grace period, which is set on the hosts.
        attempt_s = time_limit_s + grace_s(float(_STOP_GRACE.default))
        idle_minutes = _minutes(settings, "scale_down_delay_minutes", 0)
        return BilledHours(
            attempts=ATTEMPTS,
            wait=wait_minutes / 60,
            attempt=attempt_s / 3600,
            idle=idle_minutes / 60,
            # A job moves only before its first attempt, within its queue's time limit.
            moves=moves,
        )
    stop_grace_s = float(parameters.get(_STOP_GRACE.name, _STOP_GRACE.default))
    attempt_s = deadline_s(time_limit_s, waits=waits) + grace_s(stop_grace_s)
    # A node of the previous attempt or job may have to be removed first, after a delay if its host
    # is unfit; then new nodes may prove unusable, while usable ones are reserved for the job.
    before_s = UNFIT_HOST_DELAY_S + UNUSABLE_S + CORDON_S
    replaced_s = before_s + MAX_FAILED_NODES * _REPLACED_S
    # Nodes may join in a zone after the job has moved to the next one.
    left_s = JOIN_S + CORDON_S if moves else 0
    idle_minutes = _minutes(settings, "eks_idle_minutes", DEFAULT_IDLE_MINUTES)
    return BilledHours(
        attempts=ATTEMPTS,
        wait=wait_minutes / 60 + (replaced_s + left_s) / 3600,
        attempt=attempt_s / 3600,
        idle=idle_minutes / 60 + CORDON_S / 3600,
        moves=moves,
    )


def _minutes(settings: Mapping[str, str], key: str, default: int) -> int:
    return int(settings.get(key, default))


def hours_of(request: JobRequest, target: Deployment, *, waits: bool = False) -> BilledHours:
    """Bound the billed hours of a request on its deployment."""
    return billed_hours(
        request.orchestrator,
        request.time_limit_hours,
        parameters=request.parameters,
        settings=settings_for(request, target),
        waits=waits,
    )


def settings_for(request: JobRequest, target: Deployment) -> Mapping[str, str]:
    """Return the deployment's settings that apply to a request's hardware."""
    settings = dict(target.settings or {})
    if request.hardware is Hardware.CPU:
        for key in ("scale_down_delay_minutes", "zone_ids"):  # only for Trainium nodes
            settings.pop(key, None)
    return settings


def endless_wait(orchestrator: Orchestrator, num_nodes: int) -> str | None:
    """Explain that a job's hosts may wait for each other indefinitely; None if they do not.

    A Batch queue can cancel a job for only three reasons. The others (UNDETERMINED,
    ACTION_REQUIRED) "require manual investigation" (AWS Batch User Guide, automatic remediation
    with jobStateTimeLimitActions). On a cluster the node scaler ends such a wait.
    """
    if orchestrator is not Orchestrator.BATCH or num_nodes == 1:
        return None
    return (
        "ready hosts wait until `jobs stop` for others that cannot start (quota or subnet "
        "addresses exhausted) or never become ready"
    )


def not_included(orchestrator: Orchestrator, settings: Mapping[str, str], *, num_nodes: int) -> str:
    """List costs outside the bound: those without a limit, and those that no job causes."""
    what = ["instances while EC2 starts or terminates them"]
    if orchestrator is Orchestrator.BATCH:
        what += ["pulling the image", "hosts that never become ready"]
        if endless_wait(orchestrator, num_nodes) is not None:
            what.append("ready hosts that wait for others indefinitely")
        if "scale_down_delay_minutes" not in settings:
            what.append("the minutes until Batch terminates idle instances")
    else:
        what.append("nodes that fail while they wait")
        if _minutes(settings, "eks_idle_minutes", DEFAULT_IDLE_MINUTES) == 0:
            what.append("idle nodes, which run until you scale them down")
    return ", ".join([*what, "disks, traffic, and the deployment's baseline cost"])


def unknown_price(kind: InstanceType, region: str | None) -> str | None:
    """Explain that a list price is unknown; without a region, any region's price suffices."""
    regions = kind.list_price_regions
    if region in regions or (region is None and regions):
        return None
    return f"no list price of {kind.name} {f'in {region} ' if region else ''}is known"


def unknown_facts(request: JobRequest, target: Deployment) -> str | None:
    """Explain why a request's bound is uncertain; None if it is certain."""
    if target.settings is None:
        return "the deployment's settings, which limit how long instances wait, are unknown"
    if request.hardware is not Hardware.CPU:
        return unknown_price(target.instance_type, target.region)
    if target.region not in LIST_PRICE_REGIONS or "cpu_instance_types" in target.settings:
        return f"no list price of the deployment's CPU instances in {target.region} is known"
    return None


def parse_cap(max_usd: float | None) -> CostCap | None:
    """Parse ``--max-usd``."""
    if max_usd is None:
        return None
    if not (math.isfinite(max_usd) and max_usd > 0):
        raise Refusal(
            "max-usd", f"--max-usd {max_usd:g} is not a positive amount; specify one above 0"
        )
    return CostCap(
        usd=max_usd, source="--max-usd", raised=lambda usd: f"raise the cap with --max-usd {usd}"
    )


def cap_of(target: Deployment, max_usd: float | None) -> CostCap | None:
    """Return the smaller of the two caps; None if neither is set."""
    given, usd = parse_cap(max_usd), target.max_cost_per_job_usd
    if usd is None or (given is not None and given.usd <= usd):
        return given
    return CostCap(
        usd=usd,
        source=f"max_cost_per_job_usd of deployment {target.name!r}",
        raised=lambda usd: f"deploy again with {target.redeploy(max_cost_per_job_usd=usd)}",
    )


def why_over(
    cap: CostCap,
    usd_of: Callable[[int, float], float],
    *,
    num_nodes: int,
    fewest: int,
    time_limit_hours: float,
    breakdown: str,
) -> str | None:
    """Explain that a submission may exceed its cap, and how to stay within it; None if it cannot.

    Args:
        cap: The cap.
        usd_of: Computes the upper bound for a number of nodes and a time limit.
        num_nodes: Requested number of nodes.
        fewest: Minimum number of nodes.
        time_limit_hours: Requested time limit.
        breakdown: Breakdown of the bound.
    """
    usd = usd_of(num_nodes, time_limit_hours)
    if usd <= cap.usd:
        return None

    def remedies() -> Iterator[str]:
        sizes = range(num_nodes - 1, fewest - 1, -1)
        fits = next((size for size in sizes if usd_of(size, time_limit_hours) <= cap.usd), None)
        if fits is not None:
            yield f"submit with --nodes {fits}"
        limits = range(1, math.ceil(time_limit_hours * _TENTHS))
        count = bisect_right(limits, cap.usd, key=lambda limit: usd_of(num_nodes, limit / _TENTHS))
        if count:
            yield f"submit with --time-limit {limits[count - 1] / _TENTHS:g}"
        yield cap.raised(math.ceil(usd))

    return (
        f"the submission can cost ${usd:,.2f}, and {cap.source} is ${cap.usd:,.2f} ({breakdown}); "
        f"{', or '.join(remedies())}"
    )


def why_unbounded(cap: CostCap, unknown: str) -> str:
    """Explain that a cap cannot be enforced because something is unknown."""
    return (
        f"{cap.source} is ${cap.usd:,.2f}, and the maximum cost of the submission is unknown: "
        f"{unknown}; remove the cap, or use a region whose prices are known"
    )
