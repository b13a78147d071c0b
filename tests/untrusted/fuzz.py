"""Feeds random changes of what lies in the bucket to everything that reads it.

    python -m tests.untrusted.fuzz --seed 1 --cases 1000 [--only metadata]

Each case must change nothing outside its folder, run nothing, and end with a result or one of the
refusals that its reader documents. Prints a JSON document; exit code 1 if a case did otherwise. A
case is found again by its kind and seed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.models.llama.configuration_llama import LlamaConfig

from jobs.bucket.objects import Bucket, Found
from jobs.commands import code as code_command
from jobs.commands.download import planned_download, prepare_target
from jobs.commands.status import losses_of
from jobs.commands.tensorboard import copy_logs
from jobs.errors import Refusal
from jobs.program.losses import _points
from jobs.program.record import read_record
from jobs.program.snapshots import chosen_snapshot
from tests.training.nodes import CPU_NODE
from tests.untrusted import mutations
from tests.untrusted.guard import Guard, Violation
from training.checkpoint import CheckpointDamaged, CheckpointInfo, Checkpoints, CheckpointUnusable
from training.checkpoint.given import GivenTable, GivenWeights, GivenWeightsError
from training.checkpoint.marker import CHUNK_BYTES
from training.checkpoint.weights import Weights
from training.core.arguments import parse
from training.core.ranks import Ranks
from training.datasets.manifest import (
    DatasetError,
    DatasetManifest,
    PackedManifest,
    Shard,
    Source,
    Validation,
)
from training.datasets.prepared.bert_shards import check_shard, empty, write_shard
from training.datasets.prepared.corpora import count_complete
from training.datasets.samples.packed import open_dataset
from training.datasets.samples.staging import stage
from training.datasets.text.parts import PartRecord
from training.datasets.text.sources import Part
from training.models.llama.given import _document as given_document
from training.models.llama.given import refuse_other_model
from training.program import bundle, inputs
from training.program.settings import Folders, NotPrepared, ProgramSettings, Workspace
from training.program.snapshots.barrier import Listing
from training.program.snapshots.coordinator import _TIMES
from training.program.snapshots.manifest import object_key
from training.program.snapshots.process import SnapshotSettings
from training.program.snapshots.restore import NoRoom, restore
from training.program.wheels import install, packages
from training.storage import LocalObjects, ObjectInfo, ObjectMissing, StorageAccess, StorageError
from training.trainer.run_files import _last_validation, _lines_until
from training.trainer.runs import Holder, RunConfig, RunConfigError
from trainium_catalogue.contract import DATASET_MANIFEST, RUN_CONFIG
from trainium_catalogue.typed_json import read_object, typed

CASE_LIMIT_S = 60
_MEMORY = 12 * 2**30
_FILE_BYTES = 64 * 2**20
CONTENT = b"theirs"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass(frozen=True)
class Case:
    """One reader, with what it may raise."""

    run: Callable[[Path, random.Random], object]
    refusals: tuple[type[BaseException], ...]


def quiet(text: str) -> None:
    """Receives what is reported."""


# --- datasets -------------------------------------------------------------------------------------


def _shard(folder: Path, name: str, ids: list[int]) -> Shard:
    data = np.array(ids, "<u2").tobytes()
    (folder / name).write_bytes(data)
    return Shard(
        name=name, tokens=len(ids), bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
    )


def packed_manifest(inside: Path, rng: random.Random) -> object:
    source = inside / "bucket"
    source.mkdir()
    manifest = PackedManifest(
        dtype="uint16",
        vocab_size=1000,
        eos_id=2,
        bos=False,
        tokenizer="tokenizer.json",
        tokenizer_file_sha256="0" * 64,
        tokenizer_sha256="1" * 64,
        num_tokens=50,
        documents=1,
        empty_documents=0,
        source=Source(uri="/text", files=1, bytes=1, text_field="text"),
        shards=(_shard(source, "a.bin", [1] * 30), _shard(source, "b.bin", [2] * 20)),
        validation=Validation(
            fraction=0.1, num_tokens=9, documents=1, shards=(_shard(source, "v.bin", [3] * 9),)
        ),
    )
    original = json.loads(manifest.to_json())
    (source / DATASET_MANIFEST).write_bytes(mutations.document(original, rng))
    dataset = open_dataset(
        LocalObjects(source), inside / "cache", is_leader=True, wait=lambda: None, report=quiet
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


# --- checkpoints ----------------------------------------------------------------------------------


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
    """Write a file of a checkpoint and its checksum, as who writes one can write the other."""
    (folder / name).write_bytes(data)
    document = json.loads((folder / "complete.json").read_bytes())
    document["files"][name] = {
        "bytes": len(data),
        "chunk_bytes": CHUNK_BYTES,
        "crc32": [zlib.crc32(data)] if data else [],
    }
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
    weights = GivenWeights(objects, GivenTable.read(objects))
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
    refuse_other_model(given_document(objects), ours, {}, uri=objects.uri)
    return None


def metrics(inside: Path, rng: random.Random) -> object:
    lines = [{"event": "step", "step": step, "loss": 1.5} for step in range(3)]
    lines.append({"event": "evaluation", "step": 2, "val_loss": 1.0})
    data = b"\n".join(mutations.document(line, rng) for line in lines)
    kept, _ = _lines_until(data, 1)
    return losses_of(data), _points(data), _last_validation(kept)


def program_record(inside: Path, rng: random.Random) -> object:
    submission = {
        "submitted_at": "2026-01-01", "code": DIGEST, "script": "train.py", "module": "",
        "argv": ["--x"], "parameters": {"env": ""}, "num_nodes": 1, "workload": "program",
        "from_snapshot": None, "deployment": "default",
    }  # fmt: skip
    document = {"format": 1, "submissions": [submission]}
    bucket: Any = Keys({"runs/x/program.json": mutations.document(document, rng)})
    return [item.shown for item in read_record(bucket, "x")]


def bert_shard(inside: Path, rng: random.Random) -> object:
    path = inside / "shard.hdf5"
    write_shard(path, empty(2, seq_len=8, max_predictions=2))
    path.write_bytes(mutations.bytes_of(path.read_bytes(), rng))
    return check_shard(path, seq_len=8, max_predictions=2, vocab_size=9)


# --- a program's run ------------------------------------------------------------------------------


def _manifest() -> dict[str, Any]:
    common = {"root": "checkpoints", "nodes": [0]}
    file = {**common, "bytes": len(CONTENT), "sha256": DIGEST, "mode": 0o644, "mtime_ns": 10**18}
    return {
        "format": 1, "number": 2, "at": "2026-01-01T00:00:00", "nodes": 1, "main": 0, "bytes": 12,
        "files": [{**file, "path": path} for path in ("a/b", "c", "events.tfevents")],
        "links": [{**common, "path": "last", "target": "a"}],
        "folders": [{**common, "path": "a", "mode": 0o755}, {**common, "path": "e", "mode": 0o755}],
    }  # fmt: skip


def snapshot(inside: Path, rng: random.Random) -> object:
    scratch = inside / "scratch"
    (scratch / "checkpoints").mkdir(parents=True)
    (scratch / "checkpoints" / "link").symlink_to(inside.parent / "outside")
    settings = SnapshotSettings(
        storage=StorageAccess(root=str(inside / "bucket")),
        run="run", job_id="job", attempt=1, node=0, main=0, num_nodes=1, scratch=scratch,
        checkpoints=scratch / "checkpoints", cache=scratch / "cache",
        every_s=1.0, keep=3, mib_per_s=1000.0, limit_gib=1.0,
    )  # fmt: skip
    objects = LocalObjects(inside / "bucket")
    objects.put(object_key(DIGEST), CONTENT)
    objects.put("00000002.json", mutations.document(_manifest(), rng))
    restored = restore(objects, settings)
    for path in scratch.rglob("*"):
        if not path.is_symlink() and path.stat().st_mode & 0o7000:
            raise Violation(f"{path} has mode {path.stat().st_mode:o}")
    return restored or "left out"


def listing(inside: Path, rng: random.Random) -> object:
    head = {"node": 0, "since": 1.5, "until": 2.5, "quiet_s": 1.0, "final": False, "missing": ""}
    found = Listing.decode(mutations.document({**_manifest(), **head}, rng))
    typed(read_object(mutations.document({"1": 1.5, "2": 2.5}, rng)), _TIMES)
    return found.state, found.name, found.encode()


def wheels_marker(inside: Path, rng: random.Random) -> object:
    objects = LocalObjects(inside / "bucket")
    lock = b"six==1.0\n"
    objects.put("requirements.lock", lock)
    objects.put("a.whl", CONTENT)
    image = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": packages.fixed_versions(packages.installed()),
    }
    document = {
        "format": 1, "key": "k", "image": image, "lock_sha256": hashlib.sha256(lock).hexdigest(),
        "wheels": [{"name": "a.whl", "bytes": 6, "sha256": DIGEST}],
    }  # fmt: skip
    objects.put("complete.json", mutations.document(document, rng))
    return install.install_wheels(
        objects, folder=inside / "wheels", target=inside / "site", env=os.environ
    )


def _workspace(inside: Path, digest: str, objects: Any) -> Workspace:
    request = parse(["program", f"--code={digest}", "--script=train.py", "--input=s3://other/x"])
    settings = ProgramSettings.from_request(request)
    scratch = inside / "scratch"
    scratch.mkdir()
    contract = replace(CPU_NODE, run="run", num_nodes=1)
    return Workspace(
        node=contract,
        settings=settings,
        folders=Folders.of(scratch, settings, contract),
        bucket=objects,
        open=lambda uri: objects,
        report=quiet,
    )


def archive(inside: Path, rng: random.Random) -> object:
    data = mutations.archive(rng)
    digest = hashlib.sha256(data).hexdigest()
    objects = LocalObjects(inside / "bucket")
    objects.put(f"runs/run/code/{digest}.tar.gz", data)
    workspace = _workspace(inside, digest, objects)
    bundle.unpack(workspace)
    return None


class Keys:
    """A bucket with objects under any keys, for the commands and for the nodes."""

    name, uri = "bucket", "s3://bucket/x"

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = dict(contents)

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        now = datetime.now(UTC)
        return [
            ObjectInfo(key=key, size=len(data), etag="e", modified=now)
            for key, data in self._contents.items()
        ]

    def get_file(self, key: str, file: BinaryIO, *, on_bytes: object = None) -> None:
        file.write(self._contents[key])

    def objects(self, prefix: str) -> Sequence[Found]:
        return [
            Found(key=key, size=len(data))
            for key, data in self._contents.items()
            if key.startswith(prefix)
        ]

    def read(self, key: str) -> bytes | None:
        return self._contents.get(key)

    def document(self, key: str) -> dict[str, Any] | None:
        try:
            return read_object(self._contents[key])
        except (KeyError, ValueError):
            return None

    def head(self, key: str, **kwargs: Any) -> dict[str, Any] | None:
        return {} if key in self._contents else None

    def has(self, prefix: str) -> bool:
        return any(key.startswith(prefix) for key in self._contents)

    names = Bucket.names

    def _pages(self, **kwargs: Any) -> Sequence[dict[str, Any]]:
        return [{"Contents": [{"Key": key} for key in self._contents]}]


def _names(rng: random.Random) -> list[str]:
    names = rng.choices([*mutations.NAMES, "a", "b", "a/b", "link/a"], k=rng.randint(1, 4))
    return [rng.choice(["", "", "deep/"]) + name for name in names]


def _trap(folder: Path, inside: Path) -> Path:
    """A folder of the user's with a link in it that leads out."""
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(inside.parent / "outside")
    return folder


