"""Failures around the end of a job, and between the threads that take snapshots."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.limits import scaled
from tests.training.checkpoint.faulty import Fault, FaultyProxy
from tests.training.program.snapshots.kept_nodes import (
    Job,
    needs_own_disk,
    paths,
    run_on_small_disk,
    wait_until,
)
from training.core.progress import WorkerProgress
from training.program.snapshots import process


@pytest.mark.timeout(200)
def test_a_bucket_that_refused_before_the_end_gets_time_for_the_final_upload(
    proxied: tuple[Job, FaultyProxy],
) -> None:
    job, proxy = proxied
    (node,) = job.attempt()
    proxy.reset(lambda request: Fault.ACCESS_DENIED if "/objects/" in request.path else None)
    node.start_snapshots()
    (node.folder / "latest.pt").write_text("x")
    wait_until(lambda: len([r for _, r in proxy.injected if r.method == "PUT"]) > 1, 60)
    proxy.slow_s = 13.0  # longer than a refusal is tolerated
    proxy.reset(lambda r: Fault.SLOW if r.method == "PUT" and "/objects/" in r.path else None)
    node.end()

    assert node.wait().failure is None
    assert paths(job.newest()) == {"latest.pt"}


@pytest.mark.parametrize("denied", ["/objects/", "/0000"], ids=["contents", "manifest"])
def test_a_final_snapshot_denied_by_the_bucket_is_not_retried(
    proxied: tuple[Job, FaultyProxy], denied: str
) -> None:
    job, proxy = proxied
    (node,) = job.attempt(every_s=3600)
    proxy.reset(lambda r: Fault.ACCESS_DENIED if r.method == "PUT" and denied in r.path else None)
    node.start_snapshots()
    node.write("latest.pt", "x")
    node.end()

    failure = node.wait().failure
    assert failure is not None and failure.code == 64
    assert "AccessDenied; allow the job's role to do it" in failure.reason


def test_an_upload_in_flight_does_not_delay_the_exit_and_the_latest_snapshot_is_named(
    proxied: tuple[Job, FaultyProxy], capfd: pytest.CaptureFixture[str]
) -> None:
    job, proxy = proxied
    (node,) = job.attempt()
    node.start_snapshots()
    node.write("latest.pt", "first")
    stays = job.wait_for(lambda found: paths(found) == {"latest.pt"})
    wait_until(lambda: node.report().snapshots)
    proxy.slow_s = scaled(40)
    proxy.reset(lambda r: Fault.SLOW if r.method == "PUT" and "/objects/" in r.path else None)
    node.write("latest.pt", "second")
    wait_until(lambda: any(fault is Fault.SLOW for fault, _ in proxy.injected))
    node.write("latest.pt", "third")
    began_s = time.monotonic()
    node.end(within_s=2.0)
    failure = node.wait().failure

    assert time.monotonic() - began_s < scaled(20)
    assert failure is not None and failure.code == 75
    assert "last snapshot incomplete after 2 s" in failure.reason
    assert f"the one from {stays.at[11:19]} remains" in failure.reason
    assert failure.reason in capfd.readouterr().out
    assert job.numbers() == [stays.number]


def test_a_node_that_was_writing_reports_it_once_the_bucket_responds(
    proxied: tuple[Job, FaultyProxy],
) -> None:
    job, proxy = proxied
    node = job.attempt(2, every_s=3600)[1]
    node.start_snapshots()
    WorkerProgress(node.settings.scratch, local_rank=0, rank=1).report("running")
    wait_until((node.settings.scratch / process.SNAPSHOTS_FILE).exists)
    (node.folder / "latest.pt").write_text("torn")
    wait_until(lambda: node.report().bytes)
    proxy.reset(lambda request: Fault.ACCESS_DENIED if request.method == "PUT" else None)
    node.end(clean=False, within_s=scaled(8))
    time.sleep(2)
    proxy.reset(lambda request: None)
    report = node.wait()

    assert report.failure is not None
    assert (
        "node 1: the program was writing latest.pt when it was terminated" in report.failure.reason
    )


def test_a_deliberately_killed_process_is_not_replaced(
    local_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_RESTART_INTERVAL_S", 0.0)
    (node,) = local_job.attempt()
    handle = node.start_snapshots()
    handle.kill()
    before = handle._process.pid

    assert handle.done
    assert handle._process.pid == before
    assert handle._process.returncode == -signal.SIGKILL


_FULL_DISK = """
import os, sys, time
from pathlib import Path
from training.program.snapshots.process import SnapshotProcess, SnapshotSettings

settings = SnapshotSettings.read(Path(sys.argv[1]))
scratch, folder = settings.scratch, settings.checkpoints
folder.mkdir(parents=True)
handle = SnapshotProcess(settings, os.environ)


def wait_for(names):
    deadline = time.monotonic() + float(sys.argv[2])
    while not any(names in path.read_text() for path in Path(sys.argv[3]).rglob("0*.json")):
        assert handle._process.poll() is None, "it has died"
        assert time.monotonic() < deadline, names
        time.sleep(0.1)


(folder / "before").write_text("x")
wait_for('"before"')
handle.poll()
try:
    with (scratch / "full").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    print(error.strerror)
# Between two snapshots at least one report is due.
for old, new in (("before", "after"), ("after", "at last")):
    (folder / old).rename(folder / new)
    wait_for(f'"{new}"')
handle.final()
print(handle.done, handle.failure.code, handle.failure.reason)
"""


@needs_own_disk
def test_a_full_disk_does_not_stop_snapshots_and_the_last_is_not_mistaken_for_complete(
    local_job: Job, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    (node,) = local_job.attempt()
    scratch = disk / "scratch"
    settings = replace(
        node.settings, scratch=scratch, checkpoints=scratch / "kept", cache=scratch / "cache"
    )
    (tmp_path / "settings").mkdir()
    told = replace(settings, scratch=tmp_path / "settings").write()
    told.write_text(told.read_text().replace(str(tmp_path / "settings"), str(scratch)))
    lines = run_on_small_disk(disk, 2, _FULL_DISK, told, scaled(20), local_job.storage.root)

    assert any("the report could not be written" in line for line in lines)
    assert "No space left on device" in lines
    assert lines[-1].startswith("True 75 no last snapshot: cannot write the request for it")
