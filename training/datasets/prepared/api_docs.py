"""AWS's API documentation out of the installed botocore: a corpus that needs no network."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_BLOCKS = frozenset({"p", "li", "ul", "ol", "dl", "dt", "dd", "pre", "note", "div", "br", "tr"})
"""Tags that begin a line."""


def documents(folder: Path | None = None) -> Iterator[Mapping[str, str]]:
    """One document for each service, operation and shape, of each service's newest API version.

    ``folder`` is botocore's ``data`` folder, of the installed package by default. The order is
    that of names.
    """
    for model in _newest_models(folder or _installed()):
        service = model.parent.parent.name
        document = _read(model)
        yield from _document(f"{service}", {"documentation": document.get("documentation")})
        for section in ("operations", "shapes"):
            for name, entry in sorted(document.get(section, {}).items()):
                yield from _document(f"{service} {name}", entry)


def _installed() -> Path:
    spec = find_spec("botocore")
    assert spec is not None and spec.origin is not None  # boto3 brings it
    return Path(spec.origin).parent / "data"


def _newest_models(folder: Path) -> Iterator[Path]:
    for service in sorted(path for path in folder.iterdir() if path.is_dir()):
        # Folders are called by the date of the API's version.
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
    """Documentation strings of an entry and of everything in it, with the name they belong to."""
    own = entry.get("documentation")
    if isinstance(own, str):
        yield name, own
    for key, value in entry.items():
        if isinstance(value, Mapping):
            yield from _documentation(value, key)


def to_text(html: str) -> str:
    """The words of an HTML fragment, a line for each block."""
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
        # Line ends in the source are spaces; those of blocks are written above.
        self.pieces.append(data.replace("\n", " "))
