"""Objects in an S3 bucket, through boto3."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from training.storage.interface import (
    ObjectInfo,
    ObjectMissing,
    Objects,
    OnBytes,
    PreconditionFailed,
    join,
)
from training.storage.retries import (
    REFUSED_CONDITION,
    RetryPolicy,
    code_of,
    explained,
    is_transient,
    retrying,
    status_of,
)
from training.storage.transfers import MultipartUpload, download

_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
T = TypeVar("T")
_PART_BYTES = 16 * 1024 * 1024
_MAX_PARTS = 9_000
"""Below S3's 10,000 (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html): files may grow."""
_THREADS = 4
"""Threads per transfer; few suffice, since a node's 32 ranks transfer concurrently."""
_MAX_KEYS = 1000  # the limit of ListObjectsV2 and DeleteObjects


class SharedClient:
    """A boto3 client, created on first use and shared between threads."""

    def __init__(
        self, *, region: str | None, endpoint_url: str | None, num_connections: int
    ) -> None:
        self._region, self._endpoint_url = region, endpoint_url
        self._num_connections = num_connections
        self._lock = threading.Lock()
        self._client: Any = None

    def get(self) -> Any:
        """Return the client."""
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
            # ``RetryPolicy`` handles all retries.
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=self._num_connections,
            # Emulators have no per-bucket host names.
            s3={"addressing_style": "path"} if self._endpoint_url else {},
        )
        # A separate session, because the default one is not thread-safe.
        return boto3.session.Session().client(
            "s3", region_name=self._region, endpoint_url=self._endpoint_url, config=config
        )


