"""A schedule's storage: damage during it, and invariants at the end."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from tests.faults.schedule import STEPS
from training.checkpoint.dcp import Reader
from training.checkpoint.marker import CheckpointDamaged, CheckpointInfo
from training.storage import ObjectMissing, Objects
from trainium_catalogue.contract import (
    CHECKPOINT_MARKER,
    RUN_LOCK,
    RUN_STATUS,
    TRAIN_METRICS,
    WITHDRAWN_BYTES,
    checkpoint_name,
)

_HISTORY = "train.jsonl"
Losses = dict[str, dict[int, float]]
"""Losses by event and step."""


def complete(run: Objects) -> list[str]:
    """Return the folders of checkpoints with a marker, oldest first."""
    keys = [info.key for info in run.list("checkpoints/") if info.size != WITHDRAWN_BYTES]
    return sorted(key.rpartition("/")[0] for key in keys if key.endswith(CHECKPOINT_MARKER))


def damage(run: Objects, kind: str, rng: random.Random) -> str:
    """Damage a checkpoint that the run does not need; return its folder."""
    if kind == "torn":
        folder = f"checkpoints/{checkpoint_name(STEPS)}"
        run.put(f"{folder}/__0_0.distcp", b"torn")
        return folder
    if kind in ("status", "lock"):
        run.put({"status": RUN_STATUS, "lock": RUN_LOCK}[kind], b'{"job_id": ')
        return ""
    folders = complete(run)
    if len(folders) < 2:
        return ""  # the only checkpoint is needed
    keys = [info.key for info in run.list(f"{folders[-1]}/")]
    if kind == "marker":
        key = f"{folders[-1]}/{CHECKPOINT_MARKER}"
    elif kind == "history":
        key = f"{folders[-1]}/{_HISTORY}"
        if is_only_copy(run, key):
            return ""
    else:
        key = rng.choice([key for key in keys if key.endswith((".distcp", ".metadata"))])
    if key not in keys:
        return ""
    data = bytearray(run.get(key))
    if kind == "remove" or (kind == "marker" and rng.random() < 0.5):
        run.delete([key])
        return folders[-1]
    if kind in ("truncate", "marker"):
        data = data[: len(data) // 2]
    else:
        data[rng.randrange(len(data))] ^= 0xFF
    run.put(key, bytes(data))
    return folders[-1]


def history(run: Objects) -> list[dict[str, Any]]:
    """Return the lines of train.jsonl."""
    return [json.loads(line) for line in run.get(TRAIN_METRICS).decode().splitlines()]


def is_only_copy(run: Objects, key: str) -> bool:
    """Return whether the lines of a checkpoint are not in the run's own history (yet)."""
    try:
        return not run.get(TRAIN_METRICS).startswith(run.get(key))
    except ObjectMissing:
        return True


def losses(lines: list[dict[str, Any]], event: str) -> dict[int, float]:
    """Return the losses of the steps, or of the evaluations."""
    name = {"step": "loss", "evaluation": "val_loss"}[event]
    return {line["step"]: line[name] for line in lines if line["event"] == event}


def holder(run: Objects) -> tuple[str, int]:
    """Return the job and attempt that last held the run."""
    lock = json.loads(run.get(RUN_LOCK))
    return lock["job_id"], lock["attempt"]


def judge(run: Objects, whole: Losses, damaged: set[str]) -> list[str]:
    """Return all violations of an ended run.

    ``whole`` are the losses of a fault-free one, ``damaged`` the folders of checkpoints that were
    damaged on purpose.
    """
    wrong = []
    try:
        lines = history(run)
    except (ObjectMissing, ValueError) as error:
        return [f"the history cannot be read: {error}"]
    for event, wanted in whole.items():
        counts = Counter(line["step"] for line in lines if line["event"] == event)
        if dict(counts) != dict.fromkeys(wanted, 1):
            wrong.append(f"lines of {event}s: {dict(sorted(counts.items()))}")
        elif losses(lines, event) != wanted:
            wrong.append(f"losses of {event}s differ: {losses(lines, event)}, not {wanted}")
    lock, status = json.loads(run.get(RUN_LOCK)), json.loads(run.get(RUN_STATUS))
    holder, writer = ((d["job_id"], d["attempt"]) for d in (lock, status))
    if (status["state"], status["step"]) != ("finished", STEPS) or holder != writer:
        wrong.append(f"status {status['state']} {status['step']} by {writer}; held by {holder}")
    if not lock["released"]:
        wrong.append("the lock is not released")
    folders = complete(run)
    if not folders or folders[-1] != f"checkpoints/{checkpoint_name(STEPS)}":
        wrong.append(f"the last checkpoint is missing: {folders}")
    for folder in folders:
        # Saving a damaged checkpoint again repairs it, but not its lines, which the run also
        # stores.
        spared = {_HISTORY} if folder in damaged else set()
        if folder in damaged and folder != folders[-1]:
            continue
        try:
            name = folder.rpartition("/")[2]
            info = CheckpointInfo.parse(run.get(f"{folder}/{CHECKPOINT_MARKER}"), folder=name)
            for file in info.files.keys() - spared:
                Reader(run.at(folder), info.files).fetch(file)
        except CheckpointDamaged as error:
            wrong.append(f"{folder} is damaged: {error}")
    return wrong
