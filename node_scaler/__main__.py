"""Runs the node scaler until it is told to end; see docs/adr/0014."""

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
from node_scaler.plan import Rules
from node_scaler.rounds import Scaler
from trainium_catalogue.contract import ENV_IDLE_CLOCK, ENV_REGION
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.kubernetes import device_resources
from trainium_catalogue.node_use import stamp

PERIOD_S = 5.0
CORDON_S = 20.0
"""Longer than a period: a cordoned node is checked again before it is removed."""
_SHORTEST_PERIOD_S = 0.5
JOIN_S = 1200.0
"""Seconds after which EKS itself says that instances failed to join."""
UNUSABLE_S = 600.0
"""Longer than a node takes to reboot, or a new one until its device plugins have registered."""
GIVE_UP_S = 600.0
"""Seconds of failing rounds before the process exits, so that Kubernetes shows restarts."""


def options(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m node_scaler", description=__doc__)
    parser.add_argument("--cluster", required=True, help="name of the EKS cluster")
    parser.add_argument("--node-group", required=True, help="name of its Trainium node group")
    parser.add_argument("--namespace", required=True, help="namespace of the jobs")
    parser.add_argument("--instance-type", required=True, help="type of the group's instances")
    parser.add_argument("--idle-minutes", required=True, type=int, help="0: idle nodes stay")
    parser.add_argument("--hold-minutes", required=True, type=int)
    parser.add_argument("--api", required=True, help="address of the Kubernetes API")
    parser.add_argument("--credentials", required=True, type=Path, help="token and ca.crt")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """Write a line to the log."""
    print(f"{stamp(datetime.now(UTC))} {text}", flush=True)


def main(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run rounds until told to end."""
    given = options(argv)
    clock = float(environment.get(ENV_IDLE_CLOCK, "1"))
    config = Config(
        region_name=environment[ENV_REGION],
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    scaler = Scaler(
        cluster=ClusterClient(given.api, given.credentials),
        node_group=ManagedNodeGroup(
            cluster=given.cluster,
            name=given.node_group,
            eks=boto3.client("eks", config=config),
            # Once: a repeated termination would shrink the group twice. The next round looks again.
            autoscaling=boto3.client(
                "autoscaling", config=config.merge(Config(retries={"total_max_attempts": 1}))
            ),
        ),
        namespace=given.namespace,
        rules=Rules(
            idle=timedelta(minutes=given.idle_minutes) / clock if given.idle_minutes else None,
            hold=timedelta(minutes=given.hold_minutes) / clock,
            unusable=timedelta(seconds=UNUSABLE_S) / clock,
            join=timedelta(seconds=JOIN_S) / clock,
            cordon_time=timedelta(seconds=CORDON_S) / clock,
            devices=device_resources(find_instance_type(given.instance_type)),
        ),
        say=say,
    )
    idle = f"removed after {given.idle_minutes} minutes" if given.idle_minutes else "kept"
    say(f"idle nodes of {given.node_group} are {idle}")
    fine_s = time.monotonic()
    while True:
        try:
            failed = scaler.round(datetime.now(UTC))
        except Exception as error:
            failed = 1
            say(f"round failed: {type(error).__name__}: {error}")
        if not failed:
            fine_s = time.monotonic()
        elif time.monotonic() - fine_s > GIVE_UP_S:
            sys.exit(f"no round has succeeded for {GIVE_UP_S:g} s")
        time.sleep(max(_SHORTEST_PERIOD_S, PERIOD_S / clock))


if __name__ == "__main__":
    # The first process of a container ignores signals for which it has no handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main(sys.argv[1:], os.environ)
