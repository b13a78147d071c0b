"""Processes and buckets fail; the program continues, and restored files are complete."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.limits import scaled
from tests.training.checkpoint.faulty import Fault, FaultyProxy
from tests.training.program.snapshots.kept_nodes import (
    Job,
    Node,
    checkpoints,
    needs_own_disk,
    paths,
    run_on_small_disk,
    wait_until,
)
from training.core.progress import WorkerProgress
from training.program.snapshots.mailbox import INBOX
from training.program.snapshots.manifest import object_key
from training.program.snapshots.process import open_snapshots
from training.storage import RetryPolicy, StorageUnavailable
from trainium_catalogue.contract import RUN_STATUS

_MB = 1_000_000


def _sends(node: Node) -> bool:
    return any("-sends" in path.name for path in (node.settings.scratch / INBOX).iterdir())


def test_a_process_killed_during_an_upload_is_replaced_and_leaves_no_partial_file(
    job: Job,
) -> None:
    (node,) = job.attempt(mib_per_s=4.0)
    snapshots = node.start_snapshots()
    content = os.urandom(24 * _MB)
    (node.folder / "model.bin").write_bytes(content)
    wait_until(lambda: _sends(node))
    assert snapshots._process is not None
    os.kill(snapshots._process.pid, signal.SIGKILL)
    assert not job.numbers()
    assert not list(job.snapshots.list("objects/"))

    wait_until(lambda: (snapshots.poll(), job.numbers())[1], 60)
    (other,) = job.restored()
    assert checkpoints(other) == {"model.bin": content}


def test_damaged_or_missing_content_falls_back_to_the_previous_snapshot(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 4):
        job.put(number, {"latest.pt": f"{number}" * 100})
    newest, before = ({e.path: e.sha256 for e in job.snapshot(n).files} for n in (3, 2))
    data = bytearray(job.snapshots.get(object_key(newest["latest.pt"])))
    data[50] ^= 1
    job.snapshots.put(object_key(newest["latest.pt"]), bytes(data))
    job.snapshots.delete([object_key(before["latest.pt"])])

    (other,) = job.attempt()
    restored = other.restore(job.snapshots)

    assert restored is not None and restored.number == 1
    assert checkpoints(other) == {"latest.pt": b"1" * 100}
    told = capfd.readouterr().out
    assert "snapshot 3 cannot be restored: latest.pt is damaged in the bucket" in told
    assert "snapshot 2 cannot be restored: latest.pt is missing from the bucket" in told
    assert "snapshot 1 of " in told and "1 file, 100 bytes, restored in" in told


def test_content_lost_by_the_bucket_is_uploaded_again(local_job: Job) -> None:
    job = local_job
    (node,) = job.attempt()
    node.start_snapshots()
    (node.folder / "large").write_text("kept")
    lost = object_key(job.wait_for(lambda found: paths(found) == {"large"}).files[0].sha256)
    job.snapshots.delete([lost])
    (node.folder / "small").write_text("new")

    job.wait_for(lambda found: paths(found) == {"large", "small"})
    assert job.snapshots.get(lost) == b"kept"


def test_a_temporarily_unresponsive_bucket_costs_only_time(
    proxied: tuple[Job, FaultyProxy], capfd: pytest.CaptureFixture[str]
) -> None:
    job, proxy = proxied
    (node,) = job.attempt()
    proxy.reset(lambda request: Fault.ACCESS_DENIED)
    node.start_snapshots()
    (node.folder / "latest.pt").write_text("x")
    wait_until(lambda: "the program continues" in capfd.readouterr().out)
    proxy.reset(lambda request: None)

    job.wait_for(lambda found: paths(found) == {"latest.pt"})
    assert node.report().problem is None


def test_an_unwritable_status_costs_no_snapshot(proxied: tuple[Job, FaultyProxy]) -> None:
    job, proxy = proxied
    proxy.reset(lambda request: Fault.ACCESS_DENIED if RUN_STATUS in request.path else None)
    job.run({"latest.pt": "x"})

    assert proxy.injected
    assert paths(job.newest()) == {"latest.pt"}


def test_a_final_snapshot_that_fits_the_grace_period_is_taken_on_sigterm(job: Job) -> None:
    nodes = job.attempt(2, every_s=3600, mib_per_s=1.0)
    for node in nodes:
        node.start_snapshots()
        (node.folder / f"shard-{node.settings.node}").write_bytes(os.urandom(30 * _MB))
        _report_worker(node, done=True)
    began_s = time.monotonic()
    for node in nodes:
        node.end(within_s=scaled(20))
    for node in nodes:
        assert node.wait().failure is None

    # At the rate during training it would have taken half a minute.
    assert time.monotonic() - began_s < scaled(20)
    assert paths(job.newest()) == {"shard-0", "shard-1"}


def test_a_node_that_is_missing_at_the_end_is_named(local_job: Job) -> None:
    nodes = local_job.attempt(2, every_s=3600)
    nodes[0].start_snapshots()
    nodes[0].end(within_s=2.0)

    failure = nodes[0].wait().failure
    assert failure is not None and "waits for node 1; there is no earlier one" in failure.reason


def test_nothing_is_captured_of_a_program_that_lost_a_worker_midway(
    local_job: Job,
) -> None:
    (node,) = local_job.attempt()
    node.start_snapshots()
    (node.folder / "latest.pt").write_text("whole")
    local_job.wait_for(lambda found: paths(found) == {"latest.pt"})
    worker = node.run(
        "import os, time\n"
        "file = open('latest.pt', 'w')\n"
        "file.write('half'); file.flush()\n"
        "print('written', flush=True)\n"
        "time.sleep(600)"
    )
    _report_worker(node, done=False, pid=worker.pid)
    assert worker.stdout is not None and worker.stdout.readline()
    worker.kill()
    worker.wait()
    newest = local_job.numbers()[-1]
    # Time in which a quiescent folder would have been captured.
    changed = node.report().last_change_at
    wait_until(lambda: (node.report().last_change_at or 0) > (changed or 0) or changed)
    time.sleep(3)
    node.end(within_s=scaled(5))
    report = node.wait()

    assert local_job.numbers()[-1] == newest
    assert report.failure is not None
    assert "the program was writing latest.pt when it was terminated" in report.failure.reason


def test_a_quiescent_program_is_captured_as_it_was_when_killed(local_job: Job) -> None:
    (node,) = local_job.attempt(every_s=2.0)
    node.start_snapshots()
    worker = node.run("import time; time.sleep(600)")
    _report_worker(node, done=False, pid=worker.pid)
    (node.folder / "latest.pt").write_text("whole")
    local_job.wait_for(lambda found: paths(found) == {"latest.pt"})
    worker.kill()
    worker.wait()
    node.end(within_s=scaled(5), clean=False)

    assert node.wait().failure is None


def test_a_job_that_only_ends_captures_nothing(local_job: Job) -> None:
    (node,) = local_job.attempt(every_s=3600)
    node.start_snapshots()
    (node.folder / "torn").write_text("x")
    node.end(take=False, within_s=scaled(5))

    assert node.wait().failure is None
    assert not local_job.numbers()


def test_a_folder_above_its_limit_ends_the_job_and_names_the_largest_files(
    local_job: Job,
) -> None:
    (node,) = local_job.attempt(limit_gib=0.001)
    node.start_snapshots()
    (node.folder / "step-2").mkdir()
    (node.folder / "step-2" / "model.bin").write_bytes(bytes(2_000_000))
    (node.folder / "small").write_bytes(b"x")
    wait_until(lambda: node.report().problem is not None)

    problem = node.report().problem
    assert problem is not None and problem.code == 1
    assert problem.reason == (
        "node 0: the checkpoint folder contains 0.001863 GiB, and --snapshot-limit-gib is 0.001; "
        "the largest files are step-2/model.bin (2.0 MB), small (1 bytes); have the program keep "
        "fewer checkpoints, or submit with a higher limit"
    )


def test_a_bucket_failure_during_a_restore_is_not_mistaken_for_damage(
    proxied: tuple[Job, FaultyProxy],
) -> None:
    job, proxy = proxied
    job.put(1, {"latest.pt": "x"})
    (other,) = job.attempt()
    proxy.reset(lambda request: Fault.INTERNAL_ERROR if "objects/" in request.path else None)
    impatient = job.storage.open(job.storage.root, retry_policy=RetryPolicy(total_s=0.5))
    with pytest.raises(StorageUnavailable):
        other.restore(open_snapshots(impatient, "run"))


_FULL_DISK = """
import os, sys
from pathlib import Path
from training.core.logs import set_up_logging
from training.program.snapshots.capture import Capture
from training.program.snapshots.folder import scan
from training.program.snapshots.manifest import Root

