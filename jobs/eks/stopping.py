"""How a Volcano job is ended before its time."""

from __future__ import annotations

import time

from jobs.eks.cluster import COMMANDS, JOBS, MERGE_PATCH, Cluster, Json, refusing
from jobs.eks.describe import STOPPED_BY, phase_of

_LOOKS = 20
_LOOK_S = 0.25


def abort(cluster: Cluster, job_id: str, reason: str) -> None:
    """Have Volcano's controller end the pods of a job; ``reason`` stays on the job."""
    path = f"{JOBS}/{job_id}"
    with refusing():
        note = {"metadata": {"annotations": {STOPPED_BY: reason}}}
        job = cluster.call("PATCH", path, body=note, content_type=MERGE_PATCH)
        cluster.call("POST", COMMANDS, body=_command(job))
        _see_it_aborted(cluster, path)


def _see_it_aborted(cluster: Cluster, path: str) -> None:
    """Abort a job between two attempts, where Volcano drops the command.

    In phase Restarting it carries out nothing but its own steps (Volcano 1.15.1,
    pkg/controllers/job/state/restarting.go), and the run would go on. The phase itself it
    takes from anybody: so does TorchX cancel a job.
    """
    for _ in range(_LOOKS):
        phase = phase_of(cluster.get(path))
        if phase == "Restarting":
            status = {"status": {"state": {"phase": "Aborting"}}}
            cluster.call("PATCH", f"{path}/status", body=status, content_type=MERGE_PATCH)
            return
        if phase not in (None, "Pending", "Running"):
            return
        time.sleep(_LOOK_S)


def _command(job: Json) -> Json:
    """A Command, which Volcano's controller carries out once (volcano.sh/apis, bus/v1alpha1)."""
    metadata = job["metadata"]
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {
            "generateName": f"{metadata['name']}-abort-",
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "target": owner,
        "action": "AbortJob",
    }