class S3Objects:
    """Objects of ``bucket`` below ``prefix``."""

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str,
        region: str | None,
        endpoint_url: str | None,
        retry_policy: RetryPolicy,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._retry_policy = retry_policy
        self._shared = SharedClient(
            region=region, endpoint_url=endpoint_url, num_connections=4 * _THREADS
        )

    @property
    def uri(self) -> str:
        """Address of the root: ``s3://bucket/prefix``."""
        return f"s3://{join(self._bucket, self._prefix)}"

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        conditions = _conditions(if_absent=if_absent, if_match=if_match)

        def send(attempt: int) -> str:
            try:
                response = self._client.put_object(**self._where(key), Body=data, **conditions)
            except Exception as error:
                if conditions and code_of(error) in REFUSED_CONDITION:
                    # An earlier attempt may have succeeded although its response was lost.
                    if attempt and (found := self._find_etag(key, data)) is not None:
                        return found
                    raise PreconditionFailed(
                        f"{self._name(key)} was changed by another writer"
                    ) from None
                raise
            return str(response["ETag"])

        return self._do("write", key, send)

    def _is_absent(self, key: str) -> bool:
        """Return whether an object is missing although S3 denied access.

        S3 responds with 403 instead of 404 to a caller that may not list the bucket, and a job's
        role may list only its prefixes, under a condition that a GetObject request cannot meet
        (docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html, permissions).
        """
        name = join(self._prefix, key)
        try:
            response = self._client.list_objects_v2(Bucket=self._bucket, Prefix=name, MaxKeys=1)
        except Exception:
            return False
        # The key itself sorts before all longer keys with that prefix.
        return all(entry["Key"] != name for entry in response.get("Contents", []))

    def _find_etag(self, key: str, data: bytes) -> str | None:
        """Return the object's ETag if it contains ``data``."""
        try:
            found, etag = self.get_with_etag(key)
        except ObjectMissing:
            return None
        return etag if found == data else None

    def get(self, key: str) -> bytes:
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:

        def receive(attempt: int) -> tuple[bytes, str]:
            response = self._client.get_object(**self._where(key))
            return response["Body"].read(), str(response["ETag"])

        return self._do("read", key, receive)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._get_range(key, start, length) if length else b""

    def _get_range(self, key: str, start: int, length: int, **conditions: str) -> bytes:
        span = f"bytes={start}-{start + length - 1}"

        def receive(attempt: int) -> bytes:
            try:
                response = self._client.get_object(**self._where(key), Range=span, **conditions)
            except Exception as error:
                if status_of(error) == 416:  # the range starts beyond the end
                    return b""
                raise
            body: bytes = response["Body"].read()
            return body

        return self._do("read", key, receive)

    def put_file(self, key: str, path: Path, *, on_bytes: OnBytes | None = None) -> None:
        """Upload a file in parts, atomically."""
        size = path.stat().st_size
        with self.create(key, size=size) as stream, path.open("rb") as file:
            target: Any = stream
            while part := file.read(_PART_BYTES):
                target.write(part)
                if on_bytes is not None:
                    on_bytes(len(part))

    @contextmanager
    def create(
        self, key: str, *, size: int = 0, if_absent: bool = False, if_match: str | None = None
    ) -> Iterator[io.IOBase]:
        """Open a stream for a new object, invisible until the block ends."""
        upload = MultipartUpload(
            self._client,
            self._where(key),
            part_bytes=max(_PART_BYTES, -(-size // _MAX_PARTS)),
            num_threads=_THREADS,
            retry=lambda action: self._do("write", key, lambda attempt: action()),
            put=lambda data: self.put(key, data, if_absent=if_absent, if_match=if_match),
            conditions=_conditions(if_absent=if_absent, if_match=if_match),
        )
        try:
            yield upload
            upload.finish()
        except BaseException:
            upload.abort()
            raise

    def get_file(self, key: str, file: BinaryIO, *, on_bytes: OnBytes | None = None) -> None:
        """Download to a new, empty file in parts; raise ``ObjectMissing`` if there is no object."""
        head = self._do("read", key, lambda _: self._client.head_object(**self._where(key)))

        download(
            # All parts must be from one version, even if the object is being replaced.
            partial(self._get_range, key, IfMatch=head["ETag"]),
            size=head["ContentLength"],
            file=file,
            part_bytes=_PART_BYTES,
            num_threads=_THREADS,
            on_bytes=on_bytes or (lambda count: None),
        )

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        root = f"{self._prefix}/" if self._prefix else ""
        more: dict[str, str] = {}
        while True:

            def receive(attempt: int, more: dict[str, str] = more) -> Any:
                return self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=f"{root}{prefix}", MaxKeys=_MAX_KEYS, **more
                )

            page = self._do("list", prefix, receive)
            for entry in page.get("Contents", []):
                yield ObjectInfo(
                    key=entry["Key"][len(root) :],
                    size=entry["Size"],
                    etag=entry["ETag"],
                    modified=entry["LastModified"],
                )
            if not page["IsTruncated"]:
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, keys: Iterable[str]) -> None:
        rest = list(keys)
        while rest:
            batch, rest = rest[:_MAX_KEYS], rest[_MAX_KEYS:]
            names = [{"Key": join(self._prefix, key)} for key in batch]

            def send(attempt: int, names: list[dict[str, str]] = names) -> None:
                response = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": names, "Quiet": True}
                )
                if errors := response.get("Errors"):
                    raise _client_error(errors[0])

            self._do("delete", batch[0], send)

    def at(self, prefix: str) -> Objects:
        below = object.__new__(S3Objects)
        below._bucket, below._shared = self._bucket, self._shared
        below._retry_policy = self._retry_policy
        below._prefix = join(self._prefix, prefix.strip("/"))
        return below

    @property
    def _client(self) -> Any:
        return self._shared.get()

    def _where(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": join(self._prefix, key)}

    def _name(self, key: str) -> str:
        return f"s3://{join(self._bucket, join(self._prefix, key))}"

    def _do(self, verb: str, key: str, action: Callable[[int], T]) -> T:
        """Run ``action``, retrying transient errors; convert the rest to this package's errors."""
        try:
            return retrying(action, is_transient=is_transient, retry_policy=self._retry_policy)
        except Exception as error:
            translated = explained(error, verb=verb, name=self._name(key), bucket=self._bucket)
            if verb == "read" and status_of(error) == 403 and self._is_absent(key):
                raise ObjectMissing(f"there is no {self._name(key)}") from None
            if translated is error:
                raise
            raise translated from error


def _conditions(*, if_absent: bool, if_match: str | None) -> dict[str, str]:
    """Return a request's conditions (S3 User Guide, "How to prevent object overwrites")."""
    absent = {"IfNoneMatch": "*"} if if_absent else {}
    return absent if if_match is None else {**absent, "IfMatch": if_match}


def _client_error(entry: dict[str, str]) -> Exception:
    """Convert an error entry in a DeleteObjects response to the exception of a failed request."""
    from botocore.exceptions import ClientError

    kind: Callable[..., Exception] = ClientError
    return kind({"Error": {"Code": entry["Code"], "Message": entry["Message"]}}, "DeleteObjects")
