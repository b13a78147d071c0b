"""Readers of datasets, checkpoints, weights and configurations, as nodes call them."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.models.llama.configuration_llama import LlamaConfig

from tests.training.datasets.packed import put_manifest, put_shard
from tests.untrusted import mutations
from tests.untrusted.common import CONTENT, DIGEST, quiet
from training.checkpoint import CheckpointInfo, Checkpoints
from training.checkpoint.dcp import checksums
from training.checkpoint.pretrained import PretrainedWeights, WeightsTable
from training.checkpoint.weights import Weights
from training.core.ranks import Ranks
from training.datasets.manifest import DatasetManifest, Validation
from training.datasets.prepared.bert_shards import check_shard, empty, write_shard
from training.datasets.prepared.corpora import count_complete
from training.datasets.samples.packed import open_dataset
from training.datasets.samples.staging import stage
from training.datasets.text.parts import PartRecord
from training.datasets.text.sources import Part
from training.models.llama.pretrained import _document as config_document
from training.models.llama.pretrained import refuse_other_model
from training.storage import LocalObjects
from training.storage.run_lock import Holder
from training.trainer.runs import RunConfig
from trainium_catalogue.contract import DATASET_MANIFEST, RUN_CONFIG


def packed_manifest(inside: Path, rng: random.Random) -> object:
    objects = LocalObjects(inside / "bucket")
    shards = (
        put_shard(objects, name, np.full(count, 1, "<u2"))
        for name, count in (("a.bin", 30), ("b.bin", 20), ("v.bin", 9))
    )
    *train, held_out = shards
    validation = Validation(fraction=0.1, num_tokens=9, documents=1, shards=(held_out,))
    manifest = put_manifest(objects, *train, validation=validation)
    original = json.loads(manifest.to_json())
    objects.put(DATASET_MANIFEST, mutations.document(original, rng))
    dataset = open_dataset(
        objects, inside / "cache", is_leader=True, wait=lambda: None, report=quiet
    )
    dataset.require(vocab_size=1000, seq_len=4)
    return dataset.sequence(0, 4)


def files_manifest(inside: Path, rng: random.Random) -> object:
    source = inside / "bucket"
    source.mkdir()
    (source / "a").write_bytes(CONTENT)
    entry = {"name": "a", "samples": 3, "bytes": len(CONTENT), "sha256": DIGEST}
    facts = {"epochs": 4, "accuracy": [0.9, 1.0], "vocab_size": 9}
    original = {"schema": 1, "kind": "bert", **facts, "source": {"url": "x"}, "shards": [entry]}
    (source / DATASET_MANIFEST).write_bytes(mutations.document(original, rng))
    manifest = stage(
        LocalObjects(source),
        inside / "cache",
        parse=lambda data, name: DatasetManifest.from_json(data, name=name, kind="bert"),
        made_by="prepare",
        is_leader=True,
        wait=lambda: None,
        report=quiet,
    )
    return manifest.fact("vocab_size"), manifest.bounds("accuracy")


def corpus_manifest(inside: Path, rng: random.Random) -> object:
    objects = LocalObjects(inside / "bucket")
    files = [{"name": "a", "documents": 1, "bytes": 6, "sha256": DIGEST}]
    original = {"schema": 1, "source": {"url": "x"}, "documents": 1, "files": files}
    objects.put("manifest.json", mutations.document(original, rng))
    return count_complete(objects, {"url": "x"})


def part_record(inside: Path, rng: random.Random) -> object:
    objects, part = LocalObjects(inside / "bucket"), Part(number=0, pieces=())
    shard = {"name": "a", "tokens": 3, "bytes": 6, "sha256": DIGEST}
    original = {"fingerprint": "f", "documents": 1, "empty_documents": 0, "shards": [shard]}
    objects.put(part.marker, mutations.document(original, rng))
    record = PartRecord.read(objects, part, fingerprint="f")
    return None if record is None else (record.tokens, record.validation_tokens)


def _state(value: float) -> dict[str, Any]:
    weights = {"w": torch.full((5, 3), value), "b": torch.full((7,), value)}
    return {"model": weights, "optimizer": {"exp_avg": {"w": torch.full((5, 3), value)}}}


def _checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(LocalObjects(folder), Ranks.open(), keep_last=9, keep_every=0)


_SAVED: dict[str, Path] = {}


def _saved(inside: Path) -> Path:
    """A run of two checkpoints, made once."""
    if "run" not in _SAVED:
        _SAVED["run"] = Path(tempfile.mkdtemp(prefix="fuzz-run-", dir=inside.parents[1]))
        for step in (10, 20):
            meta = {"model": {"size": 1}, "tokenizer_sha256": "0" * 64}
            _checkpoints(_SAVED["run"]).save(_state(step), step, meta, asynchronous=False)
    shutil.copytree(_SAVED["run"], inside / "run")
    return inside / "run"


def _load(run: Path) -> object:
    checkpoints = _checkpoints(run)
    latest = checkpoints.latest()
    if latest is None:
        return None
    loaded = checkpoints.load(_state(0), latest)
    loaded.refuse_other(model={"size": 1}, tokenizer_sha256="0" * 64)
    return "the one before" if loaded.step == 10 else loaded.step


def marker(inside: Path, rng: random.Random) -> object:
    run = _saved(inside)
    path = run / "step-00000020" / "complete.json"
    path.write_bytes(mutations.document(json.loads(path.read_bytes()), rng))
    return _load(run)


def metadata(inside: Path, rng: random.Random) -> object:
    """The index, with a marker whose checksums are right for it."""
    run = _saved(inside)
    folder = run / "step-00000020"
    data = mutations.pickle((folder / ".metadata").read_bytes(), rng)
    _put_signed(folder, ".metadata", data)
    return _load(run)


def tensors(inside: Path, rng: random.Random) -> object:
    """The tensors themselves, each an archive with a pickle, read as an export reads them."""
    run = _saved(inside)
    folder = run / "step-00000020"
    data = (folder / "__0_0.distcp").read_bytes()
    at = rng.randrange(len(data))
    changed = data[:at] + mutations.bytes_of(data[at : at + 60], rng) + data[at + 60 :]
    _put_signed(folder, "__0_0.distcp", changed[: len(data)].ljust(len(data), b"\0"))
    objects = LocalObjects(folder)
    info = CheckpointInfo.parse(objects.get("complete.json"), folder=folder.name)
    shapes = {"w": torch.Size([5, 3]), "b": torch.Size([7])}
    return Weights(objects, info, shapes=shapes, on_bytes=lambda count: None).read(
        ["w", "b"], torch.float32
    )


def _put_signed(folder: Path, name: str, data: bytes) -> None:
    """Write a checkpoint file and its checksum, since an attacker can write both."""
    (folder / name).write_bytes(data)
    document = json.loads((folder / "complete.json").read_bytes())
    document["files"][name] = asdict(checksums(data))
    (folder / "complete.json").write_text(json.dumps(document))


def given_weights(inside: Path, rng: random.Random) -> object:
    folder = inside / "model"
    folder.mkdir()
    save_file({"w": torch.ones(3, 4)}, folder / "one.safetensors")
    save_file({"b": torch.ones(3)}, folder / "two.safetensors")
    index = {"weight_map": {"w": "one.safetensors", "b": "two.safetensors"}}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    if rng.random() < 0.5:
        path.write_bytes(mutations.document(index, rng))
    else:
        file = folder / "one.safetensors"
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = mutations.document(json.loads(data[8 : 8 + length]), rng)
        size = len(header) if rng.random() < 0.9 else rng.choice([0, 2**62, 2**64 - 1])
        file.write_bytes(size.to_bytes(8, "little") + header + data[8 + length :])
    objects = LocalObjects(folder)
    weights = PretrainedWeights(objects, WeightsTable.read(objects))
    weights.require({"w": (3, 4), "b": (3,)})
    weights.sha256()
    return weights.read("w", offsets=(0, 0), size=(3, 4), dtype=torch.float32)


def run_config(inside: Path, rng: random.Random) -> object:
    objects = LocalObjects(inside / "run")
    values = {"seq-len": 16, "global-batch": 4}
    known = RunConfig(workload="llama-tiny", values=values, created="2026-01-01", facts={})
    known.save(objects)
    path = inside / "run" / RUN_CONFIG
    path.write_bytes(mutations.document(json.loads(path.read_bytes()), rng))
    found = RunConfig.load(objects)
    return None if found is None else (found.workload, dict(found.values), dict(found.facts))


def lock(inside: Path, rng: random.Random) -> object:
    holder = Holder(
        job_id="job", attempt=1, node="a", since="2026-01-01", heartbeat="2026-01-01",
        heartbeat_s=5.0,
    )  # fmt: skip
    found = Holder.parse(mutations.document(json.loads(holder.dump()), rng))
    return None if found is None else (found.heartbeat_s + 1, found.attempt + 1)


def model_config(inside: Path, rng: random.Random) -> object:
    ours = LlamaConfig(hidden_size=32, intermediate_size=64, num_attention_heads=4, vocab_size=96)
    objects = LocalObjects(inside / "model")
    objects.put("config.json", mutations.document(ours.to_diff_dict(), rng))
    refuse_other_model(config_document(objects), ours, {}, uri=objects.uri)
    return None


def bert_shard(inside: Path, rng: random.Random) -> object:
    path = inside / "shard.hdf5"
    write_shard(path, empty(2, seq_len=8, max_predictions=2))
    path.write_bytes(mutations.bytes_of(path.read_bytes(), rng))
    return check_shard(path, seq_len=8, max_predictions=2, vocab_size=9)