set_up_logging()
folder, staging = Path(sys.argv[1]) / "kept", Path(sys.argv[1]) / "staging"
folder.mkdir()
(folder / "model.bin").write_bytes(bytes(5_000_000))
capture = Capture(staging)
capture.mark_rewritten("model.bin")
for _ in range(2):
    (item,) = capture.hold(Root.CHECKPOINTS, folder, scan(folder), frozenset())
    item = capture.checksum(item)
    print(item.in_place, item.entry.sha256[:8], flush=True)
with (folder / "model.bin").open("r+b") as file:
    file.write(b"x")
try:
    item.check()
except Exception as error:
    print(type(error).__name__, error)
"""


@needs_own_disk
def test_without_space_for_copies_files_are_uploaded_in_place_and_checked(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    lines = run_on_small_disk(disk, 8, _FULL_DISK, disk)
    assert lines[0].startswith(
        "snapshots: no space on the disk for a copy of model.bin; files are uploaded"
    )
    assert lines[1].startswith("True ") and lines[1] == lines[2]
    assert lines[3] == "FileChanged model.bin"


def _report_worker(node: Node, *, done: bool, pid: int | None = None) -> None:
    """Report like a worker."""
    progress = WorkerProgress(node.settings.scratch, local_rank=0, rank=node.settings.node)
    progress.report("running")
    if done:
        progress.finish()
    if pid is not None:
        path = node.settings.scratch / "progress-0.json"
        path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {pid}'))
