"""A checkpoint's ``.metadata`` is a pickle of unknown origin: nothing in it runs."""

from __future__ import annotations

import importlib
import io
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from training.checkpoint import CheckpointDamaged, CheckpointInfo, Checkpoints
from training.checkpoint.dcp import checksums
from training.checkpoint.marker import CHUNK_BYTES, MarkedFile
from training.checkpoint.metadata import read_metadata
from training.checkpoint.weights import Weights
from training.core.ranks import Ranks
from training.storage import LocalObjects

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

_BEFORE = frozenset(sys.modules)
Change = Callable[[Path, Metadata], bytes]
"""Makes a ``.metadata`` from the one of a checkpoint in a folder, which it may change."""


class Call:
    """Object whose pickle calls a function when loaded."""

    def __init__(self, name: str, *arguments: Any, state: object = None) -> None:
        module, _, function = name.rpartition(".")
        self._function = getattr(importlib.import_module(module), function)
        self._arguments, self._state = arguments, state

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, self._arguments, self._state


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file that an attack creates."""
    return tmp_path / "victim"


def state(value: float) -> dict[str, Any]:
    return {
        "model": {"w": torch.full((5, 3), value), "b": torch.full((7,), value)},
        "optimizer": {"exp_avg": {"w": torch.full((5, 3), value, dtype=torch.bfloat16)}},
    }


def opened(folder: Path, lines: list[str]) -> Checkpoints:
    return Checkpoints(
        LocalObjects(folder), Ranks.open(), keep_last=9, keep_every=0, say=lines.append
    )


def saved(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 10 and 20."""
    checkpoints = opened(tmp_path / "run", [])
    for step in (10, 20):
        checkpoints.save(state(step), step, {"model": {"size": 1}}, asynchronous=False)
    return tmp_path / "run"


def sign(folder: Path) -> None:
    """Update the marker's sizes and checksums, as an attacker with write access can."""
    marker = folder / "complete.json"
    document = json.loads(marker.read_text())
    for path in folder.iterdir():
        if path == marker:
            continue
        document["files"][path.name] = asdict(checksums(path.read_bytes()))
    marker.write_text(json.dumps(document))


def unsummed(size: int) -> MarkedFile:
    return MarkedFile(bytes=size, chunk_bytes=CHUNK_BYTES, crc32=())


def known(folder: Path) -> Mapping[str, MarkedFile]:
    return {path.name: unsummed(path.stat().st_size) for path in folder.iterdir()}


def as_bytes(folder: Path, metadata: Metadata) -> bytes:
    """Make torch read the weights from a pickle, with ``weights_only=False``."""
    payload = pickle.dumps(Call("os.mkdir", str(folder.parents[1] / "victim")))
    path = folder / "__0_0.distcp"
    # torch.load also accepts its legacy format: a magic number, a version, a system, a pickle.
    start: tuple[object, ...] = (0x1950A86A20F9469CFC6C, 1001, {})
    legacy = b"".join(pickle.dumps(part, 2) for part in start)
    content = legacy + payload
    at = path.stat().st_size
    path.write_bytes(path.read_bytes() + content)
    metadata.state_dict_metadata["model.w"] = BytesStorageMetadata()
    place = next(iter(metadata.storage_data.values()))
    index = MetadataIndex(fqn="model.w")
    metadata.storage_data[index] = type(place)(
        relative_path=path.name, offset=at, length=len(content)
    )
    return pickle.dumps(metadata)


def text_of(text: str) -> bytes:
    """SHORT_BINUNICODE."""
    return b"\x8c" + bytes([len(text)]) + text.encode()


def calling(folder: Path, metadata: Metadata) -> bytes:
    metadata.planner_data = Call("os.mkdir", str(folder.parents[1] / "victim"))
    return pickle.dumps(metadata)


