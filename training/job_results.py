"""How one job tells another that it has ended, through the bucket.

Volcano lets no job wait for another, and a pod has no rights on the cluster. So the job that
compiles leaves a result under its id, and the launchers of the job that trains look for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from training.contract import NodeContract
from training.verdict import Verdict
from trainium_catalogue.contract import ATTEMPTS, CACHE_PREFIX
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode

if TYPE_CHECKING:
    from training.objects import Objects

PREFIX = f"{CACHE_PREFIX}compiled/jobs"
_LOOK_S = 5.0
_TICK_S = 0.2
_REQUEST_S = 2.0
"""Shorter than any silence that the guardian takes for a frozen launcher."""
Say = Callable[[str], None]


def open_results(node: NodeContract) -> Objects:
    """Where jobs leave their results; the deployment's bucket."""
    from training.objects import Patience, open_objects

    assert node.bucket is not None
    return open_objects(
        f"s3://{node.bucket}/{PREFIX}",
        region=node.region,
        endpoint_url=node.endpoint_url,
        patience=Patience(total_s=_REQUEST_S),
    )


def leave_result(results: Objects, node: NodeContract, verdict: Verdict, say: Say) -> None:
    """Write how this job has ended, unless another attempt may follow."""
    if EXIT_CODES[verdict.code].retry and node.attempt < ATTEMPTS:
        return
    from training.objects import StorageError

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
    from training.objects import ObjectMissing, StorageUnavailable

    say(f"waiting for job {job_id}, which compiles for this one")
    looked_s = float("-inf")
    while not stopped():
        beat()
        if time.monotonic() - looked_s < _LOOK_S:
            time.sleep(_TICK_S)
            continue
        looked_s = time.monotonic()
        try:
            result = json.loads(results.get(_key(job_id)))
        except (ObjectMissing, StorageUnavailable):
            continue
        if result["code"] == ExitCode.OK:
            say(f"job {job_id} has compiled the graphs")
            return None
        return Verdict(
            code=ExitCode.WORKLOAD,
            reason=f"job {job_id}, which compiles for this one, has failed: {result['reason']}",
        )
    return Verdict(code=ExitCode.STOPPED, reason=f"asked to stop while waiting for job {job_id}")


def _key(job_id: str) -> str:
    return f"{job_id}.json"
