"""Reading objects from the deployment's bucket, and writing small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from jobs.aws import Response, S3Client
from jobs.errors import error_code
from trainium_catalogue.typed_json import read_object

_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_CONFLICTS = frozenset(
    {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409"}
)
"""Errors of a conditional put that lost a race (S3 user guide, conditional writes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject:
    """One object."""

    key: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of an object, for conditional replacement."""

    data: bytes
    etag: str
    age: timedelta
    """Time since it was written, by the bucket's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket, identified by its name."""

    client: S3Client
    name: str

    def read(self, key: str) -> bytes | None:
        """Read the object's bytes; None if there is no such object."""
        response = self._found(self.client.get_object, Key=key)
        return None if response is None else bytes(response["Body"].read())

    def document(self, key: str) -> dict[str, Any] | None:
        """Read the JSON object at ``key``; None if it is missing or not a JSON object."""
        data = self.read(key)
        if data is None:
            return None
        try:
            return read_object(data)
        except ValueError:
            return None

    def write(self, key: str, data: bytes) -> str:
        """Put an object; return its URI."""
        self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return f"s3://{self.name}/{key}"

    def read_version(self, key: str) -> Version | None:
        """Read the object with its version; None if there is no such object."""
        response = self._found(self.client.get_object, Key=key)
        if response is None:
            return None
        now = parsedate_to_datetime(response["ResponseMetadata"]["HTTPHeaders"]["date"])
        return Version(
            data=response["Body"].read(),
            etag=str(response["ETag"]),
            age=max(timedelta(0), now - response["LastModified"]),
        )

    def replace(self, key: str, data: bytes, *, etag: str | None) -> str | None:
        """Replace the object if its ETag is still ``etag``; with None, create it.

        Return the new ETag; None if another write came first.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            response = self.client.put_object(Bucket=self.name, Key=key, Body=data, **condition)
        except Exception as error:
            if error_code(error) not in _CONFLICTS:
                raise
            # boto3 retries a request whose response was lost: the first may have succeeded.
            found = self.read_version(key)
            return found.etag if found is not None and found.data == data else None
        return str(response["ETag"])

    def head(self, key: str, **kwargs: Any) -> dict[str, Any] | None:
        """Read the metadata of an object; None if there is no such object."""
        return self._found(self.client.head_object, Key=key, **kwargs)

    def _found(self, call: Callable[..., Response], **kwargs: Any) -> dict[str, Any] | None:
        try:
            return dict(call(Bucket=self.name, **kwargs))
        except Exception as error:
            if error_code(error) in _MISSING:
                return None
            raise

    def has(self, prefix: str) -> bool:
        """Return whether any object exists below ``prefix``."""
        page = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix, MaxKeys=1)
        return bool(page.get("Contents"))

    def objects(self, prefix: str) -> Iterator[ListedObject]:
        """Yield every object below ``prefix``, by key."""
        for page in self._pages(Prefix=prefix):
            for item in page.get("Contents", ()):
                yield ListedObject(key=item["Key"], size=int(item["Size"]))

    def names(self, prefix: str) -> list[str]:
        """List the folders and files directly below ``prefix``, without the prefix."""
        found: list[str] = []
        for page in self._pages(Prefix=prefix, Delimiter="/"):
            found += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
            found += [item["Key"] for item in page.get("Contents", ())]
        return sorted(name.removeprefix(prefix).rstrip("/") for name in found if name != prefix)

    def _pages(self, **kwargs: Any) -> Iterator[dict[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page = dict(self.client.list_objects_v2(Bucket=self.name, **kwargs, **token))
            yield page
            if not page.get("NextContinuationToken"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}
