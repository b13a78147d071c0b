"""Unwritable output, closed input, and text with terminal control sequences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.bucket.transfers import Direction, TransferItem, move
from jobs.output.console import printable
from jobs.output.terminal import Terminal, with_colors
from tests.jobs.conftest import Cli
from tests.jobs.test_commands import write
from tests.jobs.test_untrusted_keys import bucket_of
from tests.support.limits import scaled

ROOT = Path(__file__).resolve().parents[2]
CLI = f"{sys.executable} -m jobs"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\rfaked\u202e\x9b2J"
"""A title, a cleared screen, an overwritten line, right-to-left text and a C1 control."""


def shell(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command line; ``{cli}`` is the CLI."""
    return subprocess.run(
        ["bash", "-c", script.replace("{cli}", CLI)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


@pytest.mark.parametrize("command", ["catalogue --json", "submit --help"])
def test_full_disk_behind_stdout_is_one_message(command: str) -> None:
    done = shell(f"{{cli}} {command} > /dev/full")

    assert done.stderr == (
        "<stdout> cannot be written: no space left on device; changes already made by "
        "the command remain\n"
    )
    assert (done.returncode, done.stderr.count("\n")) == (74, 1)


def test_full_disk_behind_stderr_is_a_failure() -> None:
    assert shell("{cli} status 2> /dev/full", AWS_REGION="nowhere").returncode == 74


@pytest.mark.parametrize("command", ["catalogue --json", "submit --help"])
def test_closed_pipe_ends_command_quietly(command: str) -> None:
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


def test_question_with_closed_input_is_refused(cli: Cli) -> None:
    done = shell("{cli} submit all-reduce --nodes 2 --name nightly <&-")

    assert done.returncode == 2
    assert done.stderr.endswith("standard input is not a terminal; add --yes\n")
    assert cli.jobs("nightly") == []


def test_unencodable_character_is_escaped(program: Path) -> None:
    (program / "workload.toml").write_text('script = "train.py"\nsummary = "漢"\n')

    done = shell(f"{{cli}} submit {program} --help", PYTHONIOENCODING="latin-1")

    assert "\\u6f22" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    "address",
    [
        "foo",
        "http://",
        "http://[::",
        "http://127.0.0.1:99999",
        "ftp://x/",
    ],
)
def test_invalid_endpoint_is_one_message(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)

    result = cli.run("list")

    assert result.exit_code == 2, result.exception
    assert result.stderr.startswith("refused: AWS_ENDPOINT_URL, or the profile's endpoint_url: ")
    assert result.stderr.endswith(
        "set a URL such as http://127.0.0.1:5000, or unset it to use AWS itself\n"
    )


def is_harmless(text: str) -> bool:
    return printable(text, keep="\n\t") == text


def test_hostile_run_cannot_control_terminal(cli: Cli) -> None:
    job_id = cli.submitted("nightly")
    stream = "node/default/a"
    write(cli, stream, (0, HOSTILE), (1, f"launch: exit 1 (failed): {HOSTILE}"))
    attempt = {
        "container": {"exitCode": 1, "logStreamName": stream, "reason": HOSTILE},
        "startedAt": 1,
        "stoppedAt": 2,
        "statusReason": f"[bold]{HOSTILE}[/nothing]",
    }
    cli.with_nodes(
        job_id, {"attempts": [attempt]}, status="FAILED", statusReason=HOSTILE, attempts=[attempt]
    )
    cli.put(
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
        result = cli.run(*words)
        assert is_harmless(result.stdout), (words, result.stdout)
        assert is_harmless(result.stderr), (words, result.stderr)
        assert not isinstance(result.exception, Exception | None) or result.exit_code == 0
    assert "[/nothing]" in cli.run("status", "nightly").stdout  # no markup, and no markup error
    logged = json.loads(cli.run("logs", "nightly", "--json").stdout)["lines"]
    assert logged[0]["message"] == HOSTILE


def test_hostile_workload_file_cannot_control_terminal(cli: Cli, program: Path) -> None:
    shown = json.dumps(HOSTILE)
    (program / "workload.toml").write_text(
        f'script = "train.py"\nsummary = {shown}\n[parameters.x]\ndefault = 1\nhelp = {shown}\n'
    )

    result = cli.run("submit", ".", "--help")

    assert result.exit_code == 0
    assert "owned" in result.stdout
    assert is_harmless(result.stdout)


def test_progress_bar_does_not_interpret_names(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    path = tmp_path / "[] [/bold]\x1b[2J"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")

    moved = move(
        bucket_of(cli),
        [TransferItem(path=path, key="x", size=1)],
        Direction.UP,
        up_to_date=(),
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
def test_only_colors_of_control_sequences_are_kept(text: str, shown: str) -> None:
    assert with_colors(text) == shown
