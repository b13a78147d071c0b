"""A folder is persisted while a program runs, and restored."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from tests.training.checkpoint.documents import assert_valid
from tests.training.program.snapshots.kept_nodes import Job, checkpoints, paths
from training.program.reports import LOSSES_FILE, OUTPUT_FILE, OutputReport
from trainium_catalogue.contract import PROGRAM_LOSSES, RUN_STATUS, run_key


def test_the_printed_losses_are_also_in_the_bucket_as_strict_json(local_job: Job) -> None:
    (node,) = local_job.attempt()
    curve = b'{"step": 1, "loss": 2.5}\n'
    (node.settings.scratch / LOSSES_FILE).write_bytes(curve)
    noted = OutputReport(step=3, loss=float("nan"))
    (node.settings.scratch / OUTPUT_FILE).write_text(json.dumps(asdict(noted)))

    node.start_snapshots()
    node.end()
    node.wait()

    (found,) = local_job.bucket.list(run_key("run", PROGRAM_LOSSES))
    assert found.key.endswith("-attempt-1.jsonl")
    assert local_job.bucket.get(found.key) == curve

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = local_job.bucket.get(run_key("run", RUN_STATUS))
    status = json.loads(text, parse_constant=refuse)
    assert (status["step"], status["loss"], status["loss_text"]) == (3, None, "nan")
    assert_valid(status, "program-status.schema.json")


def test_a_folder_is_restored_with_times_modes_links_and_empty_folders(
    job: Job,
) -> None:
    (node,) = job.attempt()
    node.start_snapshots()
    folder = node.folder
    node.write("step-1/model.bin", os.urandom(20_000_000))
    node.write("step-1/state.json", "{}")
    node.write("run.sh", "#!/bin/sh\n")
    (folder / "run.sh").chmod(0o750)
    os.utime(folder / "step-1" / "state.json", ns=(1_000_000_001, 1_000_000_001))
    (folder / "empty").mkdir()
    (folder / "last").symlink_to("step-1")
    (folder / "absolute").symlink_to(folder / "step-1" / "model.bin")
    (folder / "elsewhere").symlink_to("/etc/hostname")
    os.mkfifo(folder / "pipe")

    snapshot = job.wait_for(lambda found: "run.sh" in paths(found))
    before = {path: value for path, value in checkpoints(node).items() if path != "pipe"}
    node.kill()
    (other,) = job.attempt()
    restored = other.restore(job.snapshots)

    assert restored is not None and restored.number == snapshot.number
    expected = {**before, "absolute": "step-1/model.bin"}
    assert checkpoints(other) == expected
    assert (other.folder / "run.sh").stat().st_mode & 0o7777 == 0o700
    assert (other.folder / "step-1" / "state.json").stat().st_mtime_ns == 1_000_000_001


def test_thousands_of_small_files_are_restored(local_job: Job) -> None:
    local_job.run({f"step-1/{number}": str(number) for number in range(2_000)})
    (node,) = local_job.attempt()
    node.restore(local_job.snapshots)

    files = list((node.folder / "step-1").iterdir())
    assert len(files) == 2_000
    assert all(path.read_text() == path.name for path in files)


def test_the_final_snapshot_holds_the_programs_last_files(job: Job) -> None:
    job.run({"final.pt": "done"})

    assert paths(job.newest()) == {"final.pt"}
    status = json.loads(job.bucket.get(run_key("run", RUN_STATUS)))
    assert (status["kind"], status["state"]) == ("program", "ended")
    assert_valid(status, "program-status.schema.json")
    manifest = json.loads(job.snapshots.get(job.newest().key))
    assert_valid(manifest, "snapshot.schema.json")
    assert status["snapshots"] == [{"number": 1, "at": job.newest().at, "files": 1, "bytes": 4}]
