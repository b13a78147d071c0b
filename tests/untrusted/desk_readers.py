"""Readers of the bucket on the user's own machine."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

from jobs.commands import code as code_command
from jobs.commands.download import planned_download, prepare_target
from jobs.commands.status import losses_of
from jobs.commands.tensorboard import copy_logs
from jobs.program.losses import _points
from jobs.program.record import read_record
from jobs.program.snapshots import chosen_snapshot
from tests.untrusted import mutations
from tests.untrusted.common import (
    CONTENT,
    DIGEST,
    Keys,
    odd_names,
    snapshot_manifest,
    trap,
)
from training.trainer.run_files import _last_validation, _lines_until


def metrics(inside: Path, rng: random.Random) -> object:
    lines = [{"event": "step", "step": step, "loss": 1.5} for step in range(3)]
    lines.append({"event": "evaluation", "step": 2, "val_loss": 1.0})
    data = b"\n".join(mutations.document(line, rng) for line in lines)
    kept, _ = _lines_until(data, data, 1)
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


def keys_of_logs(inside: Path, rng: random.Random) -> object:
    folders = ("runs/x/logs/", "runs/x/results/output/tfevents/")
    ends = ("", "tfevents", "/tfevents")
    keys = [rng.choice(folders) + name + rng.choice(ends) for name in odd_names(rng)]
    bucket: Any = Keys(dict.fromkeys(keys, CONTENT))
    return copy_logs(bucket, "x", trap(inside / "tb" / "x", inside))


def keys_of_exports(inside: Path, rng: random.Random) -> object:
    names = odd_names(rng)
    receipt = mutations.document({"step": 3, "files": dict.fromkeys(names, 6)}, rng)
    contents = {f"export/x/{name}": CONTENT for name in names}
    bucket: Any = Keys({**contents, "export/x/export.json": receipt})
    to = trap(inside / "to", inside)
    planned = planned_download(bucket, "x", to)
    prepare_target(to, planned)
    return planned.num_bytes


def snapshot_at_the_desk(inside: Path, rng: random.Random) -> object:
    manifest = mutations.document(snapshot_manifest(), rng)
    bucket: Any = Keys({"runs/x/snapshots/00000002.json": manifest, "runs/x/program.json": b"{}"})
    to = trap(inside / "to", inside)
    copy_logs(bucket, "x", trap(inside / "tb" / "x", inside))
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
    return code_command._fetch(bucket, "x", digest, found, trap(inside / "back", inside))


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
