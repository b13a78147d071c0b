"""Watching a program's run: status, code, snapshot downloads and TensorBoard files."""

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
from jobs.commands.tensorboard import LogMirror, copy_logs
from jobs.output.program_status import describe_program
from jobs.program.losses import joined
from tests.jobs.conftest import Cli
from tests.jobs.fakes import client_error
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms
from trainium_catalogue import contract

NOW = datetime(2026, 11, 22, 14, 0, tzinfo=UTC)


def read(cli: Cli, key: str) -> bytes:
    data: bytes = cli.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read()
    return data


def submit(cli: Cli, folder: Path, text: str) -> None:
    """Submit a program with this text as the run `x`, and end it."""
    (folder / "train.py").write_text(text)
    (folder / "run.sh").write_text("exec python train.py\n")
    (folder / "run.sh").chmod(0o755)
    words = ("submit", "./train.py", "--name", "x", "--yes", "--", "--lines", str(len(text)))
    assert cli.run(*words).exit_code == 0
    for job in cli.jobs("x"):
        cli.backend_job(job["jobId"]).status = "SUCCEEDED"


@pytest.fixture
def run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Submit the run `x`; return the program's folder."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    submit(cli, folder, "print(1)\n")
    return folder


@pytest.fixture
def run_twice(cli: Cli, run: Path) -> Path:
    """Submit the run a second time, with other code."""
    submit(cli, run, "print(2)\nprint(3)\n")
    return run


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


def test_status_has_last_line_pace_and_newest_snapshot() -> None:
    assert describe_program(status_document(), submitted_at_ms=None, now=NOW) == (
        "program: running, step 70, loss 2.5000, 2 s per step\n"
        "last line, 4 s ago: step 70: loss 2.5\n"
        "newest snapshot: 4, 40 s ago, 4 files, 12 MB; older: 3 (1 min 40 s ago)"
    )


def test_silent_program_is_shown() -> None:
    silent = status_document(last_line=None, step=None, loss=None, steps_per_second=None)

    text = describe_program({**silent, "snapshots": []}, submitted_at_ms=None, now=NOW)

    assert text == "program: running\nno output yet\nno snapshot yet"
    over = {**silent, "snapshots": [], "state": "ended"}
    assert (
        "nothing was saved: the program ended without a snapshot, for example because it wrote "
        "nothing" in (describe_program(over, submitted_at_ms=None, now=NOW))
    )


def test_status_shows_program_under_job(cli: Cli, run: Path) -> None:
    cli.put("runs/x/results/status.json", status_document())

    result = cli.run("status", "x")

    assert "step 70: loss 2.5" in result.stdout
    assert "newest snapshot: 4" in result.stdout
    document = json.loads(cli.run("status", "x", "--json").stdout)
    conforms("jobs-status", document)
    assert document["training"]["snapshots"][1]["number"] == 4


def losses(cli: Cli, name: str, *points: tuple[int, float]) -> None:
    lines = (json.dumps({"step": step, "loss": loss}) for step, loss in points)
    cli.put(f"runs/x/metrics/losses/{name}.jsonl", "\n".join(lines).encode())


def test_losses_of_all_attempts_are_plotted(cli: Cli, run: Path) -> None:
    cli.put("runs/x/results/status.json", status_document())
    losses(cli, "20261122T120000Z-attempt-1", (10, 9.5), (20, 8.5), (30, 70.5))
    losses(cli, "20261122T130000Z-attempt-2", (20, 8.25), (40, 7.5))

    shown = cli.run("status", "x", "--plot").stdout

    assert "9.5" in shown and "7.5" in shown and "loss" in shown
    assert "70" not in shown.partition("newest snapshot")[2]  # repeated by the second attempt
    assert joined([{10: 9.5, 20: 8.5, 30: 70.5}, {}, {20: 8.25, 40: 7.5}]) == {
        10: 9.5, 20: 8.25, 40: 7.5,
    }  # fmt: skip


def test_plot_without_losses_explains_pattern(cli: Cli, run: Path) -> None:
    assert "run x has printed nothing yet" in cli.run("status", "x", "--plot").stderr

    cli.put("runs/x/results/status.json", status_document())
    assert "fewer than two lines have a loss in the format of Hugging Face" in (
        cli.run("status", "x", "--plot").stderr
    )

    for pattern, says in (
        ("at (?P<step>.*)", "--progress-pattern at (?P<step>.*) has no group for the loss"),
        (
            "(?P<step>.)(?P<loss>.)",
            "fewer than two lines with a loss matched --progress-pattern (?P<st",
        ),
    ):
        cli.run("submit", "./train.py", "--name", "x", "--yes", "--progress-pattern", pattern)
        assert says in cli.run("status", "x", "--plot").stderr
        cli.backend_job(str(cli.jobs("x")[-1]["jobId"])).status = "SUCCEEDED"


