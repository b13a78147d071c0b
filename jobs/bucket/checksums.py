"""Whether a local file is what an object in S3 holds, by size and checksum, without reading S3.

S3 keeps a CRC-32 of what was uploaded in one piece, and of an upload in parts the CRC-32 of the
parts' CRC-32s (S3 user guide, "Checking object integrity"); the MD5 in an ETag is made alike.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from jobs.bucket.objects import Bucket

_BLOCK_BYTES = 4 * 2**20


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def is_same(path: Path, bucket: Bucket, key: str) -> bool:
    """Whether ``path`` holds the object's bytes; False where that cannot be told."""
    head = bucket.head(key, ChecksumMode="ENABLED")
    if head is None or not path.is_file() or path.stat().st_size != int(head["ContentLength"]):
        return False
    return checksum_agrees(path, bucket, key, head) is True


def checksum_agrees(path: Path, bucket: Bucket, key: str, head: Mapping[str, Any]) -> bool | None:
    """Compare checksums; None where S3 has none that can be recomputed."""
    crc32 = head.get("ChecksumCRC32")
    if crc32:
        whole = "-" not in crc32
        part_bytes = 0 if whole else _part_bytes(bucket, key)
        if part_bytes is None:
            return None
        digest, count = _digest(path, _Crc32, part_bytes)
        text = base64.b64encode(digest).decode()
        return bool(crc32 == (text if whole else f"{text}-{count}"))
    if head.get("ServerSideEncryption") not in (None, "AES256"):
        return None  # the ETag is no MD5 then
    etag = str(head.get("ETag", "")).strip('"')
    whole = "-" not in etag
    part_bytes = 0 if whole else _part_bytes(bucket, key)
    if part_bytes is None:
        return None
    digest, count = _digest(path, _md5, part_bytes)
    return etag == (digest.hex() if whole else f"{digest.hex()}-{count}")


def _part_bytes(bucket: Bucket, key: str) -> int | None:
    first = bucket.head(key, PartNumber=1)
    return int(first["ContentLength"]) if first else None


def _md5() -> _Digest:
    return hashlib.md5(usedforsecurity=False)


def _digest(path: Path, make: Any, part_bytes: int) -> tuple[bytes, int]:
    """Checksum of the file, or of the checksums of its parts; and how many parts there are."""
    outer, count = make(), 0
    with path.open("rb") as file:
        if not part_bytes:
            while block := file.read(_BLOCK_BYTES):
                outer.update(block)
            return outer.digest(), 1
        while True:
            inner, left = make(), part_bytes
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                inner.update(block)
                left -= len(block)
            if left == part_bytes:
                return outer.digest(), count
            outer.update(inner.digest())
            count += 1
