"""A program's run, watched: status, code, snapshots to download, TensorBoard's files."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from jobs.bucket.objects import Bucket
from jobs.commands.tensorboard import Copies, copy_logs
from jobs.output.program_status import describe_program
from jobs.program.losses import joined
from tests.jobs.conftest import Desk
from tests.jobs.fakes import client_error
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms
from trainium_catalogue import contract

NOW = datetime(2026, 11, 22, 14, 0, tzinfo=UTC)


def read(desk: Desk, key: str) -> bytes:
    data: bytes = desk.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read()
    return data


@pytest.fixture
def run(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Submit the run `x` twice, with other code the second time; return the program's folder."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for text in ("print(1)\n", "print(2)\nprint(3)\n"):
        (folder / "train.py").write_text(text)
        (folder / "run.sh").write_text("exec python train.py\n")
        (folder / "run.sh").chmod(0o755)
        words = ("submit", "./train.py", "--name", "x", "--yes", "--", "--lines", str(len(text)))
        assert desk.run(*words).exit_code == 0
        for job in desk.jobs("x"):
            desk.backend_job(job["jobId"]).status = "SUCCEEDED"
    return folder


def status_document(**more: Any) -> dict[str, Any]:
    document = {
        "kind": "program", "state": "running", "last_line": "step 70: loss 2.5",
        "last_line_at": (NOW - timedelta(seconds=4)).isoformat(), "step": 70, "loss": 2.5,
        "steps_per_second": 0.5,
        "snapshots": [
            {"number": 3, "at": (NOW - timedelta(seconds=100)).isoformat(), "files": 4,
             "bytes": 9_000_000},
            {"number": 4, "at": (NOW - timedelta(seconds=40)).isoformat(), "files": 4,
             "bytes": 12_000_000},
        ],
        "updated_at": (NOW - timedelta(seconds=2)).isoformat(),
    }  # fmt: skip
    conforms("program-status", document)
    return {**document, **more}


def test_a_status_has_the_last_line_the_pace_and_the_newest_snapshot() -> None:
    assert describe_program(status_document(), submitted_at_ms=None, now=NOW) == (
        "program: running, step 70, loss 2.5000, 2 s a step\n"
        "last line, 4 s ago: step 70: loss 2.5\n"
        "newest snapshot: 4, 40 s ago, 4 files, 12 MB; older: 3 (1 min 40 s ago)"
    )


def test_a_program_that_has_said_nothing_is_shown_so() -> None:
    silent = status_document(last_line=None, step=None, loss=None, steps_per_second=None)

    text = describe_program({**silent, "snapshots": []}, submitted_at_ms=None, now=NOW)

    assert text == "program: running\nit has printed nothing yet\nno snapshot yet"
    over = {**silent, "snapshots": [], "state": "ended"}
    assert "nothing was kept: it ended without a snapshot, as it does if it writes nothing" in (
        describe_program(over, submitted_at_ms=None, now=NOW)
    )


def test_status_shows_it_under_the_job(desk: Desk, run: Path) -> None:
    desk.put("runs/x/results/status.json", status_document())

    result = desk.run("status", "x")

    assert "step 70: loss 2.5" in result.stdout
    assert "newest snapshot: 4" in result.stdout
    document = json.loads(desk.run("status", "x", "--json").stdout)
    conforms("jobs-status", document)
    assert document["training"]["snapshots"][1]["number"] == 4


def losses(desk: Desk, name: str, *points: tuple[int, float]) -> None:
    lines = (json.dumps({"step": step, "loss": loss}) for step, loss in points)
    desk.put(f"runs/x/metrics/losses/{name}.jsonl", "\n".join(lines).encode())


def test_the_losses_of_all_attempts_are_drawn(desk: Desk, run: Path) -> None:
    desk.put("runs/x/results/status.json", status_document())
    losses(desk, "20261122T120000Z-attempt-1", (10, 9.5), (20, 8.5), (30, 70.5))
    losses(desk, "20261122T130000Z-attempt-2", (20, 8.25), (40, 7.5))

    shown = desk.run("status", "x", "--plot").stdout

    assert "9.5" in shown and "7.5" in shown and "loss" in shown
    assert "70" not in shown.partition("newest snapshot")[2]  # made anew by the second attempt
    assert joined([{10: 9.5, 20: 8.5, 30: 70.5}, {}, {20: 8.25, 40: 7.5}]) == {
        10: 9.5, 20: 8.25, 40: 7.5,
    }  # fmt: skip


def test_without_losses_it_is_said_what_a_pattern_needs(desk: Desk, run: Path) -> None:
    assert "run x has printed nothing yet" in desk.run("status", "x", "--plot").stderr

    desk.put("runs/x/results/status.json", status_document())
    assert "in fewer than two lines a loss was found, in the forms of Hugging Face" in (
        desk.run("status", "x", "--plot").stderr
    )

    for pattern, says in (
        ("at (?P<step>.*)", "--progress-pattern at (?P<step>.*) has no group for the loss"),
        ("(?P<step>.)(?P<loss>.)", "fewer than two lines have matched --progress-pattern (?P<st"),
    ):
        desk.run("submit", "./train.py", "--name", "x", "--yes", "--progress-pattern", pattern)
        assert says in desk.run("status", "x", "--plot").stderr
        desk.backend_job(str(desk.jobs("x")[-1]["jobId"])).status = "SUCCEEDED"


def test_what_the_desk_writes_is_what_the_schemas_say(desk: Desk, run: Path) -> None:
    record = json.loads(read(desk, "runs/x/program.json"))

    conforms("program", record)
    assert len(record["submissions"]) == 2
    for item in record["submissions"]:
        conforms("bundle", json.loads(read(desk, f"runs/x/code/{item['code']}.json")))


def test_code_lists_every_submission_and_the_files_of_one(desk: Desk, run: Path) -> None:
    result = desk.run("code", "x")

    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("submission 1, ")
    assert lines[0].endswith(": train.py --lines 9")
    assert lines[2] == "files of submission 2 of run x:"
    assert [line.split()[-1] for line in lines[3:]] == ["run.sh", "train.py"]
    conforms("jobs-code", json.loads(desk.run("code", "x", "--json").stdout))


def test_code_gives_the_files_back_as_they_were(desk: Desk, run: Path, tmp_path: Path) -> None:
    to = tmp_path / "back"

    first = desk.run("code", "x", "--submission", "1", "--fetch", str(to))
    again = desk.run("code", "x", "--submission", "1", "--fetch", str(to))

    assert first.exit_code == again.exit_code == 0, first.stderr
    assert (to / "train.py").read_text() == "print(1)\n"
    assert os.access(to / "run.sh", os.X_OK)
    assert first.stderr == f"wrote 2 files to {to}\n"
    assert again.stderr == f"wrote 0 files to {to}; 2 files there already\n"


def test_code_overwrites_nothing(desk: Desk, run: Path) -> None:
    assert_refused(
        desk.run("code", "x", "--submission", "1", "--fetch", "."),
        "train.py is there already and holds something else",
    )
    assert (run / "train.py").read_text() == "print(2)\nprint(3)\n"


def test_code_compares_with_a_folder(desk: Desk, run: Path) -> None:
    assert "no difference" in desk.run("code", "x", "--diff", ".").stderr
    said = desk.run("code", "x", "--submission", "1", "--diff", ".").stderr
    assert "files: train.py changed (+2 -1)" in said


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (("y",), "there is no run 'y'"),
        (("built-in",), "run built-in is no program of your own"),
        (("x", "--submission", "3"), "--submission 3: run x has 2 submissions; give a number from"),
        (("x", "--diff", "none"), "--diff none is not a folder"),
        (("x", "--fetch", "train.py"), "--fetch train.py is a file; name a folder"),
    ],
)
def test_code_refuses(desk: Desk, run: Path, words: tuple[str, ...], fragment: str) -> None:
    desk.put("runs/built-in/run.json", {"workload": "bert"})

    assert_refused(desk.run("code", *words), fragment)


def test_code_refuses_a_bundle_that_is_not_its_hash_or_is_gone(desk: Desk, run: Path) -> None:
    code = json.loads(read(desk, "runs/x/program.json"))["submissions"][-1]["code"]
    desk.put(f"runs/x/code/{code}.tar.gz", b"other")

    words = ("code", "x", "--fetch", "back")
    assert_refused(desk.run(*words), "does not hold the bytes that its name says")
    desk.client("s3").delete_object(Bucket="bucket", Key=f"runs/x/code/{code}.tar.gz")
    assert_refused(desk.run(*words), "the code of run x is gone")
    desk.client("s3").delete_object(Bucket="bucket", Key=f"runs/x/code/{code}.json")
    assert_refused(desk.run("code", "x"), "the code of run x is gone")


def test_code_refuses_a_list_that_is_not_the_bundles(desk: Desk, run: Path) -> None:
    code = json.loads(read(desk, "runs/x/program.json"))["submissions"][-1]["code"]
    key = f"runs/x/code/{code}.json"
    listing = json.loads(read(desk, key))

    for path, says in (
        ("gone.py", "gone.py is not in the bundle"),
        ("../up.py", "leads out of its folder"),
    ):
        listing["files"][0]["path"] = path
        desk.put(key, listing)
        assert_refused(desk.run("code", "x", "--fetch", "back"), says)


def snapshot(desk: Desk, number: int, *files: tuple[str, bytes, list[int]]) -> None:
    """Put a complete snapshot into the bucket, as the nodes do."""
    entries: list[dict[str, Any]] = []
    for path, data, nodes in files:
        digest = hashlib.sha256(data).hexdigest()
        desk.put(f"runs/x/snapshots/objects/{digest}", data)
        entry = {"root": "checkpoints", "path": path, "bytes": len(data), "sha256": digest}
        entries.append({**entry, "mode": 0o644, "mtime_ns": 1, "nodes": nodes})
    cache = {**entries[0], "root": "cache", "path": "a.neff"}
    document = {
        "format": 1, "number": number, "at": NOW.isoformat(), "nodes": 2, "main": 0,
        "bytes": sum(entry["bytes"] for entry in entries), "files": [*entries, cache],
    }  # fmt: skip
    conforms("snapshot", document)
    desk.put(f"runs/x/snapshots/{number:08d}.json", document)


def test_the_newest_snapshot_can_be_downloaded(desk: Desk, run: Path, tmp_path: Path) -> None:
    snapshot(desk, 1, ("latest.pt", b"old", [0, 1]))
    snapshot(desk, 2, ("latest.pt", b"new", [0, 1]), ("shard/a", b"0", [0]), ("shard/a", b"1", [1]))
    to = tmp_path / "here"

    result = desk.run("download", "x", "--to", str(to), "--json")

    assert result.exit_code == 0, result.stderr
    conforms("jobs-download", json.loads(result.stdout))
    assert (to / "latest.pt").read_bytes() == b"new"
    assert (to / "node-0" / "shard" / "a").read_bytes() == b"0"
    assert (to / "node-1" / "shard" / "a").read_bytes() == b"1"
    assert "snapshot 2 of run x" in result.stderr
    assert not list(to.rglob("*.neff"))


def test_an_older_snapshot_can_be_downloaded(desk: Desk, run: Path, tmp_path: Path) -> None:
    snapshot(desk, 1, ("latest.pt", b"old", [0, 1]))
    snapshot(desk, 2, ("latest.pt", b"new", [0, 1]))
    words = ("download", "x", "--to", str(tmp_path / "here"), "--snapshot")

    assert_refused(desk.run(*words, "3"), "--snapshot 3: run x has no such snapshot; it has 2 (")
    assert desk.run(*words, "1").exit_code == 0
    assert (tmp_path / "here" / "latest.pt").read_bytes() == b"old"


def test_a_snapshot_with_other_bytes_is_refused(desk: Desk, run: Path, tmp_path: Path) -> None:
    snapshot(desk, 1, ("latest.pt", b"new", [0, 1]))
    digest = hashlib.sha256(b"new").hexdigest()
    desk.put(f"runs/x/snapshots/objects/{digest}", b"wen")

    assert_refused(
        desk.run("download", "x", "--to", str(tmp_path / "here")),
        "latest.pt does not hold what its snapshot says",
    )


def test_without_a_snapshot_there_is_nothing_to_download(desk: Desk, run: Path) -> None:
    assert_refused(desk.run("download", "x", "--to", "here"), "run x has no complete snapshot yet")
    desk.put("runs/x/results/status.json", status_document(state="ended", snapshots=[]))
    assert_refused(
        desk.run("download", "x", "--to", "here"),
        "run x: nothing was kept: it ended without a snapshot", "again with --checkpoint-dir",
    )  # fmt: skip


def test_tensorboard_finds_event_files_in_the_newest_snapshot(
    desk: Desk, run: Path, tmp_path: Path
) -> None:
    name = "tb/events.out.tfevents.1.host.1.0"
    bucket = Bucket(client=desk.client("s3"), name="bucket")
    snapshot(desk, 1, (name, b"one", [0]), ("latest.pt", b"x", [0]))

    assert copy_logs(bucket, "x", tmp_path / "tb") == 1
    assert (tmp_path / "tb" / "node-0" / name).read_bytes() == b"one"
    snapshot(desk, 2, (name, b"one and two", [0]))
    desk.put("runs/x/results/output/events.out.tfevents.2", b"two")
    assert copy_logs(bucket, "x", tmp_path / "tb") == 2
    assert (tmp_path / "tb" / "node-0" / name).read_bytes() == b"one and two"
    assert (tmp_path / "tb" / "output" / "events.out.tfevents.2").read_bytes() == b"two"


@pytest.mark.parametrize(
    "error",
    [
        client_error("ExpiredToken"),
        EndpointConnectionError(endpoint_url="https://s3"),
        client_error("SlowDown", status=503),
    ],
)
def test_copies_of_logs_wait_for_aws_and_the_pause_is_noted_once(
    error: Exception,
    desk: Desk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    desk.put("runs/x/logs/events.out.tfevents.1", b"one")
    copies = Copies(Bucket(client=desk.client("s3"), name="bucket"), "x", tmp_path / "x")

    def fail(*words: object) -> Any:
        raise error

    with monkeypatch.context() as away:
        away.setattr(Bucket, "objects", fail)
        copies.renew()
        copies.renew()
    copies.renew()
    copies.renew()

    notes = capsys.readouterr().err
    assert notes.count("the curves are not renewed at the moment") == 1
    assert notes.count("the curves are renewed again") == 1
    assert (tmp_path / "x" / "events.out.tfevents.1").read_bytes() == b"one"


def test_a_program_without_event_files_is_told_where_to_write_them(desk: Desk, run: Path) -> None:
    snapshot(desk, 1, ("latest.pt", b"x", [0]))

    assert_refused(
        desk.run("tensorboard", "x", "--no-browser"),
        "has no file with tfevents in its name", contract.ENV_CHECKPOINT_DIR,
    )  # fmt: skip
