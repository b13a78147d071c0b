"""Handwritten digits in MNIST's file format: downloaded, or made from a small bundled file.

The format is idx: two zero bytes, the element type, the number of dimensions, each dimension as a
big-endian 32-bit number, then the elements (yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.datasets.manifest import (
    DatasetError,
    DatasetManifest,
    find_complete,
    finish_dataset,
    store_file,
)
from training.datasets.prepared.web import Archive, fetch
from training.storage import Objects

Pixels = NDArray[np.uint8]

KIND = "images"
SPLITS = ("train", "t10k")
_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"
"""PyTorch's mirror, which torchvision also uses: the author's site blocks scripts."""
MNIST = (
    Archive(
        url=f"{_MIRROR}/train-images-idx3-ubyte.gz",
        bytes=9_912_422,
        sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    Archive(
        url=f"{_MIRROR}/train-labels-idx1-ubyte.gz",
        bytes=28_881,
        sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    Archive(
        url=f"{_MIRROR}/t10k-images-idx3-ubyte.gz",
        bytes=1_648_877,
        sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    Archive(
        url=f"{_MIRROR}/t10k-labels-idx1-ubyte.gz",
        bytes=4_542,
        sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
"""Checksums are from TensorFlow Datasets (``url_checksums/mnist.txt``)."""
_MNIST_FACTS = {"epochs": 4, "accuracy": [0.92, 0.99]}
"""Epochs as in aws-neuron-samples' mnist_mlp, whose eval.py requires an accuracy above 0.92."""
_DIGITS = Path(__file__).with_name("digits.csv.gz")
"""A copy of scikit-learn's file (BSD-3-Clause): the test set of UCI's Optical Recognition of
Handwritten Digits (E. Alpaydin and C. Kaynak, CC BY 4.0). Each line is an image of 8 x 8 pixels
from 0 to 16, and its digit."""
_DIGITS_SOURCE = {"package": "scikit-learn", "version": "1.9.1"}
_DIGITS_FACTS = {"epochs": 40, "accuracy": [0.88, 0.99]}
"""Fewer images need more epochs; measured with 1, 2 and 4 workers."""
_TEST_EVERY = 5
"""Every fifth image of the small file, which is unordered, is a test image."""


def images_name(split: str) -> str:
    """Return the name of a split's image file."""
    return f"{split}-images-idx3-ubyte"


def labels_name(split: str) -> str:
    """Return the name of a split's label file."""
    return f"{split}-labels-idx1-ubyte"


def write_idx(path: Path, values: Pixels) -> None:
    """Write a file of unsigned bytes."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.tobytes())


def read_idx(path: Path) -> Pixels:
    """Read a file of unsigned bytes; raise ``DatasetError`` if it is invalid."""
    data = path.read_bytes()
    try:
        zero, kind, num_dimensions = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{num_dimensions}I", data, 4)
        if (zero, kind) != (0, 8):
            raise ValueError("it has no valid header")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * num_dimensions).reshape(shape)
    except (struct.error, ValueError) as error:
        raise DatasetError(
            f"{path.name} is not an idx file of bytes ({error}); submit prepare again"
        ) from None


def prepare_mnist(
    objects: Objects,
    scratch: Path,
    *,
    report: Callable[[str], None],
    archives: tuple[Archive, ...] = MNIST,
) -> DatasetManifest:
    """Fetch and verify MNIST, and store it uncompressed."""
    source = {archive.url: archive.sha256 for archive in archives}
    if (existing := find_complete(objects, source, kind=KIND)) is not None:
        return existing
    paths = []
    for archive in archives:
        packed = scratch / archive.url.rpartition("/")[2]
        fetch(archive, packed, report)
        path = packed.with_suffix("")
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        paths.append(path)
    return _store(objects, paths, source=source, facts=_MNIST_FACTS, report=report)


def prepare_digits(
    objects: Objects, scratch: Path, *, report: Callable[[str], None]
) -> DatasetManifest:
    """Create the same files from scikit-learn's digits, upscaled from 8 x 8 pixels."""
    source = _DIGITS_SOURCE
    if (existing := find_complete(objects, source, kind=KIND)) is not None:
        return existing
    with gzip.open(_DIGITS, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images, digits = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.uint8)
    # Scale 0-16 to 0-255, upscale three times, and add a border of 2 pixels.
    pixels = np.minimum(images * 16, 255).astype(np.uint8)
    pixels = np.pad(pixels.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    is_test = np.arange(len(pixels)) % _TEST_EVERY == 0
    paths = []
    for split, chosen in zip(SPLITS, (~is_test, is_test), strict=True):
        for name, values in (
            (images_name(split), pixels[chosen]),
            (labels_name(split), digits[chosen]),
        ):
            paths.append(scratch / name)
            write_idx(paths[-1], values)
    return _store(objects, paths, source=source, facts=_DIGITS_FACTS, report=report)


def _store(
    objects: Objects,
    paths: list[Path],
    *,
    source: Mapping[str, str],
    facts: Mapping[str, Any],
    report: Callable[[str], None],
) -> DatasetManifest:
    dataset = DatasetManifest(
        kind=KIND,
        source=source,
        facts=facts,
        shards=tuple(
            store_file(
                objects,
                path,
                samples=len(read_idx(path)) if path.name.endswith("idx3-ubyte") else 0,
                on_bytes=lambda count: report("uploading images"),
            )
            for path in paths
        ),
    )
    finish_dataset(objects, dataset)
    return dataset
