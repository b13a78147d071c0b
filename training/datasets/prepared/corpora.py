"""Write known corpora to the bucket: compressed JSONL files, then a manifest."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from training.datasets.prepared.web import Archive
from training.storage import ObjectMissing, Objects
from trainium_catalogue.typed_json import read_json

CORPUS_MANIFEST = "manifest.json"
_FILE_CHARACTERS = 16_000_000
"""Characters per file; wikicorpus yields about 200 files, enough to process in parallel."""
_COMPRESSION = 6
_DOCUMENT = re.compile(r'.+id="(?P<id>[^"]+)".+title="(?P<title>[^"]+)"')
RAW_ENGLISH = Archive(
    url="https://www.cs.upc.edu/~nlp/wikicorpus/raw.en.tgz",
    bytes=1_346_378_932,
    sha256="cab102a59f7e5bfb4ac832c15210bd22840bbed5508899f2dee04b857830e858",
)
"""Wikicorpus, 1,359,146 documents. Size and checksum are from Hugging Face's ``datasets`` 1.x
(``datasets/wikicorpus/dataset_infos.json``, configuration ``raw_en``); the documentation of
DataDeps.jl has the same checksum."""
_BLOCKS = frozenset({"p", "li", "ul", "ol", "dl", "dt", "dd", "pre", "note", "div", "br", "tr"})
"""Tags that start a new line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """A file of a corpus."""

    name: str
    documents: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusManifest:
    """A complete corpus."""

    source: Mapping[str, str]
    documents: int
    files: tuple[CorpusFile, ...]


def write_corpus(
    objects: Objects,
    documents: Iterable[Mapping[str, str]],
    scratch: Path,
    *,
    source: Mapping[str, str],
    report: Callable[[str], None],
) -> int:
    """Store ``documents``, each with a ``text``; return their number.

    The same documents give the same bytes. A corpus is valid only with its manifest; files of the
    same names from an earlier attempt are overwritten.
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
    manifest = CorpusManifest(source=dict(source), documents=total, files=tuple(files))
    known = {file.name for file in files} | {CORPUS_MANIFEST}
    objects.delete(info.key for info in objects.list() if info.key not in known)
    content: dict[str, Any] = {"schema": 1, **asdict(manifest)}
    objects.put(CORPUS_MANIFEST, f"{json.dumps(content, indent=1)}\n".encode())
    return total


def count_complete(objects: Objects, source: Mapping[str, str]) -> int | None:
    """Return the number of documents of a complete corpus made from ``source``; otherwise None."""
    try:
        manifest = read_json(objects.get(CORPUS_MANIFEST), CorpusManifest)
    except (ObjectMissing, ValueError):
        return None
    sizes = {info.key: info.size for info in objects.list()}
    is_complete = all(sizes.get(file.name) == file.bytes for file in manifest.files)
    return manifest.documents if is_complete and manifest.source == dict(source) else None


def _store(objects: Objects, scratch: Path, number: int, lines: list[str]) -> CorpusFile:
    name = f"part-{number:05d}.jsonl.gz"
    # No timestamp, for reproducible bytes.
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


def wikicorpus_documents(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield every non-empty article, in the archive's order.

    The files are Latin-1. An article is a line ``<doc id="..." title="..." ...>``, the text, a line
    ``ENDOFARTICLE.`` and a line ``</doc>``.
    """
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is None:
                continue  # a folder
            article: dict[str, str] = {}
            rows: list[str] = []
            for data in file:
                row = data.decode("latin-1")
                if row.startswith("<doc id"):
                    match = _DOCUMENT.match(row)
                    article, rows = dict(match.groupdict()) if match else {}, []
                elif row.startswith("ENDOFARTICLE"):
                    text = "".join(rows).strip()
                    if text:
                        yield {**article, "text": text}
                    rows = []
                elif not row.startswith("</doc>"):
                    rows.append(row)


def api_documents(folder: Path | None = None) -> Iterator[Mapping[str, str]]:
    """Yield a document for each service, operation and shape of the newest API versions, by name.

    ``folder`` is botocore's ``data`` folder, by default the installed package's.
    """
    for model in _newest_models(folder or _botocore_data()):
        service = model.parent.parent.name
        document = _read(model)
        yield from _document(service, {"documentation": document.get("documentation")})
        for section in ("operations", "shapes"):
            for name, entry in sorted(document.get(section, {}).items()):
                yield from _document(f"{service} {name}", entry)


def _botocore_data() -> Path:
    spec = find_spec("botocore")
    assert spec is not None and spec.origin is not None  # a dependency of boto3
    return Path(spec.origin).parent / "data"


def _newest_models(folder: Path) -> Iterator[Path]:
    for service in sorted(path for path in folder.iterdir() if path.is_dir()):
        # Folders are named after the date of the API version.
        models = sorted(service.glob("*/service-2.json*"))
        if models:
            yield models[-1]


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document


def _document(title: str, entry: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    sections = [
        f"{name}: {text}" if name else text
        for name, html in _documentation(entry)
        if (text := to_text(html))
    ]
    if sections:
        yield {"title": title, "text": f"{title}\n\n" + "\n\n".join(sections)}


def _documentation(entry: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and documentation of an entry and, recursively, of everything below it."""
    own = entry.get("documentation")
    if isinstance(own, str):
        yield name, own
    for key, value in entry.items():
        if isinstance(value, Mapping):
            yield from _documentation(value, key)


def to_text(html: str) -> str:
    """Extract the text of an HTML fragment, one line per block."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).split("\n"))
    return "\n".join(line for line in lines if line)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        # A line break in HTML is a space; the tags in ``_BLOCKS`` start new lines.
        self.pieces.append(data.replace("\n", " "))
