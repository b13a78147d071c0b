"""Ends of an attempt enforced by the launcher: its time limit and its Capacity Block's end."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.limits import scaled
from tests.training.conftest import BUCKET, ENDLESS, Cluster, Pods
from tests.training.program.bundles import program
from tests.training.s3_server import s3_client

LIMIT_S = 6
STARTED_WITHIN = timedelta(seconds=scaled(10))
"""Time in which a program starts, while other tests run."""


def test_an_attempt_that_exhausts_its_time_limit_ends_for_good_and_records_it(
    pods: Pods, bucket: dict[str, str]
) -> None:
    pods.start(*ENDLESS, extra={**bucket, "TRAINIUM_TIME_LIMIT_S": str(LIMIT_S)})
    codes = pods.end(within_s=LIMIT_S + 30)
    client = s3_client(bucket["AWS_ENDPOINT_URL"])
    left = client.list_objects_v2(Bucket=BUCKET, Prefix="runs/")["Contents"]

    assert codes == {0: 124, 1: 124}, pods.all_logs()
    assert [item["Key"] for item in left if "/attempts/" in item["Key"]] == [
        f"runs/test-run/results/attempts/{pods.mark}/1{of}.json"
        for of in ("-node-0", "-node-1", "")
    ]
    assert f"node 0: the attempt has run for {LIMIT_S} s (--time-limit)" in pods.log(1)


def test_before_its_capacity_block_ends_a_program_saves_however_short_its_grace(
    cluster: Cluster,
) -> None:
    saves = """
import signal, sys, time

def save(*_):
    time.sleep(3)
    print("saved" + " all", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("works", flush=True)
while True:
    time.sleep(0.1)
"""
    stop_at = datetime.now(UTC) + STARTED_WITHIN
    words = [*program(cluster.folder, script=saves), "--stop-grace-s=1"]
    cluster.start(*words, workload="program", extra={"TRAINIUM_STOP_AT": f"{stop_at:%FT%TZ}"})

    codes = cluster.end(within_s=scaled(40))

    assert codes == {0: 124, 1: 124}, cluster.all_logs()
    assert "the Capacity Block ends soon, so the job stops at" in cluster.log(1).splitlines()[-1]
    assert all("saved all" in cluster.log(index) for index in (0, 1)), cluster.all_logs()


# test_supervisor.py has the decisions, without processes.
@pytest.mark.full
def test_a_stop_before_the_block_ends_has_only_the_stop_grace_period(
    cluster: Cluster,
) -> None:
    """ECS and the kubelet kill a container soon after stop-grace-s, before anything is saved."""
    ignores = """
import signal, time

signal.signal(signal.SIGTERM, lambda *_: print("goes" + " on", flush=True))
print("works", flush=True)
while True:
    time.sleep(0.1)
"""
    stop_at = datetime.now(UTC) + STARTED_WITHIN
    words = [*program(cluster.folder, script=ignores), "--stop-grace-s=3"]
    cluster.start(*words, workload="program", extra={"TRAINIUM_STOP_AT": f"{stop_at:%FT%TZ}"})
    for index in (0, 1):
        cluster.wait_for("goes on", node=index)
    for index in (0, 1):
        os.kill(cluster.launcher(index), signal.SIGTERM)

    codes = cluster.end(within_s=scaled(30))

    assert codes == {0: 124, 1: 124}, cluster.all_logs()
    for index in (0, 1):
        assert "stop requested; 3 s left to finish" in cluster.log(index), cluster.all_logs()
        assert "after SIGTERM, so it is killed" in cluster.log(index), cluster.all_logs()
