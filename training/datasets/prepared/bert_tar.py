"""BERT sequences from Wikipedia: shards streamed from the tar file of AWS's sample.

At most one shard is on disk at a time, and an interrupted job resumes with the missing shards.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from training.datasets.manifest import (
    DataFile,
    DatasetError,
    DatasetManifest,
    find_complete,
    finish_dataset,
    store_file,
)
from training.datasets.prepared.bert_shards import KIND, SHARD_NAME, check_shard, facts
from training.datasets.prepared.web import TIMEOUT_S, with_retries
from training.storage import ObjectMissing, Objects
from training.storage.object_file import open_object
from trainium_catalogue.typed_json import read_object, typed

URL = (
    "https://neuron-s3.s3.us-west-2.amazonaws.com/training_datasets/"
    "bert_pretrain_wikicorpus_tokenized_hdf5/"
    "bert_pretrain_wikicorpus_tokenized_hdf5_seqlen128.tar"
)
"""Public, without a published checksum (aws-neuron-samples, dp_bert_hf_pretrain). The manifest
records its S3 ETag, and every range request is conditional on it, so all data is from one file."""
SEQ_LEN, MAX_PREDICTIONS, VOCAB_SIZE = 128, 20, 30522
_MANUAL_REMEDY = "put the shards below datasets/ yourself, with a manifest as in docs/interfaces.md"
_PARTS = "parts/"
_COPY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFile:
    """A file on the web that supports range requests."""

    url: str
    size: int
    """Size in bytes."""
    etag: str

    @property
    def uri(self) -> str:
        """Address for messages."""
        return self.url

    @staticmethod
    def find(url: str) -> WebFile:
        """Look up the file's current version; raise ``DatasetError`` if there is none."""
        response, _ = _request(urllib.request.Request(url, method="HEAD"))
        return WebFile(
            url=url,
            size=int(response.get("Content-Length", "0")),
            etag=response.get("ETag", ""),
        )

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Fetch up to ``length`` bytes from ``start``; raise ``DatasetError`` on a new version."""
        stop = min(start + length, self.size) - 1
        headers = {"Range": f"bytes={start}-{stop}", "If-Match": self.etag}
        _, data = _request(urllib.request.Request(self.url, headers=headers))
        return data


def _request(request: urllib.request.Request) -> tuple[http.client.HTTPMessage, bytes]:
    """Return headers and body."""

    def receive() -> tuple[http.client.HTTPMessage, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return response.headers, response.read()
        except urllib.error.HTTPError as error:
            if error.code != 412:
                raise
            raise DatasetError(
                f"{request.full_url} changed while it was being read; submit prepare again"
            ) from None

    return with_retries(request.full_url, receive, remedy=_MANUAL_REMEDY)


def prepare_bert_tar(
    objects: Objects, scratch: Path, *, report: Callable[[str], None], url: str = URL
) -> DatasetManifest:
    """Validate every shard of the tar and copy it to ``objects``."""
    web = WebFile.find(url)
    source = {"url": url, "bytes": str(web.size), "etag": web.etag}
    if (existing := find_complete(objects, source, kind=KIND)) is not None:
        return existing
    records = _Records(objects, source)
    shards: list[DataFile] = []
    with (
        open_object(web, "", web.size) as stream,
        _open_tar(stream, url) as archive,
    ):
        for member in archive:
            name = Path(member.name).name
            if not member.isfile() or not SHARD_NAME.fullmatch(name):
                continue
            report(f"{name}: byte {member.offset_data:,} of {web.size:,}")
            file = records.find(name)
            if file is None:
                file = _copy_shard(objects, archive, member, scratch / name, report)
                records.add(file)
            shards.append(file)
    if not shards:
        raise DatasetError(
            f"{url} contains no file named *_training_*.hdf5; if the publisher has changed it, "
            f"{_MANUAL_REMEDY}"
        )
    dataset = DatasetManifest(
        kind=KIND,
        source=source,
        facts=facts(
            seq_len=SEQ_LEN,
            max_predictions=MAX_PREDICTIONS,
            vocab_size=VOCAB_SIZE,
            samples=sum(file.samples for file in shards),
        ),
        shards=tuple(sorted(shards, key=lambda file: file.name)),
    )
    finish_dataset(objects, dataset)
    return dataset


def _open_tar(stream: object, url: str) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=stream, mode="r:")  # type: ignore[call-overload, no-any-return]
    except tarfile.ReadError as error:
        raise DatasetError(
            f"{url} is not a tar file ({error}); if the publisher has changed it, {_MANUAL_REMEDY}"
        ) from None


def _copy_shard(
    objects: Objects,
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: Path,
    report: Callable[[str], None],
) -> DataFile:
    inside = archive.extractfile(member)
    assert inside is not None  # a regular file
    with inside, path.open("wb") as file:
        while block := inside.read(_COPY_BYTES):
            file.write(block)
            report(f"{path.name}: {file.tell():,} of {member.size:,} bytes")
    samples = check_shard(
        path, seq_len=SEQ_LEN, max_predictions=MAX_PREDICTIONS, vocab_size=VOCAB_SIZE
    )
    return store_file(
        objects, path, samples=samples, on_bytes=lambda count: report(f"uploading {path.name}")
    )


class _Records:
    """Records of shards already stored from the same tar, for resuming an interrupted job."""

    def __init__(self, objects: Objects, source: dict[str, str]) -> None:
        self._objects = objects
        self._source = hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()
        self._sizes = {info.key: info.size for info in objects.list()}

    def find(self, name: str) -> DataFile | None:
        """Return the record of a shard if the shard is stored and from the same tar, else None."""
        if f"{_PARTS}{name}.json" not in self._sizes:
            return None
        try:
            document = read_object(self._objects.get(f"{_PARTS}{name}.json"))
            file = typed(document, DataFile)
        except (ObjectMissing, ValueError):
            return None  # the shard is copied again
        matches = document.get("source") == self._source and file.name == name
        return file if matches and self._sizes.get(name) == file.bytes else None

    def add(self, file: DataFile) -> None:
        """Record a stored shard."""
        document = {"source": self._source, **asdict(file)}
        self._objects.put(f"{_PARTS}{file.name}.json", json.dumps(document).encode())
