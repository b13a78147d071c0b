"""The boto3 client behind a bucket's objects."""

from __future__ import annotations

import threading
from typing import Any

_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60


class Client:
    """One boto3 client, made when first used; safe to share between threads once it is there."""

    def __init__(
        self, *, region: str | None, endpoint_url: str | None, num_connections: int
    ) -> None:
        self._region, self._endpoint_url = region, endpoint_url
        self._num_connections = num_connections
        self._lock = threading.Lock()
        self._client: Any = None

    def get(self) -> Any:
        """The client."""
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    def _make(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            # One place decides what is repeated, how often and how long (``Patience``).
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=self._num_connections,
            # An emulator has no name for each bucket.
            s3={"addressing_style": "path"} if self._endpoint_url else {},
        )
        # A session of its own: the default one is not safe to use from several threads.
        return boto3.session.Session().client(
            "s3", region_name=self._region, endpoint_url=self._endpoint_url, config=config
        )
