"""Transfer large objects to and from S3, several parts at a time."""

from __future__ import annotations

import io
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, BinaryIO

from training.storage.interface import OnBytes
from training.storage.retries import REFUSED_CONDITION, code_of

_MARK = "upload"
"""Metadata key that identifies the upload that created an object."""
Retry = Callable[[Callable[[], Any]], Any]


def download(
    fetch: Callable[[int, int], bytes],
    *,
    size: int,
    file: BinaryIO,
    part_bytes: int,
    num_threads: int,
    on_bytes: OnBytes,
) -> None:
    """Write ``size`` bytes to a new, empty file.

    ``fetch(start, length)`` is called on ``num_threads`` threads, ``on_bytes`` on this one.
    """

    def copy(start: int) -> int:
        length = min(part_bytes, size - start)
        data = fetch(start, length)
        if len(data) != length:
            raise ConnectionError(f"{len(data)} of {length} bytes arrived at offset {start}")
        view, at = memoryview(data), start
        while len(view):
            written = os.pwrite(file.fileno(), view, at)
            view, at = view[written:], at + written
        return length

    with ThreadPoolExecutor(num_threads, thread_name_prefix="download") as pool:
        waiting: set[Future[int]] = {
            pool.submit(copy, start) for start in range(0, size, part_bytes)
        }
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    on_bytes(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class MultipartUpload(io.RawIOBase):
    """A stream whose bytes become an object on ``finish`` or are discarded on ``abort``.

    boto3's own transfers read from a file, so a rank's share of a checkpoint (0.63 GB for
    Llama-2-7B on 128 ranks, 20 GB per node) would first go to the container's disk, which is slower
    than S3.
    """

    def __init__(
        self,
        client: Any,
        where: Mapping[str, str],
        *,
        part_bytes: int,
        num_threads: int,
        retry: Retry,
        put: Callable[[bytes], object],
        conditions: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._client, self._where, self._retry, self._put = client, dict(where), retry, put
        self._conditions = conditions
        self._mark = uuid.uuid4().hex
        self._part_bytes = part_bytes
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="upload")
        self._free = threading.Semaphore(num_threads)
        """Limit on parts in memory, in addition to the one being filled."""
        self._upload_id: str | None = None
        self._part = bytearray()
        self._sent: list[Future[dict[str, Any]]] = []
        self._size = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def write(self, data: Any) -> int:
        """Write all of ``data``; raise the error of an earlier part, if any."""
        view = memoryview(data).cast("B")
        rest = view
        while len(rest):
            taken = rest[: self._part_bytes - len(self._part)]
            self._part += taken
            rest = rest[len(taken) :]
            if len(self._part) == self._part_bytes:
                self._send_part()
        self._size += len(view)
        return len(view)

    def finish(self) -> None:
        """Wait for every part and create the object."""
        if self._upload_id is None:
            self._put(bytes(self._part))
        else:
            if self._part:
                self._send_part()
            parts = [future.result() for future in self._sent]
            self._retry(lambda: self._complete(parts))
        self._pool.shutdown()

    def abort(self) -> None:
        """Discard every part; best effort, since the bucket's lifecycle rule removes the rest."""
        self._pool.shutdown(cancel_futures=True)
        if self._upload_id is not None:
            with suppress(Exception):
                self._client.abort_multipart_upload(**self._where, UploadId=self._upload_id)

    def _send_part(self) -> None:
        if self._upload_id is None:
            response = self._retry(
                lambda: self._client.create_multipart_upload(
                    **self._where, ChecksumAlgorithm="CRC32", Metadata={_MARK: self._mark}
                )
            )
            self._upload_id = response["UploadId"]
        part, self._part = self._part, bytearray()
        self._free.acquire()
        for future in self._sent:
            if future.done():
                future.result()
        self._sent.append(self._pool.submit(self._upload_part, len(self._sent) + 1, part))

    def _upload_part(self, number: int, part: bytearray) -> dict[str, Any]:
        try:
            response = self._retry(
                lambda: self._client.upload_part(
                    **self._where,
                    UploadId=self._upload_id,
                    PartNumber=number,
                    Body=part,
                    ChecksumAlgorithm="CRC32",
                )
            )
        finally:
            self._free.release()
        known = {"ETag": response["ETag"], "PartNumber": number}
        if "ChecksumCRC32" in response:  # not every emulator returns it
            known["ChecksumCRC32"] = response["ChecksumCRC32"]
        return known

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        try:
            self._client.complete_multipart_upload(
                **self._where,
                UploadId=self._upload_id,
                MultipartUpload={"Parts": parts},
                **self._conditions,
            )
        except Exception as error:
            # If the response to an earlier attempt was lost, the object already exists.
            if (
                code_of(error) not in ("NoSuchUpload", *REFUSED_CONDITION)
                or not self._object_exists()
            ):
                raise

    def _object_exists(self) -> bool:
        try:
            response = self._client.head_object(**self._where)
            return bool(response["Metadata"].get(_MARK) == self._mark)
        except Exception:
            return False