def keys_of_inputs(inside: Path, rng: random.Random) -> object:
    workspace = _workspace(inside, "0" * 64, Keys(dict.fromkeys(_names(rng), CONTENT)))
    _trap(workspace.folders.input, inside)
    inputs.stage(workspace)
    return None


def keys_of_logs(inside: Path, rng: random.Random) -> object:
    folders = ("runs/x/logs/", "runs/x/results/output/tfevents/")
    ends = ("", "tfevents", "/tfevents")
    keys = [rng.choice(folders) + name + rng.choice(ends) for name in _names(rng)]
    bucket: Any = Keys(dict.fromkeys(keys, CONTENT))
    return copy_logs(bucket, "x", _trap(inside / "tb" / "x", inside))


def keys_of_exports(inside: Path, rng: random.Random) -> object:
    names = _names(rng)
    receipt = mutations.document({"step": 3, "files": dict.fromkeys(names, 6)}, rng)
    contents = {f"export/x/{name}": CONTENT for name in names}
    bucket: Any = Keys({**contents, "export/x/export.json": receipt})
    to = _trap(inside / "to", inside)
    planned = planned_download(bucket, "x", to)
    prepare_target(to, planned)
    return planned.num_bytes


def snapshot_at_the_desk(inside: Path, rng: random.Random) -> object:
    manifest = mutations.document(_manifest(), rng)
    bucket: Any = Keys({"runs/x/snapshots/00000002.json": manifest, "runs/x/program.json": b"{}"})
    to = _trap(inside / "to", inside)
    copy_logs(bucket, "x", _trap(inside / "tb" / "x", inside))
    planned = planned_download(bucket, "x", to)
    prepare_target(to, planned)
    return chosen_snapshot(bucket, "x", "2").passed_shown


