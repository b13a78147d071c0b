"""Readers of the files that nodes fetch for a user's own program."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.training.nodes import CPU_NODE
from tests.untrusted import mutations
from tests.untrusted.common import (
    CONTENT,
    DIGEST,
    Keys,
    odd_names,
    quiet,
    snapshot_manifest,
    trap,
)
from tests.untrusted.guard import Violation
from training.core.arguments import parse
from training.program import downloads
from training.program.settings import ProgramFolders, ProgramSettings, Workspace
from training.program.snapshots.barrier import NodeListing
from training.program.snapshots.coordinator import _TIMES
from training.program.snapshots.manifest import object_key
from training.program.snapshots.process import SnapshotSettings
from training.program.snapshots.restore import restore
from training.program.wheels import install, packages
from training.storage import LocalObjects, StorageAccess
from trainium_catalogue.typed_json import read_object, typed


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
    objects.put("00000002.json", mutations.document(snapshot_manifest(), rng))
    restored = restore(objects, settings)
    for path in scratch.rglob("*"):
        if not path.is_symlink() and path.stat().st_mode & 0o7000:
            raise Violation(f"{path} has mode {path.stat().st_mode:o}")
    return restored or "left out"


def listing(inside: Path, rng: random.Random) -> object:
    head = {"node": 0, "since": 1.5, "until": 2.5, "quiet_s": 1.0, "final": False, "missing": ""}
    found = NodeListing.decode(mutations.document({**snapshot_manifest(), **head}, rng))
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
        folders=ProgramFolders.of(scratch, settings, contract),
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
    downloads.unpack_bundle(workspace)
    return None


def keys_of_inputs(inside: Path, rng: random.Random) -> object:
    workspace = _workspace(inside, "0" * 64, Keys(dict.fromkeys(odd_names(rng), CONTENT)))
    trap(workspace.folders.input, inside)
    downloads.stage_inputs(workspace)
    return None
