"""Wikicorpus, English: where it is published, and how its files are parsed."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from training.datasets.prepared.web import Archive

_DOCUMENT = re.compile(r'.+id="(?P<id>[^"]+)".+title="(?P<title>[^"]+)"')

RAW_ENGLISH = Archive(
    url="https://www.cs.upc.edu/~nlp/wikicorpus/raw.en.tgz",
    bytes=1_346_378_932,
    sha256="cab102a59f7e5bfb4ac832c15210bd22840bbed5508899f2dee04b857830e858",
)
"""As Hugging Face's ``datasets`` 1.x recorded it in ``datasets/wikicorpus/dataset_infos.json``,
configuration ``raw_en``; the documentation of DataDeps.jl has the same sum. 1,359,146 documents."""


def documents(path: Path) -> Iterator[Mapping[str, str]]:
    """Every article of the archive that has text, in the archive's order.

    The files hold Latin-1 text: a line ``<doc id="..." title="..." ...>``, the article, a line
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
                    found = _DOCUMENT.match(row)
                    article, rows = dict(found.groupdict()) if found else {}, []
                elif row.startswith("ENDOFARTICLE"):
                    text = "".join(rows).strip()
                    if text:
                        yield {**article, "text": text}
                    rows = []
                elif not row.startswith("</doc>"):
                    rows.append(row)
