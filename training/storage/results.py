"""Result files and metrics of a run: written locally at once, into the bucket now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainium_catalogue.contract import run_prefix

_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
_BETWEEN_UPLOADS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where results go beside the local folder."""

    name: str
    region: str | None
    endpoint_url: str | None
    """Set on emulators only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The files of one run, laid out as in the bucket."""

    root: Path
    run: str
    workload: str
    attempt: int
    bucket: Bucket | None
    _uploaded_s: list[float] = field(default_factory=list, repr=False)
    """When metrics were uploaded."""

    @property
    def result_key(self) -> str:
        """Key of the result file."""
        return f"{run_prefix(self.run, 'results')}{self.workload}.json"

    @property
    def metrics_key(self) -> str:
        """Key of the metrics file."""
        return f"{run_prefix(self.run, 'metrics')}{self.workload}.jsonl"

    def start_metrics(self) -> None:
        """Begin an empty metrics file; a bucket that refuses it does so now, not at the end."""
        path = self._local(self.metrics_key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        self._upload((self.metrics_key,))

    def add_metrics(self, event: str, fields: Mapping[str, Any]) -> None:
        """Append one metrics line."""
        line = {
            "time": now_utc(),
            "run": self.run,
            "workload": self.workload,
            "attempt": self.attempt,
            "event": event,
            **fields,
        }
        with self._local(self.metrics_key).open("a") as file:
            file.write(json.dumps(line) + "\n")
        # Now and then, so that a job that fails leaves what it had measured.
        if time.monotonic() - self._uploaded_s[-1] > _BETWEEN_UPLOADS_S:
            self._upload((self.metrics_key,))

    def put(self, name: str, document: Mapping[str, Any]) -> str:
        """Write another document beside the result; returns where it is."""
        key = f"{run_prefix(self.run, 'results')}{name}"
        path = self._local(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")
        self._upload((key,))
        return str(path) if self.bucket is None else f"s3://{self.bucket.name}/{key}"

    def finish(self, result: Mapping[str, Any]) -> list[str]:
        """Write the result and put everything into the bucket; returns where it is."""
        path = self._local(self.result_key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
        keys = (self.metrics_key, self.result_key)
        if self.bucket is None:
            return [str(self._local(key)) for key in keys]
        self._upload(keys)
        return [f"s3://{self.bucket.name}/{key}" for key in keys]

    def _upload(self, keys: Iterable[str]) -> None:
        self._uploaded_s.append(time.monotonic())
        if self.bucket is None:
            return
        client = _client(self.bucket)
        for key in keys:
            client.put_object(Bucket=self.bucket.name, Key=key, Body=self._local(key).read_bytes())

    def _local(self, key: str) -> Path:
        return self.root / key


def _client(bucket: Bucket) -> Any:
    """An S3 client that gives up within the time in which a job may hang."""
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"mode": "standard", "max_attempts": 5},
        # An emulator has no name for each bucket.
        s3={"addressing_style": "path"} if bucket.endpoint_url else {},
    )
    return boto3.client(
        "s3", region_name=bucket.region, endpoint_url=bucket.endpoint_url, config=config
    )


def now_utc() -> str:
    """The time as ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