def code_listing(inside: Path, rng: random.Random) -> object:
    data = _BUNDLE
    digest = hashlib.sha256(data).hexdigest()
    entry = {"path": "train.py", "bytes": 6, "sha256": DIGEST, "mode": 0o644}
    document = mutations.document({"format": 1, "sha256": digest, "files": [entry]}, rng)
    bucket: Any = Keys(
        {f"runs/x/code/{digest}.json": document, f"runs/x/code/{digest}.tar.gz": data}
    )
    found = code_command._listing(bucket, "x", digest)
    return code_command._fetch(bucket, "x", digest, found, _trap(inside / "back", inside))


def _bundle() -> bytes:
    import io
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("train.py")
        member.size = len(CONTENT)
        tar.addfile(member, io.BytesIO(CONTENT))
    return packed.getvalue()


_BUNDLE = _bundle()
_CHECKPOINT = (CheckpointUnusable,)
_STORAGE = (ObjectMissing, StorageError)
CASES: Mapping[str, Case] = {
    "packed-manifest": Case(packed_manifest, (DatasetError,)),
    "files-manifest": Case(files_manifest, (DatasetError,)),
    "corpus-manifest": Case(corpus_manifest, ()),
    "part-record": Case(part_record, ()),
    "marker": Case(marker, _CHECKPOINT),
    "metadata": Case(metadata, _CHECKPOINT),
    "tensors": Case(tensors, (CheckpointDamaged,)),
    "weights": Case(given_weights, (GivenWeightsError,)),
    "snapshot": Case(snapshot, (NoRoom,)),
    "listing": Case(listing, (ValueError,)),
    "run-config": Case(run_config, (RunConfigError,)),
    "lock": Case(lock, ()),
    "model-config": Case(model_config, (GivenWeightsError,)),
    "metrics": Case(metrics, ()),
    "program-record": Case(program_record, (Refusal,)),
    "bert-shard": Case(bert_shard, (DatasetError,)),
    "wheels": Case(wheels_marker, (install.DependenciesRefused, NotPrepared)),
    "archive": Case(archive, (NotPrepared,)),
    "input-keys": Case(keys_of_inputs, (NotPrepared,)),
    "log-keys": Case(keys_of_logs, (Refusal,)),
    "export-keys": Case(keys_of_exports, (Refusal,)),
    "desk-snapshot": Case(snapshot_at_the_desk, (Refusal,)),
    "code-listing": Case(code_listing, (Refusal,)),
}


