"""Volcano's rules for jobs as pure functions: admission, policies and phases.

Source: Volcano 1.15.1, pkg/webhooks/admission/jobs, pkg/controllers/job (applyPolicies in
job_controller_util.go, the states in state/).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.resources import QUEUE, Json
from trainium_emulators.kubernetes.store import Store, now

DEFAULT_MAX_RETRY = 3
FINISHED = ("Completed", "Failed", "Terminated", "Aborted")
KILL_PHASES: Mapping[str, str] = {"RestartJob": "Restarting", "TerminateJob": "Terminating"}
"""Actions that end an attempt, and the phase in which its pods are removed."""
_EVENTS = ("*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed")
_SECONDS = re.compile(r"[0-9]{1,4}s")
_PLUGINS = ("svc", "env", "ssh")
_MAX_NAME_CHARACTERS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Number of a job's pods by phase; pods being removed count only as terminating."""

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0

    @classmethod
    def of(cls, pods: Sequence[Json]) -> Counts:
        """Count pods by phase."""
        phases = [
            "terminating"
            if "deletionTimestamp" in pod["metadata"]
            else pod.get("status", {}).get("phase", "Pending").lower()
            for pod in pods
        ]
        return cls(**{name: phases.count(name) for name in set(phases)})

    @classmethod
    def last(cls, job: Json) -> Counts:
        """Return the counts in a job's status."""
        return cls(**{name: job["status"].get(name, 0) for name in cls.__slots__})

    def status(self) -> Json:
        """Return the counts in the form of a job's status."""
        return {name: getattr(self, name) for name in self.__slots__}


def replicas(job: Json) -> int:
    """Return the number of pods of a job."""
    return sum(task["replicas"] for task in job["spec"]["tasks"])


def admit(store: Store, job: Json) -> Json:
    """Fill in defaults, and refuse jobs that Volcano's webhooks refuse."""
    job = copy.deepcopy(job)
    spec = job["spec"]
    spec["queue"] = spec.get("queue") or "default"
    spec["maxRetry"] = spec.get("maxRetry") or DEFAULT_MAX_RETRY
    spec.setdefault("schedulerName", "volcano")
    for number, task in enumerate(spec.get("tasks", ())):
        task.setdefault("name", f"default{number}")
        task.setdefault("replicas", 1)
        task.setdefault("minAvailable", task["replicas"])
    if not spec.get("tasks"):
        raise errors.denied("validatejob.volcano.sh", "No task specified in job spec")
    spec["minAvailable"] = spec.get("minAvailable") or sum(
        task["minAvailable"] for task in spec["tasks"]
    )
    why = [*_refusals(job), *_queue_refusals(store, spec["queue"])]
    if why:
        raise errors.denied("validatejob.volcano.sh", "; ".join(why))
    job.pop("status", None)
    return job


def _refusals(job: Json) -> list[str]:
    spec = job["spec"]
    names = [task["name"] for task in spec["tasks"]]
    why = [f"duplicated task name {name}" for name in names if names.count(name) > 1]
    if replicas(job) < spec["minAvailable"]:
        why.append("job 'minAvailable' should not be greater than total replicas in tasks")
    for policies in (spec.get("policies", ()), *(t.get("policies", ()) for t in spec["tasks"])):
        why += _policy_refusals(policies)
    pods = [f"{job['metadata']['name']}-{name}-{number}" for number, name in enumerate(names)]
    why += [
        f"create pod with name {name} validate failed "
        f"[name part must be no more than {_MAX_NAME_CHARACTERS} characters]"
        for name in pods
        if len(name) > _MAX_NAME_CHARACTERS
    ]
    why += [
        f"unable to find job plugin: {name}"
        for name in spec.get("plugins", {})
        if name not in _PLUGINS
    ]
    return why


def _policy_refusals(policies: Sequence[Json]) -> list[str]:
    why, events, codes = [], list[str](), list[int]()
    for policy in policies:
        own = _events(policy)
        if bool(own) == ("exitCode" in policy):
            why.append("either event and exitCode should be specified, and not both")
        if policy.get("exitCode") == 0:
            why.append("0 is not a valid error code")
        why += [f"invalid policy event {event}" for event in own if event not in _EVENTS]
        if policy.get("action") not in KILL_PHASES:
            why.append(f"the rehearsal does not support the action {policy.get('action')}")
        if "timeout" in policy and not _SECONDS.fullmatch(policy["timeout"]):
            why.append(f"the rehearsal does not support the timeout {policy['timeout']}")
        events += own
        codes += [policy["exitCode"]] if "exitCode" in policy else []
    why += [f"duplicate event {e} across different policy" for e in events if events.count(e) > 1]
    why += [f"duplicate exitCode {code}" for code in codes if codes.count(code) > 1]
    return why