ATTACKS: Mapping[str, Change] = {
    "os.mkdir": calling,
    "nothing but the call": lambda folder, metadata: pickle.dumps(
        Call("os.mkdir", str(folder.parents[1] / "victim"))
    ),
    # PROTO 4, torch's os.mkdir by STACK_GLOBAL, its argument, TUPLE1, REDUCE, STOP.
    "a dotted name": lambda folder, metadata: (
        b"\x80\x04%b%b\x93%b\x85R."
        % tuple(map(text_of, ("torch", "os.mkdir", str(folder.parents[1] / "victim"))))
    ),
    "a value that torch unpickles": as_bytes,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_has_no_effect_and_the_previous_checkpoint_is_loaded(
    tmp_path: Path, victim: Path, name: str
) -> None:
    run = saved(tmp_path)
    folder = run / "step-00000020"
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(ATTACKS[name](folder, metadata))
    sign(folder)
    lines: list[str] = []
    checkpoints = opened(run, lines)
    latest = checkpoints.latest()
    assert latest is not None and latest.step == 20
    loaded = state(0)

    used = checkpoints.load(loaded, latest)

    assert not victim.exists()
    assert used.step == 10
    assert loaded["model"]["w"].eq(10).all()
    (line,) = lines
    assert line.startswith("skipping checkpoint step-00000020: .metadata cannot be read: it ")


def test_the_attacks_work_on_torchs_own_reader(tmp_path: Path, victim: Path) -> None:
    """torch's own reader executes them, so these tests can fail."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

    for name in ("os.mkdir", "a value that torch unpickles"):
        folder = saved(tmp_path / name) / "step-00000020"
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        (folder / ".metadata").write_bytes(ATTACKS[name](folder, metadata))
        try:
            dcp_load(state(0), storage_reader=FileSystemReader(folder), no_dist=True)
        except BaseException as error:
            assert "unpickle" not in str(error)
        assert (tmp_path / name / "victim").is_dir(), name


def test_torchs_files_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    dcp_save(state(1), checkpoint_id=tmp_path / "torch", no_dist=True)
    data = (tmp_path / "torch" / ".metadata").read_bytes()

    found, expected = read_metadata(data, known(tmp_path / "torch")), pickle.loads(data)

    assert found.storage_data == expected.storage_data
    assert found.state_dict_metadata.keys() == expected.state_dict_metadata.keys()
    for name, tensor in found.state_dict_metadata.items():
        theirs = expected.state_dict_metadata[name]
        assert isinstance(tensor, TensorStorageMetadata)
        assert (tensor.size, tensor.chunks) == (theirs.size, theirs.chunks)
        assert tensor.properties.dtype == theirs.properties.dtype


def test_files_of_torch_2_9_are_read() -> None:
    """A recording of what the Neuron images' torch writes; torch 2.9.1+cu128, Python 3.11, with

    ``dcp.save({"model": {"w": arange(15.).view(5, 3), "b": ones(7, dtype=bfloat16)}}, ...)``.
    """
    data = (Path(__file__).parent / "torch-2.9.1.metadata").read_bytes()

    found = read_metadata(data, {"__0_0.distcp": unsummed(3154)})

    tensors = {name: entry.size for name, entry in found.state_dict_metadata.items()}  # type: ignore[union-attr]
    assert tensors == {"model.w": torch.Size([5, 3]), "model.b": torch.Size([7])}
    assert [place.offset for place in found.storage_data.values()] == [0, 1577]


def with_encoding(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> bytes:
    """Pickle a checkpoint's metadata with its memory format as an attribute of something."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    monkeypatch.setattr(
        _MEM_FORMAT_ENCODING, "__reduce_ex__", lambda member, protocol: (getattr, arguments)
    )
    return pickle.dumps(metadata)


def test_tars_of_early_python_3_11_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path) / "step-00000020"
    data = with_encoding(folder, monkeypatch, _MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT")
    assert b"getattr" in data

    assert read_metadata(data, known(folder)).state_dict_metadata.keys() == {
        "model.w", "model.b", "optimizer.exp_avg.w"
    }  # fmt: skip


def test_an_attribute_of_anything_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path) / "step-00000020"
    data = with_encoding(folder, monkeypatch, MetadataIndex, "__init__")

    with pytest.raises(CheckpointDamaged, match="an attribute of something other than"):
        read_metadata(data, known(folder))


def places(metadata: Metadata) -> Any:
    return next(iter(metadata.storage_data.values()))


def tensor(metadata: Metadata) -> Any:
    return metadata.state_dict_metadata["model.w"]


