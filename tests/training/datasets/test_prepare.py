"""Known corpora: exactly the pinned file or none, and unchanged documents."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.datasets.conftest import Tokenize
from tests.training.datasets.site import Site, serve
from training.datasets.manifest import DatasetError
from training.datasets.prepared import corpora
from training.datasets.prepared.prepare import prepare
from training.datasets.prepared.web import Archive, fetch
from training.storage import StorageAccess

ARTICLES = {
    "englishText_0_10000": (
        '<doc id="12" title="Anarchism" nonfiltered="1" processed="1" dbindex="10000">\n'
        "Anarchism is a caf\u00e9.\n\nSecond line.\nENDOFARTICLE.\n</doc>\n"
        '<doc id="13" title="Nothing" nonfiltered="2" processed="2" dbindex="10001">\n'
        "\nENDOFARTICLE.\n</doc>\n"
    ),
    "englishText_10000_20000": (
        '<doc id="39" title="Albedo &amp; so" nonfiltered="3" processed="3" dbindex="10002">\n'
        "Albedo.\nENDOFARTICLE.\n</doc>\n"
    ),
}
EXPECTED = [
    {"id": "12", "title": "Anarchism", "text": "Anarchism is a caf\u00e9.\n\nSecond line."},
    {"id": "39", "title": "Albedo &amp; so", "text": "Albedo."},
]


def archive_bytes() -> bytes:
    """Return a small archive in the publisher's form: Latin-1 files in a gzipped tar."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        folder = tarfile.TarInfo("raw.en")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, text in ARTICLES.items():
            content = text.encode("latin-1")
            info = tarfile.TarInfo(f"raw.en/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


PATH = "/raw.en.tgz"


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Serve the archive."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with serve({PATH: archive_bytes()}) as site:
        yield site


def archive_of(publisher: Site) -> Archive:
    """Return the pinned facts of the current archive."""
    data = publisher.files[PATH]
    digest = hashlib.sha256(data).hexdigest()
    return Archive(url=f"{publisher.url}{PATH}", bytes=len(data), sha256=digest)


def prepared(tmp_path: Path, archive: Archive) -> list[dict[str, str]]:
    """Prepare wikicorpus, and return its documents."""
    prepare(
        "wikicorpus",
        StorageAccess(root=str(tmp_path)),
        max_documents=0,
        report=lambda text: None,
        archive=archive,
    )
    found = []
    for path in sorted((tmp_path / "corpora" / "wikicorpus").glob("*.jsonl.gz")):
        found += [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return found


def test_articles_are_extracted_unchanged(tmp_path: Path, publisher: Site) -> None:
    assert prepared(tmp_path, archive_of(publisher)) == EXPECTED


def test_the_manifest_names_the_source_and_every_file(tmp_path: Path, publisher: Site) -> None:
    prepared(tmp_path, archive_of(publisher))

    folder = tmp_path / "corpora" / "wikicorpus"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["documents"] == 2
    assert manifest["source"] == {
        "url": archive_of(publisher).url,
        "sha256": archive_of(publisher).sha256,
    }
    for file in manifest["files"]:
        data = (folder / file["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])


def test_a_complete_corpus_is_not_fetched_again(tmp_path: Path, publisher: Site) -> None:
    prepared(tmp_path, archive_of(publisher))

    assert prepared(tmp_path, archive_of(publisher)) == EXPECTED
    assert len(publisher.ranges) == 1


def test_a_corpus_that_lacks_a_file_is_rebuilt_with_the_same_bytes(
    tmp_path: Path, publisher: Site
) -> None:
    prepared(tmp_path, archive_of(publisher))
    folder = tmp_path / "corpora" / "wikicorpus"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "part-00000.jsonl.gz").unlink()
    (folder / "part-00007.jsonl.gz").write_bytes(b"of an earlier, larger one")

    prepared(tmp_path, archive_of(publisher))

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_unfinished_corpus_cannot_be_tokenized(
    tmp_path: Path, publisher: Site, run_tokenize: Tokenize
) -> None:
    prepared(tmp_path / "bucket", archive_of(publisher))
    assert run_tokenize(input="wikicorpus") is not None
    (tmp_path / "bucket" / "corpora" / "wikicorpus" / "manifest.json").unlink()

    with pytest.raises(DatasetError, match=r"wikicorpus is not complete: .* wait for prepare"):
        run_tokenize(input="wikicorpus", dataset="other")


def test_an_unexpected_file_is_refused_and_not_kept(tmp_path: Path, publisher: Site) -> None:
    archive = archive_of(publisher)
    data = bytearray(publisher.files[PATH])
    data[len(data) // 2] ^= 1
    publisher.files[PATH] = bytes(data)

    with pytest.raises(DatasetError, match=r"publisher's file has changed, so nothing was stored"):
        prepared(tmp_path, archive)
    assert list(tmp_path.rglob("*")) == []


def test_an_interrupted_download_resumes_at_its_offset(tmp_path: Path, publisher: Site) -> None:
    publisher.breaks = [100, 50]

    assert prepared(tmp_path, archive_of(publisher)) == EXPECTED
    assert publisher.ranges == [None, "bytes=100-", "bytes=150-"]


def test_a_failing_server_is_retried(tmp_path: Path, publisher: Site) -> None:
    publisher.statuses = [503, 500]

    assert prepared(tmp_path, archive_of(publisher)) == EXPECTED


def test_a_moved_file_is_reported_at_once(tmp_path: Path, publisher: Site) -> None:
    publisher.statuses = [404] * 5

    with pytest.raises(DatasetError, match="returned 404 Not Found; if it has moved, download"):
        prepared(tmp_path, archive_of(publisher))
    assert len(publisher.ranges) == 1


def test_an_unreachable_server_is_a_network_error(tmp_path: Path, publisher: Site) -> None:
    archive = Archive(url="http://127.0.0.1:9/raw.en.tgz", bytes=10, sha256="0" * 64)

    says = r"cannot be fetched: .* needs internet access"
    with pytest.raises(ConnectionError, match=says) as raised:
        prepared(tmp_path, archive)

    # One traceback in the log, not three.
    assert raised.value.__suppress_context__


def test_a_disk_too_small_for_the_archive_is_reported_first(tmp_path: Path) -> None:
    archive = Archive(url="http://127.0.0.1:9/raw.en.tgz", bytes=2**60, sha256="0" * 64)

    with pytest.raises(DatasetError, match=r"give the instance a larger volume"):
        fetch(archive, tmp_path / "archive", lambda text: None)


def test_api_documentation_is_text_without_markup(tmp_path: Path) -> None:
    for version, operation in (("2019-01-01", "Old"), ("2024-05-06", "New")):
        folder = tmp_path / "queue" / version
        folder.mkdir(parents=True)
        model = {
            "documentation": "<p>A queue &amp; its <code>jobs</code>.</p>",
            "operations": {operation: {"documentation": "<p>First.</p><ul><li>a\n b</li></ul>"}},
            "shapes": {
                "Job": {
                    "type": "structure",
                    "members": {"name": {"documentation": "<p>Its name.</p>"}, "id": {}},
                },
                "Bare": {"type": "string"},
            },
        }
        (folder / "service-2.json.gz").write_bytes(gzip.compress(json.dumps(model).encode()))

    assert [document["text"] for document in corpora.api_documents(tmp_path)] == [
        "queue\n\nA queue & its jobs.",
        "queue New\n\nFirst.\na b",
        "queue Job\n\nname: Its name.",
    ]


def test_api_documentation_comes_from_the_installed_package(
    tmp_path: Path, run_tokenize: Tokenize
) -> None:
    place = StorageAccess(root=str(tmp_path / "bucket"))
    total = prepare("aws-api-docs", place, max_documents=50, report=lambda text: None)

    manifest = run_tokenize(input="aws-api-docs")

    assert total == 50
    assert manifest is not None and manifest.documents == 50
