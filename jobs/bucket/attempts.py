"""Records of a run's submissions and attempts in the bucket; see `trainium_catalogue.attempts`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from jobs.bucket.objects import Bucket
from jobs.job import Job, JobRequest
from trainium_catalogue.attempts import SUBMISSION_NAME, AttemptRecord, SubmissionRecord
from trainium_catalogue.contract import attempts_prefix, run_prefix
from trainium_catalogue.typed_json import read_json

_MAX_BYTES = 2**20
"""Maximum size of a record; larger objects are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """Records of one job."""

    submission: SubmissionRecord | None
    attempts: tuple[AttemptRecord, ...]
    """Attempts, ordered by number and array child."""


def note_submission(bucket: Bucket, request: JobRequest | Job, job_id: str) -> None:
    """Record the submission of a job, by a request or to replace another job."""
    record = SubmissionRecord(
        workload=request.workload or "",
        orchestrator=request.orchestrator,
        num_nodes=request.num_nodes,
        submitted_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
    key = f"{attempts_prefix(request.run, job_id)}{SUBMISSION_NAME}"
    bucket.write(key, json.dumps(asdict(record)).encode() + b"\n")


def read_jobs(bucket: Bucket, run: str) -> Mapping[str, RecordedJob]:
    """Read the records of a run's jobs by id, skipping invalid ones."""
    prefix = f"{run_prefix(run, 'results')}attempts/"
    submissions: dict[str, SubmissionRecord] = {}
    attempts: dict[str, list[AttemptRecord]] = {}
    for item in bucket.objects(prefix):
        job_id, _, name = item.key.removeprefix(prefix).partition("/")
        # Names with `-node-` belong to nodes of a cluster (`jobs.eks.describe`).
        if "/" in name or "-node-" in name or item.size > _MAX_BYTES:
            continue
        data = bucket.read(item.key) or b""
        try:
            if name == SUBMISSION_NAME:
                submissions[job_id] = read_json(data, SubmissionRecord)
                continue
            record = read_json(data, AttemptRecord)
        except ValueError:
            continue
        if record.job_id == job_id:
            attempts.setdefault(job_id, []).append(record)
    return {
        job_id: RecordedJob(
            submission=submissions.get(job_id),
            attempts=tuple(
                sorted(attempts.get(job_id, ()), key=lambda record: (record.attempt, record.child))
            ),
        )
        for job_id in {**submissions, **attempts}
    }
