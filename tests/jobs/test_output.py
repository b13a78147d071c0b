"""Output that cannot be written, input that is closed, and text that would command a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.bucket.transfers import Direction, TransferItem, move
from jobs.output.console import printable
from jobs.output.terminal import Terminal, with_colours
from tests.jobs.conftest import Desk
from tests.jobs.test_commands import write
from tests.jobs.test_untrusted_keys import bucket_of
from tests.support.limits import scaled

ROOT = Path(__file__).resolve().parents[2]
CLI = f"{sys.executable} -m jobs"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\rfaked\u202e\x9b2J"
"""A title, a cleared screen, a line written over, text that runs backwards, and a C1 control."""


def shell(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, as a user types it; ``{cli}`` is the command line."""
    return subprocess.run(
        ["bash", "-c", script.replace("{cli}", CLI)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


@pytest.mark.parametrize("command", ["catalogue --json", "submit --help"])
def test_a_full_disk_behind_the_output_is_one_message(command: str) -> None:
    done = shell(f"{{cli}} {command} > /dev/full")

    assert done.stderr == (
        "<stdout> cannot be written: no space left on device; anything that the command has "
        "changed stays changed\n"
    )
    assert (done.returncode, done.stderr.count("\n")) == (74, 1)


def test_a_full_disk_behind_the_messages_is_no_success() -> None:
    assert shell("{cli} status 2> /dev/full", AWS_REGION="nowhere").returncode == 74


@pytest.mark.parametrize("command", ["catalogue --json", "submit --help"])
def test_a_reader_that_is_gone_ends_the_command_quietly(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [*CLI.split(), *command.split()],
        cwd=ROOT,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=scaled(60),
    )

    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("closed", ["<&-", "</dev/null"])
def test_without_an_input_a_question_is_refused(desk: Desk, closed: str) -> None:
    done = shell(f"{{cli}} submit all-reduce --nodes 2 --name nightly {closed}")

    assert done.returncode == 2
    assert done.stderr.endswith("standard input is not a terminal; add --yes\n")
    assert desk.jobs("nightly") == []


def test_a_character_that_the_terminal_lacks_is_written_out(program: Path) -> None:
    (program / "workload.toml").write_text('script = "train.py"\nsummary = "漢"\n')

    done = shell(f"{{cli}} submit {program} --help", PYTHONIOENCODING="latin-1")

    assert "\\u6f22" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("foo", ["list"]),
        ("foo", ["stop", "x"]),
        ("foo", ["kubeconfig"]),
        ("http://", ["list"]),
        ("http://[::", ["list"]),
        ("http://127.0.0.1:99999", ["list"]),
        ("http://127.0.0.1:x", ["list"]),
        ("ftp://x/", ["list"]),
    ],
)
def test_an_endpoint_that_is_none_is_one_message(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, address: str, words: list[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)

    result = desk.run(*words)

    assert result.exit_code == 2, result.exception
    assert result.stderr.startswith("refused: AWS_ENDPOINT_URL, or endpoint_url of the profile: ")
    assert result.stderr.endswith(
        "give one like http://127.0.0.1:5000, or unset it for AWS itself\n"
    )


def is_harmless(text: str) -> bool:
    return printable(text, keep="\n\t") == text


def test_a_hostile_run_commands_no_terminal(desk: Desk) -> None:
    job_id = desk.submitted("nightly")
    stream = "node/default/a"
    write(desk, stream, (0, HOSTILE), (1, f"launch: exit 1 (failed): {HOSTILE}"))
    attempt = {
        "container": {"exitCode": 1, "logStreamName": stream, "reason": HOSTILE},
        "startedAt": 1,
        "stoppedAt": 2,
        "statusReason": f"[bold]{HOSTILE}[/nothing]",
    }
    desk.with_nodes(
        job_id, {"attempts": [attempt]}, status="FAILED", statusReason=HOSTILE, attempts=[attempt]
    )
    desk.put(
        "runs/nightly/results/status.json",
        {"kind": "training", "state": HOSTILE, "error": HOSTILE, "time": "x"},
    )

    for words in (
        ("list",),
        ("status", "nightly"),
        ("logs", "nightly"),
        ("logs", "nightly", "--follow"),
        ("logs", "nightly", "--json"),
        ("status", "nightly", "--json"),
        ("status", HOSTILE),
        (HOSTILE,),
        ("list", f"--{HOSTILE}"),
        ("list", "--limit", HOSTILE),
        ("--deployment", HOSTILE, "list"),
        ("submit", HOSTILE),
        ("submit", "all-reduce", "--set", f"{HOSTILE}={HOSTILE}"),
        ("upload", HOSTILE),
    ):
        result = desk.run(*words)
        assert is_harmless(result.stdout), (words, result.stdout)
        assert is_harmless(result.stderr), (words, result.stderr)
        assert not isinstance(result.exception, Exception | None) or result.exit_code == 0
    assert "[/nothing]" in desk.run("status", "nightly").stdout  # no markup, and no error of it
    logged = json.loads(desk.run("logs", "nightly", "--json").stdout)["lines"]
    assert logged[0]["message"] == HOSTILE


def test_a_workload_file_commands_no_terminal(desk: Desk, program: Path) -> None:
    shown = json.dumps(HOSTILE)
    (program / "workload.toml").write_text(
        f'script = "train.py"\nsummary = {shown}\n[parameters.x]\ndefault = 1\nhelp = {shown}\n'
    )

    result = desk.run("submit", ".", "--help")

    assert result.exit_code == 0
    assert "owned" in result.stdout
    assert is_harmless(result.stdout)


def test_a_progress_bar_takes_names_as_they_are(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    path = tmp_path / "[] [/bold]\x1b[2J"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")

    moved = move(
        bucket_of(desk),
        [TransferItem(path=path, key="x", size=1)],
        Direction.UP,
        there=(),
        note=print,
        console=Terminal(stderr=True),
    )

    assert len(moved.moved) == 1
    shown = capfd.readouterr().err
    assert "bold]" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢\u3000字\u00a0", "plain é 漢\u3000字\u00a0"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b[31", "\\x1b[31"),
        ("\x1b]8;;http://x\x1b\\here", "\\x1b]8;;http://x\\x1b\\here"),
        ("1%\r2%", "1%\\r2%"),
        ("\u202e\u2066\x85\udcff", "\\u202e\\u2066\\x85\\udcff"),
    ],
)
def test_of_control_sequences_only_colours_are_kept(text: str, shown: str) -> None:
    assert with_colours(text) == shown