def test_written_documents_match_schemas(cli: Cli, run_twice: Path) -> None:
    record = json.loads(read(cli, "runs/x/program.json"))

    conforms("program", record)
    assert len(record["submissions"]) == 2
    for item in record["submissions"]:
        conforms("bundle", json.loads(read(cli, f"runs/x/code/{item['code']}.json")))


def test_code_lists_submissions_and_files_of_one(cli: Cli, run_twice: Path) -> None:
    result = cli.run("code", "x")

    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("submission 1, ")
    assert lines[0].endswith(": train.py --lines 9")
    assert lines[2] == "files of submission 2 of run x:"
    assert [line.split()[-1] for line in lines[3:]] == ["run.sh", "train.py"]
    conforms("jobs-code", json.loads(cli.run("code", "x", "--json").stdout))


def test_code_restores_files_verbatim(cli: Cli, run_twice: Path, tmp_path: Path) -> None:
    to = tmp_path / "back"

    first = cli.run("code", "x", "--submission", "1", "--fetch", str(to))
    again = cli.run("code", "x", "--submission", "1", "--fetch", str(to))

    assert first.exit_code == again.exit_code == 0, first.stderr
    assert (to / "train.py").read_text() == "print(1)\n"
    assert os.access(to / "run.sh", os.X_OK)
    assert first.stderr == f"wrote 2 files to {to}\n"
    assert again.stderr == f"wrote 0 files to {to}; 2 files already present\n"


def test_code_overwrites_nothing(cli: Cli, run_twice: Path) -> None:
    assert_refused(
        cli.run("code", "x", "--submission", "1", "--fetch", "."),
        "train.py exists with different contents",
    )
    assert (run_twice / "train.py").read_text() == "print(2)\nprint(3)\n"


def test_code_compares_with_folder(cli: Cli, run_twice: Path) -> None:
    assert "no difference" in cli.run("code", "x", "--diff", ".").stderr
    said = cli.run("code", "x", "--submission", "1", "--diff", ".").stderr
    assert "files: train.py changed (+2 -1)" in said


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (("y",), "there is no run 'y'"),
        (("built-in",), "run built-in is not a program of your own"),
        (
            ("x", "--submission", "2"),
            "--submission 2: run x has 1 submission; omit the option",
        ),
        (("x", "--diff", "none"), "--diff none is not a folder"),
        (("x", "--fetch", "train.py"), "--fetch train.py is a file; specify a folder"),
    ],
)
def test_code_refuses_invalid_request(
    cli: Cli, run: Path, words: tuple[str, ...], fragment: str
) -> None:
    cli.put("runs/built-in/run.json", {"workload": "bert"})

    assert_refused(cli.run("code", *words), fragment)


def test_code_refuses_bundle_with_wrong_hash_or_missing(cli: Cli, run: Path) -> None:
    code = json.loads(read(cli, "runs/x/program.json"))["submissions"][-1]["code"]
    cli.put(f"runs/x/code/{code}.tar.gz", b"other")

    words = ("code", "x", "--fetch", "back")
    assert_refused(cli.run(*words), "does not match the hash in its name")
    cli.client("s3").delete_object(Bucket="bucket", Key=f"runs/x/code/{code}.tar.gz")
    assert_refused(cli.run(*words), "the code of run x no longer exists")
    cli.client("s3").delete_object(Bucket="bucket", Key=f"runs/x/code/{code}.json")
    assert_refused(cli.run("code", "x"), "the code of run x no longer exists")


def test_code_refuses_list_that_does_not_match_bundle(cli: Cli, run: Path) -> None:
    code = json.loads(read(cli, "runs/x/program.json"))["submissions"][-1]["code"]
    key = f"runs/x/code/{code}.json"
    listing = json.loads(read(cli, key))

    for path, says in (
        ("gone.py", "gone.py is missing from the bundle"),
        ("../up.py", "leads out of its folder"),
    ):
        listing["files"][0]["path"] = path
        cli.put(key, listing)
        assert_refused(cli.run("code", "x", "--fetch", "back"), says)


