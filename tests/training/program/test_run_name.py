"""One of two program jobs under one name runs, and loses no snapshot to the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.limits import scaled
from tests.training.conftest import Cluster
from tests.training.program.bundles import bundle, upload
from training.storage import Objects, StorageAccess
from training.storage.run_lock import Holder
from trainium_catalogue.contract import RUN_LOCK, run_prefix

SCRIPT = """
import os, pathlib, time
print("works", flush=True)
kept = pathlib.Path(os.environ["TRAINIUM_CHECKPOINT_DIR"])
while not (kept.parent / "end").exists() and not pathlib.Path(os.environ["END"]).exists():
    (kept / "progress").write_text(str(time.time()))
    time.sleep(0.5)
"""


def _lone(folder: Path) -> Cluster:
    folder.mkdir()
    return Cluster(folder, num_nodes=1)


def _snapshots(bucket: dict[str, str]) -> Objects:
    access = StorageAccess(
        root=f"s3://{bucket['TRAINIUM_BUCKET']}",
        region=bucket["AWS_REGION"],
        endpoint_url=bucket["AWS_ENDPOINT_URL"],
    )
    return access.open_root().at(run_prefix("test-run", "snapshots"))


def _start(job: Cluster, bucket: dict[str, str], digest: str, end: Path) -> None:
    words = (f"--code={digest}", "--script=train.py", "--snapshot-every-s=1")
    job.start(*words, workload="program", extra={**bucket, "END": str(end)})


def _lock(snapshots: Objects) -> Holder:
    holder = Holder.parse(snapshots.get(RUN_LOCK))
    assert holder is not None
    return holder


# Without launchers: test_run_lock.py and snapshots/test_two_jobs.py.
@pytest.mark.full
def test_the_second_of_two_jobs_exits_with_64_and_the_first_keeps_its_snapshots(
    tmp_path: Path, bucket: dict[str, str]
) -> None:
    digest, end = upload(bucket, bundle({"train.py": SCRIPT})), tmp_path / "end"
    first, second = _lone(tmp_path / "first"), _lone(tmp_path / "second")
    try:
        _start(first, bucket, digest, end)
        first.wait_for("works", node=0)
        _start(second, bucket, digest, end)

        assert second.end(within_s=scaled(40)) == {0: 64}, second.all_logs()
        assert f"run test-run has been in use by job {first.mark} (attempt 1)" in second.log(0)
        assert "works" not in second.log(0)
        end.touch()
        assert first.end(within_s=scaled(40)) == {0: 0}, first.all_logs()
        assert "no longer holds" not in first.log(0)
        # So that the name is free at once (storage/test_run_lock).
        assert _lock(_snapshots(bucket)).released
    finally:
        first.kill()
        second.kill()


def test_a_job_that_loses_its_run_name_ends_and_completes_nothing(
    lone_node: Cluster, bucket: dict[str, str], tmp_path: Path
) -> None:
    digest = upload(bucket, bundle({"train.py": SCRIPT}))
    snapshots = _snapshots(bucket)
    _start(lone_node, bucket, digest, tmp_path / "end")
    lone_node.wait_for("snapshot 1 of", node=0, within_s=scaled(60))
    document = json.loads(snapshots.get(RUN_LOCK)) | {"job_id": "other", "attempt": 3}
    snapshots.put(RUN_LOCK, json.dumps(document).encode())
    before = {info.key: info.etag for info in snapshots.list("")}

    assert lone_node.end(within_s=scaled(40)) == {0: 64}, lone_node.all_logs()
    assert "this job no longer holds run test-run: job other (attempt 3)" in lone_node.log(0)
    after = {info.key: info.etag for info in snapshots.list("")}
    manifests = [key for key in before if key.startswith("0") and key.endswith(".json")]
    assert manifests and {key: after.get(key) for key in manifests} == {
        key: before[key] for key in manifests
    }
    assert not _lock(snapshots).released
