"""`jobs submit ./train.py` again, unchanged, against a built-in workload: whole processes.

Beside what both do, the program's files are listed, packed and compared with those of the last
submission, whose record and snapshots are looked at.
"""

import sys
from collections.abc import Mapping

from benchmarks.pairs import Comparison
from benchmarks.processes import seconds_of
from rehearsal.deployment.aws import EmulatedAccount
from rehearsal.deployment.state import DEPLOYMENT
from trainium_catalogue import contract

PROGRAM = "examples/own-program/train.py"


def submit_program(aws: EmulatedAccount, environment: Mapping[str, str]) -> Comparison:
    """Compare submitting two runs again, each under its name, after its job has ended."""
    batch = aws.client("batch")
    parameter = contract.ssm_parameter(DEPLOYMENT, contract.SSM_JOB_QUEUE)
    queue = str(aws.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"])

    def again(run: str, *words: str) -> float:
        # The queue is blocked, so its job still waits; a run that goes on is not submitted again.
        wanted = [{"name": "JOB_NAME", "values": [run]}]
        for job in batch.list_jobs(jobQueue=queue, filters=wanted)["jobSummaryList"]:
            if job["status"] not in ("SUCCEEDED", "FAILED"):
                batch.terminate_job(jobId=job["jobId"], reason="measured")
        submit = [sys.executable, "-m", "jobs", "submit", *words, "--name", run, "--yes"]
        return seconds_of([*submit, "--nodes", "4"], environment)

    # The first job waits for capacity and holds up the queue, so it must stay until the end.
    again("bench-first", "all-reduce")
    again("bench-program", f"./{PROGRAM}")  # sends the files
    return Comparison(
        name="submit-program",
        product="python -m jobs submit ./train.py, unchanged, whole process",
        baseline="python -m jobs submit all-reduce, whole process",
        target=1.15,
        measure_product=lambda: again("bench-program", f"./{PROGRAM}"),
        measure_baseline=lambda: again("bench-all-reduce", "all-reduce"),
    )
