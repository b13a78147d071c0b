"""Handwritten digits: exactly the pinned files, or scikit-learn's."""

from __future__ import annotations

import base64
import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.training.datasets.conftest import quiet
from tests.training.datasets.site import serve
from training.datasets.manifest import DatasetError, DatasetManifest
from training.datasets.prepared import images
from training.datasets.prepared.images import (
    SPLITS,
    images_name,
    labels_name,
    prepare_digits,
    prepare_mnist,
    read_idx,
    write_idx,
)
from training.datasets.prepared.prepare import prepare_dataset
from training.datasets.prepared.web import Archive
from training.storage import LocalObjects, StorageAccess


def published(folder: Path) -> dict[str, bytes]:
    """Write MNIST's four files, with two training images and one test image."""
    files = {}
    for split, count in zip(SPLITS, (2, 1), strict=True):
        for name, shape in ((images_name(split), (count, 28, 28)), (labels_name(split), (count,))):
            write_idx(folder / name, np.arange(np.prod(shape), dtype=np.uint8).reshape(shape))
            files[f"/{name}.gz"] = gzip.compress((folder / name).read_bytes())
    return files


def archives(url: str, files: dict[str, bytes]) -> tuple[Archive, ...]:
    return tuple(
        Archive(url=f"{url}{path}", bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    )


def test_mnist_arrives_unpacked_with_the_workloads_metadata(tmp_path: Path) -> None:
    files = published(tmp_path)
    with serve(files) as site:
        made = archives(site.url, files)
        found = prepare_mnist(LocalObjects(tmp_path / "set"), tmp_path, report=quiet, archives=made)
        sent = site.sent
        again = prepare_mnist(LocalObjects(tmp_path / "set"), tmp_path, report=quiet, archives=made)

        assert (site.sent, again) == (sent, found)
    assert found.facts == {"epochs": 4, "accuracy": [0.92, 0.99]}
    assert read_idx(tmp_path / "set" / images_name("train")).shape == (2, 28, 28)
    assert found.samples == 3
    (kept,) = {path.name for path in (tmp_path / "set").iterdir()} - {
        file.name for file in found.shards
    }
    assert kept == "manifest.json"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DatasetManifest]:
    folder = tmp_path_factory.mktemp("digits")
    return folder / "set", prepare_digits(LocalObjects(folder / "set"), folder, report=quiet)


def test_scikit_learns_digits_have_mnists_shape(digits: tuple[Path, DatasetManifest]) -> None:
    folder, dataset = digits
    train, test = (read_idx(folder / images_name(split)) for split in SPLITS)
    labels = np.concatenate([read_idx(folder / labels_name(split)) for split in SPLITS])

    assert (len(train) + len(test), train.shape[1:]) == (1797, (28, 28))
    assert dataset.samples == len(labels) == 1797
    assert set(labels) == set(range(10))
    assert train.max() == 255


def test_no_image_of_the_test_is_trained_on(digits: tuple[Path, DatasetManifest]) -> None:
    folder, _ = digits
    train, test = (
        {image.tobytes() for image in read_idx(folder / images_name(split))} for split in SPLITS
    )

    assert not train & test


def test_the_digits_equal_scikit_learns_byte_for_byte() -> None:
    data = Path(images.__file__).with_name("digits.csv.gz").read_bytes()

    # From the RECORD of scikit-learn's wheel, here of 1.9.1.
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    assert digest == "CfZubeve4s0rWuWeDWq7tz_CsOAYXS4ZV-nrtR4jqiI="


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\0\x08\x01\0\0\0\x09ab", b"\0\0\x0d\x01\0\0\0\x01a"],
    ids=["empty", "short", "type"],
)
def test_a_file_that_is_not_idx_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)

    with pytest.raises(DatasetError, match="file is not an idx file of bytes"):
        read_idx(tmp_path / "file")


def test_a_dataset_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/manifest.json").write_text('{"schema": 1, "num_tokens": 5}')
    (tmp_path / "set/shard-00000.bin").write_bytes(b"words")

    with pytest.raises(DatasetError, match=r"holds a dataset of kind packed, and this job would o"):
        prepare_digits(LocalObjects(tmp_path / "set"), tmp_path, report=quiet)
    assert {path.name for path in (tmp_path / "set").iterdir()} == {
        "manifest.json", "shard-00000.bin",
    }  # fmt: skip


def test_a_dataset_is_fetched_completely_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="--max-documents 5: dataset digits can only be fetched"):
        prepare_dataset("digits", StorageAccess(root=str(tmp_path)), max_documents=5, report=quiet)


def test_an_incomplete_manifest_is_refused() -> None:
    manifest = DatasetManifest(kind="images", source={}, facts={"epochs": 4}, shards=())

    with pytest.raises(DatasetError, match=r"manifest.json has no accuracy, which every"):
        manifest.fact("accuracy")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"schema": 1, "tokens": 5}', "is a dataset of kind packed, schema 1, but this workload"),
        (b'{"schema": 9, "kind": "images"}', "is a dataset of kind images, schema 9"),
        (
            b'{"schema": 1, "kind": "images", "source": {}, "shards": []}',
            "without samples; submit",
        ),
        (b"half of a {", "is not the manifest of a dataset"),
    ],
    ids=["packed", "schema", "empty", "half"],
)
def test_a_manifest_of_something_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DatasetError, match=reason):
        DatasetManifest.from_json(data, name="set", kind="images")