@dataclass
class Report:
    """What has come of the cases."""

    counts: Counter[str]
    wrong: list[str]

    def note(self, kind: str, seed: str, outcome: str, detail: str = "") -> None:
        self.counts[f"{kind}: {outcome}"] += 1
        if detail:
            self.wrong.append(f"{kind} {seed}: {detail}")


def _tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): os.fsencode(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else str(path.lstat().st_mode).encode()
        for path in folder.rglob("*")
    }


def run_case(kind: str, seed: str, base: Path, guard: Guard | None, report: Report) -> None:
    """Run one case in a new folder; a ``Violation`` is reported, not raised."""
    rng = random.Random(f"{kind}/{seed}")
    inside, outside = base / "case" / "inside", base / "case" / "outside"
    inside.mkdir(parents=True)
    outside.mkdir()
    (outside / "x").write_bytes(b"old")
    before, known = _tree(outside), len(guard.violations) if guard else 0
    case, detail, outcome = CASES[kind], "", "read"
    signal.alarm(CASE_LIMIT_S)
    try:
        with guard.watching() if guard else nullcontext():
            found = case.run(inside, rng)
        outcome = found if isinstance(found, str) and found else outcome
    except case.refusals as error:
        outcome = "refused"
        if not str(error).strip():
            detail = f"a refusal without a word: {error!r}"
    except (Exception, Violation) as error:
        lines = traceback.format_exception(error)
        outcome, detail = "wrong", f"{error!r}\n{''.join(lines[-4:])}"
    finally:
        signal.alarm(0)
    if guard and len(guard.violations) > known:
        outcome, detail = "wrong", guard.violations[-1]
    if _tree(outside) != before:
        outcome, detail = "wrong", "a file outside was changed"
    shutil.rmtree(base / "case")
    report.note(kind, seed, outcome, detail)


def main(argv: list[str] | None = None) -> int:
    """Run the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--only", choices=sorted(CASES))
    wanted = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    here = packages.installed()
    # What is the same for every case and takes most of its time.
    vars(packages)["installed"] = lambda *_: here
    vars(install)["_run_pip"] = lambda *_: None
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _too_long)
    kinds = [wanted.only] if wanted.only else list(CASES)
    report, began = Report(Counter(), []), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        base = Path(name)
        os.chdir(base)
        for kind in kinds:  # what is imported on the way is imported unwatched
            run_case(kind, "warm-up", base, None, Report(Counter(), []))
        guard = Guard(base / "case" / "inside")
        for number in range(wanted.cases):
            kind = kinds[number % len(kinds)]
            run_case(kind, f"{wanted.seed}-{number}", base, guard, report)
    print(
        json.dumps(
            {
                "cases": wanted.cases,
                "seconds": round(time.monotonic() - began, 1),
                "outcomes": dict(sorted(report.counts.items())),
                "wrong": report.wrong[:20],
            },
            indent=1,
        )
    )
    return 1 if report.wrong else 0


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Violation(f"more than {CASE_LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
