"""An AWS server for each module that requests clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class Server:
    """A running AWS server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.endpoint: str = self.wait("ready")["endpoint"]
        self._clients: dict[str, Any] = {}

    def wait(self, name: str) -> dict[str, Any]:
        """Return the next event with a name."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == name:
                return self.events[-1]
        raise AssertionError(f"no {name}")

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = client_of(self.endpoint, service)
        return self._clients[service]


@contextmanager
def serving_aws(*options: str, temporary: Path | None = None) -> Iterator[Server]:
    """Start a server, whose temporary files are in a folder."""
    environment = {} if temporary is None else {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-m", "trainium_emulators.aws.server", *options],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, **environment},
    ) as process:  # fmt: skip
        try:
            yield Server(process)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Address of this module's own server."""
    with serving_aws() as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def client(endpoint: str) -> Client:
    """Clients of that server, by service."""
    return partial(client_of, endpoint)