def _queue_refusals(store: Store, name: str) -> list[str]:
    queue = store.find(QUEUE, "", name)
    if queue is None:
        return [f'unable to find job queue: queue.scheduling.volcano.sh "{name}" not found']
    state = queue.get("status", {}).get("state")
    if state != "Open":
        return [
            f"can only submit job to queue with state `Open`, queue `{name}` status is `{state}`"
        ]
    return []


def _events(policy: Json) -> list[str]:
    return [*policy.get("events", ()), *filter(None, [policy.get("event")])]


def action_for(job: Json, *, task: str, event: str, exit_code: int = 0) -> tuple[str, float] | None:
    """Return the action of the first matching policy, the task's before the job's, and its delay in
    seconds; None if no policy matches."""
    tasks = [entry for entry in job["spec"]["tasks"] if entry["name"] == task]
    for policies in (*(entry.get("policies", ()) for entry in tasks), job["spec"].get("policies")):
        for policy in policies or ():
            events = _events(policy)
            if event in events or "*" in events or policy.get("exitCode") == exit_code != 0:
                return str(policy["action"]), float(policy.get("timeout", "0s").rstrip("s"))
    return None


def next_phase(job: Json, counts: Counts) -> str:
    """Return the next phase, given the pods' counts and the retries so far.

    Policies are applied separately.
    """
    spec, status = job["spec"], job["status"]
    phase = str(status["state"]["phase"])
    total = replicas(job)
    if phase == "Restarting":
        # Retries are exhausted when maxRetry attempts have been made.
        if status.get("retryCount", 0) >= spec["maxRetry"]:
            return "Failed"
        return "Pending" if total - counts.terminating >= spec["minAvailable"] else phase
    if phase == "Terminating":
        alive = counts.terminating + counts.pending + counts.running
        return phase if alive else "Terminated"
    if phase == "Pending":
        started = counts.running + counts.succeeded + counts.failed
        return "Running" if started >= spec["minAvailable"] else phase
    if phase == "Running" and counts.succeeded + counts.failed == total:
        return "Completed" if counts.succeeded >= spec["minAvailable"] else "Failed"
    if phase == "Running" and counts.pending > total - spec["minAvailable"]:
        return "Pending"
    return phase


def group_phase(phase: str, pods: Sequence[Json], min_member: int) -> str:
    """Return a pod group's phase at the end of a scheduler session.

    A pod being removed does not count, although it still occupies its node: an evicted gang is
    Pending, then Inqueue, while it terminates (getPodGroupPhase of 1.15.1; later releases count it,
    Volcano commit 30066d5e0). A partly running gang is Unknown.
    """
    count = Counts.of(pods)
    bound = sum("nodeName" in pod["spec"] and _is_pending(pod) for pod in pods)
    ended = count.succeeded + count.failed
    if count.running and count.running + bound + count.succeeded < min_member:
        return "Unknown"
    if (scheduled := count.running + bound + ended) >= min_member:
        return "Completed" if scheduled == ended else "Running"
    return phase if phase == "Inqueue" else "Pending"


def _is_pending(pod: Json) -> bool:
    status = pod.get("status", {}).get("phase", "Pending")
    return status == "Pending" and "deletionTimestamp" not in pod["metadata"]


def changed_status(old: Json, phase: str, changes: Json) -> Json:
    """Return a job's status with changes and a phase applied.

    The time in the phase's condition is the latest change of any kind, not the start of the phase
    (syncJob).
    """
    status = {**old, **changes}
    same_phase = old.get("state", {}).get("phase") == phase
    if same_phase and (status == old or "version" in changes):
        return status
    moment = now()
    status["state"] = {"phase": phase, "lastTransitionTime": moment}
    status["conditions"] = [
        *(c for c in old.get("conditions", ()) if c["status"] != phase),
        {"status": phase, "lastTransitionTime": moment},
    ]
    return status


def retained(job: Json, phase: str) -> tuple[str, ...]:
    """Return the phases of pods that are retained for their logs when a job is killed.

    If another attempt follows, pods of all phases are removed, except before the last retry
    (killPods, lastRetry).
    """
    last = job["status"].get("retryCount", 0) >= job["spec"]["maxRetry"] - 1
    return () if phase == "Restarting" and not last else ("Succeeded", "Failed")
