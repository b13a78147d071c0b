"""How one job tells another that it runs and how it has ended, through the bucket.

Volcano lets no job wait for another, and a pod has no rights on the cluster. So the job that
compiles leaves a sign of life and then a result under its id, and the launchers of the job that
trains look for them. A job that sees no sign of life makes room: both want the same nodes, and the
one that compiles may have come second (Volcano orders jobs by the second in which they or their
restarts were created).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from training.core.contract import NodeContract
from training.launcher.verdict import Verdict
from trainium_catalogue.contract import ATTEMPTS, CACHE_PREFIX, attempts_prefix
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode

if TYPE_CHECKING:
    from training.core.progress import RunContext
    from training.storage import Objects

PREFIX = f"{CACHE_PREFIX}compiled/jobs"
SIGN_S = 60.0
"""Time between two signs of life."""
_LOOK_S = 5.0
_PATIENCE_S = 600.0
"""Nodes that hold the image start a pod within seconds, new ones within minutes."""
_TICK_S = 0.2
_REQUEST_S = 2.0
"""Shorter than any silence that the guardian takes for a frozen launcher."""
Say = Callable[[str], None]


def open_results(node: NodeContract | RunContext) -> Objects:
    """Where jobs leave their results; the deployment's bucket."""
    from training.storage import RetryPolicy, open_objects

    assert node.bucket is not None
    return open_objects(
        f"s3://{node.bucket}/{PREFIX}",
        region=node.region,
        endpoint_url=node.endpoint_url,
        retry_policy=RetryPolicy(total_s=_REQUEST_S),
    )


def leave_ending(node: NodeContract, verdict: Verdict, say: Say) -> None:
    """Write how an attempt ended that did not succeed.

    Volcano deletes the pods of an attempt that another one follows, and their logs with them.
    """
    assert node.bucket is not None
    from training.storage import RetryPolicy, StorageError, open_objects

    attempts = open_objects(
        f"s3://{node.bucket}/{attempts_prefix(node.run, node.job_id)}".rstrip("/"),
        region=node.region,
        endpoint_url=node.endpoint_url,
        retry_policy=RetryPolicy(total_s=_REQUEST_S),
    )
    document = {"schema": 1, "code": int(verdict.code), "reason": verdict.reason}
    name = f"{node.attempt}-node-{node.node_index}.json"
    try:
        attempts.put(name, json.dumps(document).encode() + b"\n")
    except (StorageError, OSError) as error:
        say(f"the bucket could not be told how this attempt ended: {error}")


def leave_sign(results: Objects, job_id: str) -> None:
    """Write that this job runs; one that is not written may be the next time."""
    from training.storage import StorageError

    document = {"schema": 1, "running_at": time.time()}
    with contextlib.suppress(StorageError, OSError):
        results.put(_key(job_id), json.dumps(document).encode() + b"\n")


def leave_result(results: Objects, node: NodeContract, verdict: Verdict, say: Say) -> None:
    """Write how this job has ended, unless another attempt may follow."""
    if EXIT_CODES[verdict.code].retry and node.attempt < ATTEMPTS:
        return
    from training.storage import StorageError

    document = {"schema": 1, "code": int(verdict.code), "reason": verdict.reason}
    try:
        results.put(_key(node.job_id), json.dumps(document).encode() + b"\n")
    except (StorageError, OSError) as error:
        say(f"the job that waits for this one could not be told that it has ended: {error}")


def wait_for(
    results: Objects,
    job_id: str,
    *,
    beat: Callable[[], None],
    stopped: Callable[[], bool],
    say: Say,
) -> Verdict | None:
    """Wait for a job's end; a verdict when this job must not go on."""
    seen_s = time.monotonic()
    running_at = 0.0
    say(f"waiting for job {job_id}, which compiles for this one")
    looked_s = float("-inf")
    while not stopped():
        beat()
        if time.monotonic() - looked_s < _LOOK_S:
            time.sleep(_TICK_S)
            continue
        looked_s = time.monotonic()
        result = _find(results, job_id)
        if "code" not in result:
            # By the other machine's clock, so only whether it moves is looked at.
            if result.get("running_at", running_at) != running_at:
                running_at, seen_s = result["running_at"], looked_s
            if looked_s - seen_s > _PATIENCE_S:
                return Verdict(
                    code=ExitCode.HOST,
                    reason=f"job {job_id}, which compiles for this one, has shown no sign of life "
                    f"for {_PATIENCE_S:g} s; this job makes room for it",
                )
            continue
        if result["code"] == ExitCode.OK:
            say(f"job {job_id} has compiled the graphs")
            return None
        return Verdict(
            code=ExitCode.WORKLOAD,
            reason=f"job {job_id}, which compiles for this one, has failed: {result['reason']}",
        )
    return Verdict(code=ExitCode.STOPPED, reason=f"asked to stop while waiting for job {job_id}")


def _find(results: Objects, job_id: str) -> dict[str, Any]:
    """What the job has left so far; empty where that is nothing, or storage does not answer."""
    from training.storage import ObjectMissing, StorageUnavailable

    try:
        found = json.loads(results.get(_key(job_id)))
    except (ObjectMissing, StorageUnavailable):
        return {}
    assert isinstance(found, dict)
    return found


def _key(job_id: str) -> str:
    return f"{job_id}.json"
