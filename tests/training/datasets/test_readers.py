"""Documents from files: every kind, split anywhere, and their errors."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.datasets.manifest import DatasetError
from training.datasets.text.readers import open_parquet, read_documents
from training.datasets.text.sources import (
    Corpus,
    InputFile,
    Part,
    Piece,
    TextFormat,
    cut_into_parts,
    find_corpus,
    share,
)
from training.storage import LocalObjects, StorageAccess
from training.storage.object_file import ObjectFile, open_object


def corpus_at(path: Path) -> Corpus:
    return find_corpus(str(path), StorageAccess(root="/nowhere"))


def parts_of(corpus: Corpus, shard_tokens: int = 2**26) -> tuple[Part, ...]:
    objects = LocalObjects(Path(corpus.uri))

    def row_groups(file: InputFile) -> int:
        with open_object(objects, file.key, file.size) as stream:
            return int(open_parquet(stream, file.key).metadata.num_row_groups)

    return cut_into_parts(corpus, shard_tokens=shard_tokens, row_groups=row_groups)


def pieces_of(parts: tuple[Part, ...]) -> Iterator[Piece]:
    return (piece for part in parts for piece in part.pieces)


def read(path: Path, *, field: str = "text", shard_tokens: int = 2**26) -> list[str]:
    """Read every document at ``path``."""
    corpus = corpus_at(path)
    objects = LocalObjects(Path(corpus.uri))
    return [
        text
        for piece in pieces_of(parts_of(corpus, shard_tokens))
        for text in read_documents(objects, piece, field)
    ]


def lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("\ufeffsecond\nline\n")
    (tmp_path / "a.md").write_text("first")
    (tmp_path / "c.rst.gz").write_bytes(gzip.compress("drittes \u00fc".encode()))

    assert read(tmp_path) == ["first", "second\nline\n", "drittes \u00fc"]


def test_a_line_of_jsonl_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines("one", "") + "\n  \n" + lines("two\n")[:-1])
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(lines("three").encode()))

    assert read(tmp_path) == ["one", "", "two\n", "three"]


def test_a_row_of_parquet_is_one_document(tmp_path: Path) -> None:
    table = pyarrow.table({"id": range(5), "body": [f"row {n}" for n in range(5)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)

    assert read(tmp_path, field="body") == [f"row {n}" for n in range(5)]
    assert read(tmp_path / "a.parquet", field="body", shard_tokens=1) == [
        f"row {n}" for n in range(5)
    ]


def test_markers_and_hidden_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    for name in ("_SUCCESS", ".DS_Store", "manifest.json", "_temporary.txt"):
        (tmp_path / name).write_text("no text")

    assert read(tmp_path) == ["text"]


@given(
    texts=st.lists(st.text(alphabet="ab\u00e9\n", max_size=20), min_size=1, max_size=30),
    shard_tokens=st.integers(min_value=1, max_value=60),
)
@settings(max_examples=60)
def test_a_file_split_anywhere_yields_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard_tokens: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    path.write_text(lines(*texts))

    assert read(path, shard_tokens=shard_tokens) == texts


@given(
    sizes=st.lists(st.integers(min_value=0, max_value=500), min_size=1, max_size=30),
    shard_tokens=st.integers(min_value=1, max_value=200),
    children=st.integers(min_value=1, max_value=9),
)
def test_array_children_cover_every_part_exactly_once(
    sizes: list[int], shard_tokens: int, children: int
) -> None:
    listed = [
        InputFile(key=f"{n:03d}.jsonl", size=size, etag="", kind=TextFormat.JSONL, compressed=False)
        for n, size in enumerate(sizes)
    ]
    corpus = Corpus(uri="/", files=tuple(listed))
    parts = cut_into_parts(corpus, shard_tokens=shard_tokens, row_groups=lambda file: 1)

    shares = [share(parts, index=index, size=children) for index in range(children)]

    assert sorted(part.number for s in shares for part in s) == list(range(len(parts)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    covered = [(p.file.key, p.start, p.stop) for p in pieces_of(parts)]
    assert covered == sorted(covered)
    for file in listed:
        stretches = [(start, stop) for key, start, stop in covered if key == file.key]
        assert stretches[0][0] == 0 and stretches[-1][1] >= file.size
        assert all(a[1] == b[0] for a, b in itertools.pairwise(stretches))


def test_an_object_is_read_in_blocks_and_is_seekable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.storage.object_file._BLOCK_BYTES", 7)
    data = bytes(range(100))
    (tmp_path / "a").write_bytes(data)

    with open_object(LocalObjects(tmp_path), "a", 100) as file:
        assert file.read() == data
        assert file.seek(-10, 2) == 90
        assert file.read(4) == data[90:94]
        file.seek(3)
        assert file.read(5) == data[3:8]


def test_an_object_that_shrinks_while_being_read_is_detected(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"short")

    with pytest.raises(EOFError, match="ends at byte 5, not 50: it was changed"):
        ObjectFile(LocalObjects(tmp_path), "a", 50).readall()


def test_input_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no input at /no/such; check the spelling"):
        find_corpus("/no/such", StorageAccess(root=str(tmp_path)))
    with pytest.raises(DatasetError, match="no input at mine; run jobs submit prepare --dataset"):
        find_corpus("mine", StorageAccess(root=str(tmp_path)))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"not json\n", r"not JSON \(Expecting value"),
        (b'["text"]\n', "a JSON list, not an object"),
        (b'{"title": "x", "body": "y"}\n', "no field 'text'; fields: 'title', 'body'; choose"),
        (
            b'{"prompt": "x", "response": "y"}\n',
            "no field 'text'; fields: 'prompt', 'response'; pack examples with "
            "--response-seq-len, or choose one with --text-field",
        ),
        (b"{}\n", "no field 'text'; fields: none; choose one with --text-field"),
        (b'{"text": 3}\n', "field 'text' is of type int, not text"),
        (b'{"text": "\xff"}\n', "not UTF-8 text"),
        (b'{"text": "\\ud800"}\n', r"field 'text' has an unpaired surrogate, U\+D800"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(
    tmp_path: Path, bad: bytes, message: str
) -> None:
    before = lines(*[f"document {n}" for n in range(40)]).encode() + b"\n"
    (tmp_path / "a.jsonl").write_bytes(before + bad + lines("after").encode())

    with pytest.raises(DatasetError, match=rf"a.jsonl, line 42: {message}"):
        read(tmp_path, shard_tokens=20)


def test_parquet_without_pyarrow_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_text("a table")
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(
        DatasetError, match=r"a.parquet is a Parquet file, but pyarrow is not installed"
    ):
        read(tmp_path / "a.parquet")


def parquet(**columns: list[Any]) -> bytes:
    data = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), data)
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("paper.pdf", b"text", "is not in a supported format; supported suffixes are"),
        ("data.parquet.gz", b"text", "is not in a supported format"),
        ("a.txt", b"", "is empty: 1 file with 0 bytes"),
        ("a.txt", b"abc\xff\xfe", "a.txt is not UTF-8 text: byte 3 is 0xff; convert it"),
        ("a.txt.gz", b"plain", "a.txt.gz is not a complete gzip file"),
        (
            "a.jsonl.gz",
            gzip.compress(lines(*map(str, range(1000))).encode(), mtime=0)[:-20],
            "a.jsonl.gz is not a complete gzip file",
        ),
        (
            "a.jsonl.gz",
            gzip.compress(lines("one", "two").encode() + b"{\n", mtime=0),
            "a.jsonl.gz, line 3: not JSON",
        ),
        ("a.parquet", b"no table", "a.parquet is not a Parquet file"),
        ("a.parquet", parquet(body=["x"]), "a.parquet has no column 'text'; columns: body"),
        ("a.parquet", parquet(text=[1]), "column 'text' of .*a.parquet holds int64, not text"),
        (
            "a.parquet",
            parquet(text=["a", None]),
            "row 2, counting from the start of row group 0, has no 'text'",
        ),
    ],
)
def test_an_unreadable_file_is_refused_with_its_reason(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)

    with pytest.raises(DatasetError, match=message):
        read(tmp_path)
