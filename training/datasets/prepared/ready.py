"""Datasets that prepare makes: files to train on as they are, with a manifest written last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.datasets.manifest import DatasetError, sha256_of
from training.storage import ObjectMissing, Objects
from trainium_catalogue.contract import DATASET_MANIFEST

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a dataset."""

    name: str
    samples: int
    """Sequences or images in it."""
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A dataset's manifest."""

    kind: str
    """``bert`` or ``images``."""
    source: Mapping[str, str]
    """What it was made from; the same source gives the same files."""
    facts: Mapping[str, Any]
    """What a workload has to know of it; the names depend on the kind."""
    shards: tuple[DataFile, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Everything that a node needs of it."""
        return self.shards

    @property
    def samples(self) -> int:
        """Of all files."""
        return sum(file.samples for file in self.shards)

    @property
    def fingerprint(self) -> str:
        """The same for equal files under equal names: 64 hexadecimal digits."""
        sums = "\n".join(f"{file.name} {file.sha256}" for file in self.shards)
        return hashlib.sha256(sums.encode()).hexdigest()

    def fact(self, name: str) -> Any:
        """One of ``facts``; ``DatasetError`` where the manifest does not say it."""
        try:
            return self.facts[name]
        except KeyError:
            raise DatasetError(
                f"the dataset's {DATASET_MANIFEST} says nothing of {name}, which every dataset of "
                f"kind {self.kind} has; submit prepare again"
            ) from None

    def to_json(self) -> bytes:
        """Equal manifests give equal bytes."""
        document = {
            "schema": SCHEMA,
            "kind": self.kind,
            **self.facts,
            "source": dict(self.source),
            "shards": [asdict(file) for file in self.shards],
        }
        return f"{json.dumps(document, indent=1)}\n".encode()

    @staticmethod
    def from_json(data: bytes, *, name: str, kind: str) -> Ready:
        """Read a manifest of that kind; ``DatasetError`` says what ``name`` is instead."""
        try:
            document: dict[str, Any] = json.loads(data)
            found, schema = document.pop("kind", "packed"), document.pop("schema")
            if found != kind or schema != SCHEMA:
                raise DatasetError(
                    f"{name} is a dataset of kind {found}, schema {schema}, and this workload "
                    f"trains on kind {kind}, schema {SCHEMA}; submit with another --dataset"
                )
            source = document.pop("source")
            shards = tuple(DataFile(**file) for file in document.pop("shards"))
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DatasetError(
                f"{name} is no manifest of a dataset ({type(error).__name__}: {error}); submit "
                "prepare again"
            ) from None
        ready = Ready(kind=kind, source=source, facts=document, shards=shards)
        if not ready.samples:
            raise DatasetError(f"{name} is a dataset without a sample; submit prepare again")
        return ready


def refuse_other(objects: Objects, *, kind: str) -> None:
    """Raise ``DatasetError`` where a dataset of another kind has this place."""
    try:
        document = json.loads(objects.get(DATASET_MANIFEST))
    except (ObjectMissing, ValueError):
        return
    found = document.get("kind", "packed") if isinstance(document, dict) else kind
    if found != kind:
        raise DatasetError(
            f"{objects.uri} holds a dataset of kind {found}, and this job would write one of kind "
            f"{kind} over it; delete that first, or give the new one another name"
        )


def find_complete(objects: Objects, source: Mapping[str, str], *, kind: str) -> Ready | None:
    """The dataset that is there already, if it is of ``source`` and whole.

    Otherwise there is none from here on: its manifest goes, because its files will be replaced.
    """
    refuse_other(objects, kind=kind)
    try:
        found = Ready.from_json(objects.get(DATASET_MANIFEST), name=objects.uri, kind=kind)
    except ObjectMissing:
        return None
    except DatasetError:
        found = None
    if found is not None and dict(found.source) == dict(source):
        sizes = {info.key: info.size for info in objects.list()}
        if all(sizes.get(file.name) == file.bytes for file in found.shards):
            print(
                f"prepare: {objects.uri} was complete already: {found.samples:,} samples",
                flush=True,
            )
            return found
    objects.delete([DATASET_MANIFEST])
    return None


def store(
    objects: Objects, path: Path, *, samples: int, on_bytes: Callable[[int], None]
) -> DataFile:
    """Upload a file under its own name and remove it here."""
    file = DataFile(
        name=path.name, samples=samples, bytes=path.stat().st_size, sha256=sha256_of(path)
    )
    objects.put_file(file.name, path, on_bytes=on_bytes)
    path.unlink()
    return file


def finish(objects: Objects, dataset: Ready) -> None:
    """Declare the dataset complete, and remove what earlier ones have left."""
    known = {file.name for file in dataset.shards} | {DATASET_MANIFEST}
    objects.put(DATASET_MANIFEST, dataset.to_json())
    strays = [info.key for info in objects.list() if info.key not in known]
    if strays:
        objects.delete(strays)
    print(
        f"prepare: {objects.uri} is complete: {dataset.samples:,} samples in "
        f"{len(dataset.shards)} files",
        flush=True,
    )
