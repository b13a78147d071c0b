"""Following a run on the screen: for `submit --follow` and `logs --follow`."""

from __future__ import annotations

import gc
import sys
import time

from jobs.batch.runs import LAUNCHERS_VERDICT, Job
from jobs.batch.streams import LogLine, Streams
from jobs.commands.options import follow_command
from jobs.deployment import Deployment
from jobs.orchestrators import JobService
from jobs.output.follow import Clock, Ended, Follower
from jobs.output.show import Screen, verdict
from jobs.output.tables import node_table


def watch(
    service: JobService,
    deployment: Deployment,
    *,
    run: str,
    job_id: str,
    only_node: int | None = None,
    keep_lines: bool = False,
    part: str = "node",
) -> tuple[Job, list[LogLine]]:
    """Show a run until it ends; ``part`` is what its nodes are called.

    With ``keep_lines`` standard output stays free for a document.
    """
    gc.enable()  # off for the sake of a quick start; see jobs/__main__.py
    screen = Screen(part=part, lines_to=sys.stderr if keep_lines else sys.stdout)
    kept: list[LogLine] = []
    causes: dict[tuple[int, int], str] = {}
    follower = Follower(
        describe=service.describe,
        streams=Streams(
            logs=service.logs(follow=True), log_group=service.log_group, only_node=only_node
        ),
        job_id=job_id,
        clock=Clock(now=time.time, sleep=time.sleep),
        why_waiting=service.why_waiting,
        waits_for=service.waits_for,
    )
    try:
        for event in follower.events():
            if isinstance(event, Ended):
                screen.table(node_table(event.job))
                ending = event.job.ending
                cause = causes.get((0, ending.number)) if ending else None
                # Of an array it is the child that failed which decides.
                cause = cause if part == "node" else None
                screen.remark(verdict(event.job, bucket=deployment.bucket, cause=cause))
                return event.job, kept
            if isinstance(event, LogLine):
                if keep_lines:
                    kept.append(event)
                if said := LAUNCHERS_VERDICT.match(event.message):
                    causes[event.node, event.attempt] = event.message[said.end() :]
            screen.event(event)
    except KeyboardInterrupt:
        come_back = follow_command(deployment, run)
        screen.remark(f"run {run} goes on (job {job_id}); come back with: {come_back}")
        raise
    raise AssertionError("a follower ends with Ended")


def existing_lines(service: JobService, job: Job, *, only_node: int | None) -> list[LogLine]:
    """Read what has been printed so far, sorted by time."""
    logs = service.logs(follow=False)
    streams = Streams(logs=logs, log_group=service.log_group, only_node=only_node)
    return streams.read_all(job)
