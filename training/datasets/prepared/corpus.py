"""Writes a corpus into the bucket: documents as compressed JSONL, a manifest last."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from training.storage import ObjectMissing, Objects

CORPUS_MANIFEST = "manifest.json"
_FILE_CHARACTERS = 16_000_000
"""Of one file; wikicorpus makes some two hundred, enough to share among processes and jobs."""
_COMPRESSION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """One file of a corpus."""

    name: str
    documents: int
    bytes: int
    sha256: str


def write_corpus(
    objects: Objects,
    documents: Iterable[Mapping[str, str]],
    scratch: Path,
    *,
    source: Mapping[str, str],
    report: Callable[[str], None],
) -> int:
    """Store ``documents``, each an object with a ``text``; returns how many there were.

    The same documents give the same bytes. Nothing counts before the manifest, and what an
    earlier attempt has left under the same names is written over.
    """
    objects.delete([CORPUS_MANIFEST])
    files: list[CorpusFile] = []
    lines: list[str] = []
    total = characters = 0

    def flush() -> None:
        nonlocal characters
        if lines:
            files.append(_store(objects, scratch, len(files), lines))
            lines.clear()
            characters = 0

    for document in documents:
        line = json.dumps(document, ensure_ascii=False) + "\n"
        lines.append(line)
        total, characters = total + 1, characters + len(line)
        report(f"{total:,} documents")
        if characters >= _FILE_CHARACTERS:
            flush()
    flush()
    manifest = {
        "schema": 1,
        "source": dict(source),
        "documents": total,
        "files": [
            {"name": f.name, "documents": f.documents, "bytes": f.bytes, "sha256": f.sha256}
            for f in files
        ],
    }
    known = {file.name for file in files} | {CORPUS_MANIFEST}
    strays = [info.key for info in objects.list() if info.key not in known]
    if strays:
        objects.delete(strays)
    objects.put(CORPUS_MANIFEST, f"{json.dumps(manifest, indent=1)}\n".encode())
    return total


def count_complete(objects: Objects, source: Mapping[str, str]) -> int | None:
    """Documents of the corpus that is there already, if it is of ``source`` and whole."""
    try:
        manifest = json.loads(objects.get(CORPUS_MANIFEST))
    except ObjectMissing:
        return None
    sizes = {info.key: info.size for info in objects.list()}
    whole = all(sizes.get(file["name"]) == file["bytes"] for file in manifest["files"])
    return int(manifest["documents"]) if whole and manifest["source"] == dict(source) else None


def _store(objects: Objects, scratch: Path, number: int, lines: list[str]) -> CorpusFile:
    name = f"part-{number:05d}.jsonl.gz"
    # Without a time of writing, so that equal documents give equal bytes.
    data = gzip.compress("".join(lines).encode(), compresslevel=_COMPRESSION, mtime=0)
    path = scratch / name
    path.write_bytes(data)
    objects.put_file(name, path)
    path.unlink()
    return CorpusFile(
        name=name,
        documents=len(lines),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
