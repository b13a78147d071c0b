"""Readers of the bucket on the user's own machine."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.commands import code as code_command
from jobs.commands.download import plan_download, prepare_target
from jobs.commands.status import losses_of
from jobs.commands.tensorboard import copy_logs
from jobs.errors import Refusal
from jobs.orchestrators import Services
from jobs.program.losses import _points
from jobs.program.record import read_record
from jobs.program.snapshots import choose_snapshot
from jobs.report.account import report_document
from jobs.report.gather import gather
from jobs.report.page import page
from tests.jobs.probes.world import TARGET
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
from trainium_catalogue.documents import as_document


def metrics(inside: Path, rng: random.Random) -> object:
    lines = [{"event": "step", "step": step, "loss": 1.5} for step in range(3)]
    lines.append({"event": "evaluation", "step": 2, "val_loss": 1.0})
    data = b"\n".join(mutations.document(line, rng) for line in lines)
    kept, _ = _lines_until(data, data, 1)
    return losses_of(data), _points(data), _last_validation(kept)


def report(inside: Path, rng: random.Random) -> object:
    at = "2026-01-01T00:00:00+00:00"
    attempt = {
        "schema": 1, "workload": "llama-tiny", "orchestrator": "batch", "job_id": "j", "attempt": 1,
        "child": 0, "num_nodes": 2, "device": "xla", "instance_type": "trn1.32xlarge",
        "started_at": at, "joined_at": at, "lost": [{"node": 1, "at": at, "reason": "r"}],
        "ended_at": at, "code": 75, "reason": "r", "steps": 3,
    }  # fmt: skip
    made: dict[str, object] = {"workload": "program", "orchestrator": "eks", "num_nodes": 2}
    begin = {
        "event": "start", "time": at, "job_id": "j", "attempt": 1, "step": 1, "num_nodes": 2,
        "dropped": 1, "reached": 2, "reached_at": at, "device": "cpu", "instance_type": None,
    }  # fmt: skip
    lines: list[dict[str, object]] = [
        begin,
        {"event": "step", "time": at, "step": 2, "step_s": 1.5, "loss": 1.0, "tokens_total": 9},
        {"event": "save", "time": at, "step": 2, "checkpoint_s": 1.0},
        {"event": "saved", "time": at, "step": 2, "bytes": 9},
        {"event": "evaluation", "time": at, "step": 2, "val_loss": 1.0, "evaluation_s": 1.0},
        begin,
    ]
    losses = [{"step": step, "loss": 1.5, "time": at} for step in (1, 2)]
    kind = rng.choice(("program", "training"))
    snapshot = {"number": 1, "at": at, "bytes": 5}
    status = {"kind": kind, "state": "failed", "max_steps": 9, "snapshots": [snapshot]}
    bucket: Any = Keys(
        {
            "runs/x/results/attempts/j/1.json": mutations.document(attempt, rng),
            "runs/x/results/attempts/j/submission.json": mutations.document(
                {"schema": 1, "submitted_at": at, **made}, rng
            ),
            "runs/x/metrics/train.jsonl": _lines(lines, rng),
            "runs/x/metrics/losses/20260101T000000Z-attempt-1.jsonl": _lines(losses, rng),
            "runs/x/results/status.json": mutations.document(status, rng),
        }
    )
    try:
        sources = gather(bucket, Services((), print), TARGET, "x")
    except Refusal as refusal:
        assert refusal.code == "unknown-run"  # nothing remained of it
        return None
    document = report_document(sources, now_s=2e9)
    json.dumps(as_document(document), allow_nan=False)
    return page(document)


def _lines(documents: Sequence[Mapping[str, object]], rng: random.Random) -> bytes:
    return b"\n".join(
        mutations.document(line, rng) if rng.random() < 0.3 else json.dumps(line).encode()
        for line in documents
    )


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
    planned = plan_download(bucket, "x", to)
    prepare_target(to, planned)
    return planned.num_bytes


def local_snapshot(inside: Path, rng: random.Random) -> object:
    manifest = mutations.document(snapshot_manifest(), rng)
    bucket: Any = Keys({"runs/x/snapshots/00000002.json": manifest, "runs/x/program.json": b"{}"})
    to = trap(inside / "to", inside)
    copy_logs(bucket, "x", trap(inside / "tb" / "x", inside))
    planned = plan_download(bucket, "x", to)
    prepare_target(to, planned)
    return choose_snapshot(bucket, "x", "2").skipped_text


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