CHANGES: Mapping[str, tuple[Callable[[Metadata], None], str]] = {
    "a file of another folder": (
        lambda m: vars(places(m)).update(relative_path="../step-00000010/__0_0.distcp"),
        "is not listed in the marker",
    ),
    "an offset before the file": (
        lambda m: vars(places(m)).update(offset=-1),
        "in place of a size",
    ),
    "a length beyond the file": (lambda m: vars(places(m)).update(length=10**9), "ends before"),
    "a name that is none": (lambda m: vars(places(m)).update(relative_path=3), "place of a name"),
    "a compressed tensor": (
        lambda m: vars(places(m)).update(transform_descriptors=("zstd",)),
        "compressed",
    ),
    "a list for the tensors": (lambda m: vars(m).update(state_dict_metadata=[]), "of a mapping"),
    "a size that is none": (lambda m: vars(tensor(m)).update(size="x"), "in place of a Size"),
    "a part outside": (
        lambda m: vars(tensor(m)).update(size=torch.Size([1, 1])),
        "outside its bounds",
    ),
    "a gap": (lambda m: vars(tensor(m)).update(chunks=[]), "do not cover it"),
    "a part in no file": (
        lambda m: m.storage_data.pop(MetadataIndex("model.w", torch.Size([0, 0]))),
        "more tensor parts than locations",
    ),
    "a part of other dimensions": (
        lambda m: vars(tensor(m)).update(size=torch.Size([15])),
        "number of dimensions",
    ),
    "a string for a tensor": (
        lambda m: m.state_dict_metadata.update({"model.w": "x"}),  # type: ignore[dict-item]
        "place of a TensorStorageMetadata",
    ),
    "no places": (lambda m: vars(m).pop("storage_data"), "storage_data"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_pickle_torch_would_not_write_is_refused(tmp_path: Path, name: str) -> None:
    change, reason = CHANGES[name]
    folder = saved(tmp_path) / "step-00000020"
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)

    with pytest.raises(CheckpointDamaged, match=reason):
        read_metadata(pickle.dumps(metadata), known(folder))


BOMBS = {
    # A key nested so deeply that hashing it overflows the C stack.
    "nested": b"\x80\x04})" + b"\x85" * 200_000 + b"Ns.",
    # A memo index that would need gigabytes.
    "memo": b"\x80\x02Nr" + (2**31 - 1).to_bytes(4, "little") + b".",
    "long text": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b".",
    "no end": b"\x80\x04N",
}
"""Others are made at random in tests/untrusted."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_would_kill_the_process_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointDamaged, match=r"\.metadata cannot be read: "):
        read_metadata(BOMBS[name], {})


def test_a_refused_name_imports_nothing() -> None:
    with pytest.raises(CheckpointDamaged, match=r"names 'torch\._dynamo'"):
        read_metadata(b"\x80\x04%b%b\x93." % (text_of("torch"), text_of("_dynamo")), {})

    assert "torch._dynamo" not in sys.modules or "torch._dynamo" in _BEFORE


def test_a_pickle_cannot_affect_a_later_one(tmp_path: Path) -> None:
    """BUILD sets attributes of classes too; those of a pickle are its own."""
    folder = saved(tmp_path) / "step-00000020"
    good = (folder / ".metadata").read_bytes()
    # STACK_GLOBAL, NONE, {"state": 3}, TUPLE2, BUILD: the class itself gets an attribute.
    evil = b"\x80\x04%b%b\x93N}%bK\x03s\x86b." % tuple(
        map(text_of, (Metadata.__module__, "Metadata", "state"))
    )
    assert pickle.loads(evil).state == 3
    del Metadata.state  # type: ignore[attr-defined]

    with pytest.raises(CheckpointDamaged):
        read_metadata(evil, known(folder))

    assert read_metadata(good, known(folder)).state_dict_metadata
    assert not hasattr(Metadata, "state")


def test_a_checkpoint_holds_tensors_only(tmp_path: Path) -> None:
    failed: list[tuple[int, str]] = []
    checkpoints = Checkpoints(
        LocalObjects(tmp_path),
        Ranks.open(),
        keep_last=1,
        keep_every=0,
        on_failed=lambda step, reason: failed.append((step, reason)),
    )

    checkpoints.save({"model": {"w": torch.zeros(3)}, "step": 3}, 3, {}, asynchronous=False)

    ((step, reason),) = failed
    assert step == 3
    assert "tensors only, not ['step']" in reason
    assert checkpoints.latest() is None


CONTENTS: Mapping[str, Any] = {
    "another shape": torch.zeros(2, 2),
    "a program": Call("os.mkdir", "victim"),
    "nothing": None,
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_without_the_tensor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An export reads single tensors; torch reads each with ``weights_only=True``."""
    monkeypatch.chdir(tmp_path)
    folder = saved(tmp_path) / "step-00000020"
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    packed = io.BytesIO()
    if CONTENTS[name] is not None:
        torch.save(CONTENTS[name], packed)
    path = folder / "__0_0.distcp"
    place = metadata.storage_data[MetadataIndex("model.w", torch.Size([0, 0]))]
    place.offset, place.length = path.stat().st_size, len(packed.getvalue())
    path.write_bytes(path.read_bytes() + packed.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    sign(folder)
    info = CheckpointInfo.parse((folder / "complete.json").read_bytes(), folder=folder.name)
    shapes = {"w": torch.Size([5, 3]), "b": torch.Size([7])}
    weights = Weights(LocalObjects(folder), info, shapes=shapes, on_bytes=lambda count: None)

    assert weights.read(["b"], torch.float32)["b"].eq(20).all()
    with pytest.raises(CheckpointDamaged, match="the tensors cannot be read"):
        weights.read(["w"], torch.float32)

    assert not (tmp_path / "victim").exists()
