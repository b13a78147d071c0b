"""Run the node scaler until it is stopped; see docs/adr/0014."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
from botocore.config import Config

from node_scaler.cluster import ClusterClient
from node_scaler.group import ManagedNodeGroup
from node_scaler.model import Rules
from node_scaler.rounds import Scaler
from node_scaler.snapshot import SNAPSHOT_PERIOD, ClusterSnapshots
from trainium_catalogue.contract import ENV_IDLE_CLOCK, ENV_REGION
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.kubernetes import device_resources
from trainium_catalogue.node_use import CORDON_S, JOIN_S, UNUSABLE_S, stamp
from trainium_catalogue.wording import counted

PERIOD_S = 5.0
_SHORTEST_PERIOD_S = 0.5
GIVE_UP_S = 600.0
"""Seconds of failed rounds before the process exits, so that Kubernetes shows restarts."""


def options(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m node_scaler", description=__doc__)
    parser.add_argument("--cluster", required=True, help="name of the EKS cluster")
    parser.add_argument(
        "--node-group",
        dest="node_groups",
        metavar="[ZONE=]NAME",
        required=True,
        action="append",
        help="Trainium node group; one per zone, with zone IDs, in the order jobs try them",
    )
    parser.add_argument("--namespace", required=True, help="namespace of the jobs")
    parser.add_argument("--instance-type", required=True, help="type of the group's instances")
    parser.add_argument(
        "--idle-minutes",
        required=True,
        type=int,
        help="minutes after which idle nodes are removed (0: never)",
    )
    parser.add_argument(
        "--hold-minutes",
        required=True,
        type=int,
        help="minutes to hold idle nodes for a job that waits for more",
    )
    parser.add_argument("--snapshot-bucket", help="bucket of snapshots for notifications")
    parser.add_argument("--api", required=True, help="URL of the Kubernetes API")
    parser.add_argument(
        "--credentials", required=True, type=Path, help="folder with token and ca.crt"
    )
    return parser.parse_args(argv)


def say(text: str) -> None:
    """Write a line to the log."""
    print(f"{stamp(datetime.now(UTC))} {text}", flush=True)


def main(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run rounds until stopped."""
    given = options(argv)
    speedup = float(environment.get(ENV_IDLE_CLOCK, "1"))
    config = Config(
        region_name=environment[ENV_REGION],
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    cluster = ClusterClient(given.api, given.credentials)
    snapshots = given.snapshot_bucket and ClusterSnapshots(
        cluster=cluster,
        namespace=given.namespace,
        s3=boto3.client("s3", config=config),
        bucket=given.snapshot_bucket,
        period=SNAPSHOT_PERIOD / speedup,
        say=say,
    )
    groups = {zone: name for zone, _, name in (each.rpartition("=") for each in given.node_groups)}
    eks = boto3.client("eks", config=config)
    # No retries: a repeated termination would shrink the group twice. The next round checks again.
    autoscaling = boto3.client(
        "autoscaling", config=config.merge(Config(retries={"total_max_attempts": 1}))
    )
    scaler = Scaler(
        cluster=cluster,
        node_groups={
            zone: ManagedNodeGroup(
                cluster=given.cluster, name=name, eks=eks, autoscaling=autoscaling
            )
            for zone, name in groups.items()
        },
        namespace=given.namespace,
        rules=Rules(
            idle=timedelta(minutes=given.idle_minutes) / speedup if given.idle_minutes else None,
            hold=timedelta(minutes=given.hold_minutes) / speedup,
            unusable=timedelta(seconds=UNUSABLE_S) / speedup,
            join=timedelta(seconds=JOIN_S) / speedup,
            cordon_time=timedelta(seconds=CORDON_S) / speedup,
            devices=device_resources(find_instance_type(given.instance_type)),
            speedup=speedup,
        ),
        say=say,
    )
    idle = (
        f"removed after {counted(given.idle_minutes, 'minute')}" if given.idle_minutes else "kept"
    )
    say(f"idle nodes of {', '.join(groups.values())} are {idle}")
    last_success_s = time.monotonic()
    while True:
        try:
            failed = scaler.reconcile(datetime.now(UTC))
        except Exception as error:
            failed = 1
            say(f"round failed: {type(error).__name__}: {error}")
        if snapshots is not None:
            snapshots.write(datetime.now(UTC))
        if not failed:
            last_success_s = time.monotonic()
        elif time.monotonic() - last_success_s > GIVE_UP_S:
            sys.exit(f"no round has succeeded for {GIVE_UP_S:g} s")
        time.sleep(max(_SHORTEST_PERIOD_S, PERIOD_S / speedup))


if __name__ == "__main__":
    # PID 1 of a container ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main(sys.argv[1:], os.environ)