def snapshot(cli: Cli, number: int, *files: tuple[str, bytes, list[int]]) -> None:
    """Put a complete snapshot into the bucket, as nodes do."""
    entries: list[dict[str, Any]] = []
    for path, data, nodes in files:
        digest = hashlib.sha256(data).hexdigest()
        cli.put(f"runs/x/snapshots/objects/{digest}", data)
        entry = {"root": "checkpoints", "path": path, "bytes": len(data), "sha256": digest}
        entries.append({**entry, "mode": 0o644, "mtime_ns": 1, "nodes": nodes})
    cache = {**entries[0], "root": "cache", "path": "a.neff"}
    document = {
        "format": 1, "number": number, "at": NOW.isoformat(), "nodes": 2, "main": 0,
        "bytes": sum(entry["bytes"] for entry in entries), "files": [*entries, cache],
    }  # fmt: skip
    conforms("snapshot", document)
    cli.put(f"runs/x/snapshots/{number:08d}.json", document)


def test_newest_snapshot_can_be_downloaded(cli: Cli, run: Path, tmp_path: Path) -> None:
    snapshot(cli, 1, ("latest.pt", b"old", [0, 1]))
    snapshot(cli, 2, ("latest.pt", b"new", [0, 1]), ("shard/a", b"0", [0]), ("shard/a", b"1", [1]))
    to = tmp_path / "here"

    result = cli.run("download", "x", "--to", str(to), "--json")

    assert result.exit_code == 0, result.stderr
    conforms("jobs-download", json.loads(result.stdout))
    assert (to / "latest.pt").read_bytes() == b"new"
    assert (to / "node-0" / "shard" / "a").read_bytes() == b"0"
    assert (to / "node-1" / "shard" / "a").read_bytes() == b"1"
    assert "snapshot 2 of run x" in result.stderr
    assert not list(to.rglob("*.neff"))


def test_older_snapshot_can_be_downloaded(cli: Cli, run: Path, tmp_path: Path) -> None:
    snapshot(cli, 1, ("latest.pt", b"old", [0, 1]))
    snapshot(cli, 2, ("latest.pt", b"new", [0, 1]))
    words = ("download", "x", "--to", str(tmp_path / "here"), "--snapshot")

    assert_refused(cli.run(*words, "3"), "--snapshot 3: run x has no such snapshot; it has 2 (")
    assert cli.run(*words, "1").exit_code == 0
    assert (tmp_path / "here" / "latest.pt").read_bytes() == b"old"


def test_snapshot_with_other_bytes_is_refused(cli: Cli, run: Path, tmp_path: Path) -> None:
    snapshot(cli, 1, ("latest.pt", b"new", [0, 1]))
    digest = hashlib.sha256(b"new").hexdigest()
    cli.put(f"runs/x/snapshots/objects/{digest}", b"wen")

    assert_refused(
        cli.run("download", "x", "--to", str(tmp_path / "here")),
        "latest.pt does not match its snapshot",
    )


def test_download_without_snapshot_is_refused(cli: Cli, run: Path) -> None:
    assert_refused(cli.run("download", "x", "--to", "here"), "run x has no complete snapshot yet")
    cli.put("runs/x/results/status.json", status_document(state="ended", snapshots=[]))
    assert_refused(
        cli.run("download", "x", "--to", "here"),
        "run x: nothing was saved: the program ended without a snapshot",
        "again with --checkpoint-dir",
    )  # fmt: skip


def test_tensorboard_finds_event_files_in_newest_snapshot(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    name = "tb/events.out.tfevents.1.host.1.0"
    bucket = Bucket(client=cli.client("s3"), name="bucket")
    snapshot(cli, 1, (name, b"one", [0]), ("latest.pt", b"x", [0]))

    assert copy_logs(bucket, "x", tmp_path / "tb") == 1
    assert (tmp_path / "tb" / "node-0" / name).read_bytes() == b"one"
    snapshot(cli, 2, (name, b"one and two", [0]))
    cli.put("runs/x/results/output/events.out.tfevents.2", b"two")
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
def test_log_mirror_retries_and_notes_pause_once(
    error: Exception,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli.put("runs/x/logs/events.out.tfevents.1", b"one")
    copies = LogMirror(Bucket(client=cli.client("s3"), name="bucket"), "x", tmp_path / "x")

    def fail(*words: object) -> Any:
        raise error

    with monkeypatch.context() as away:
        away.setattr(Bucket, "objects", fail)
        copies.renew()
        copies.renew()
    copies.renew()
    copies.renew()

    notes = capsys.readouterr().err
    assert notes.count("the curves are not being updated") == 1
    assert notes.count("the curves are being updated again") == 1
    assert (tmp_path / "x" / "events.out.tfevents.1").read_bytes() == b"one"


def test_missing_event_files_are_refused_with_folder(cli: Cli, run: Path) -> None:
    snapshot(cli, 1, ("latest.pt", b"x", [0]))

    assert_refused(
        cli.run("tensorboard", "x", "--no-browser"),
        "has no file with tfevents in its name", contract.ENV_CHECKPOINT_DIR,
    )  # fmt: skip
