"""TorchNeuron's compiled graphs between nodes and the bucket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import node_on
from training.backends.neff_cache import NeffCache
from training.storage import LocalObjects

NODE = replace(node_on("trn2.48xlarge", release="2.33.1"), bucket="bucket")


def quiet(step: str) -> None:
    """Replace the wait."""


def compiled(folder: Path, key: str) -> Path:
    path = folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(key.encode())
    return path


def test_a_node_finds_graphs_compiled_by_another(tmp_path: Path) -> None:
    bucket = LocalObjects(tmp_path / "bucket")
    first = NeffCache(tmp_path / "first", bucket)
    first.download(quiet)
    first.start()
    compiled(tmp_path / "first", "ab/cd/abcd.neff")
    compiled(tmp_path / "first", "ab/cd/.tmp.x1y2z3")
    first.close()

    NeffCache(tmp_path / "second", bucket).download(quiet)

    assert (tmp_path / "second/ab/cd/abcd.neff").read_bytes() == b"ab/cd/abcd.neff"
    assert len([path for path in (tmp_path / "second").rglob("*") if path.is_file()]) == 1


def test_content_uploaded_by_another_node_is_not_uploaded_again(tmp_path: Path) -> None:
    bucket = LocalObjects(tmp_path / "bucket")
    nodes = [NeffCache(tmp_path / name, bucket) for name in ("first", "second")]
    for name, node in zip(("first", "second"), nodes, strict=True):
        node.download(quiet)
        compiled(tmp_path / name, "ab/cd/abcd.neff")
    nodes[0].close()
    uploaded = bucket.get_with_etag("ab/cd/abcd.neff")
    stamp = (tmp_path / "bucket/ab/cd/abcd.neff").stat().st_mtime_ns

    nodes[1].close()

    assert bucket.get_with_etag("ab/cd/abcd.neff") == uploaded
    assert (tmp_path / "bucket/ab/cd/abcd.neff").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("key", ["../../evil.neff", "ab/cd/evil.sh"])
def test_only_graphs_are_downloaded_and_only_into_the_folder(tmp_path: Path, key: str) -> None:
    class Bucket(LocalObjects):
        def list(self, prefix: str = ""):  # type: ignore[no-untyped-def]
            return (replace(entry, key=key) for entry in super().list(prefix))

    compiled(tmp_path / "bucket", "ab/cd/evil.neff")

    NeffCache(tmp_path / "node/cache", Bucket(tmp_path / "bucket")).download(quiet)

    assert not [path for path in (tmp_path / "node").rglob("*") if path.is_file()]
    assert not list(tmp_path.glob("evil*"))


def test_an_unreachable_cache_does_not_affect_the_run(tmp_path: Path) -> None:
    (tmp_path / "bucket").write_text("not a folder")
    cache = NeffCache(tmp_path / "node", LocalObjects(tmp_path / "bucket"))

    cache.download(quiet)
    compiled(tmp_path / "node", "ab/cd/abcd.neff")
    cache.close()


def test_each_release_has_its_own_cache_and_other_devices_have_none() -> None:
    older = replace(NODE, neuron_release="2.33.0")

    roots = {cache._shared.uri for node in (NODE, older) if (cache := NeffCache.of(node, "/neff"))}

    assert roots == {f"s3://bucket/cache/torchneuron/{name}" for name in ("2.33.0", "2.33.1")}
    assert NeffCache.of(replace(node_on("trn1.32xlarge"), bucket="bucket"), "/neff") is None
    assert NeffCache.of(NODE, None) is None
