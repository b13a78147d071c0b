"""An AWS server for each module that requests clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

ROOT = Path(__file__).resolve().parents[2]
Client = Callable[[str], Any]


def client_of(endpoint: str, service: str, **more: Any) -> Any:
    """Return a client of an AWS server on this machine."""
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name="us-west-2",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        **more,
    )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Address of this module's own server."""
    with subprocess.Popen(
        [sys.executable, "-m", "trainium_emulators.aws.server"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        events = (json.loads(line) for line in server.stdout)
        try:
            yield next(event["endpoint"] for event in events if event["event"] == "ready")
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def client(endpoint: str) -> Client:
    """Clients of that server, by service."""
    return partial(client_of, endpoint)
