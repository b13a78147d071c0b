"""Bucket contents change nothing outside their folder and run nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import scaled

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / folder) for folder in ("", "emulators"))
KINDS = 24


def python(*arguments: str, within_s: float) -> subprocess.CompletedProcess[str]:
    """Run this Python in a separate process: an audit hook cannot be removed."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": PATHS},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(within_s),
        check=False,
    )


def fuzz(cases: int, seed: int) -> dict[str, Any]:
    ended = python(
        *("-m", "tests.untrusted.fuzz", "--cases", str(cases), "--seed", str(seed)),
        within_s=60 + cases / 20,
    )
    assert ended.returncode in (0, 1), ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["wrong"] == []
    assert sum(found["outcomes"].values()) == found["cases"] == cases
    assert len({outcome.partition(":")[0] for outcome in found["outcomes"]}) == KINDS
    return found


def test_hundreds_of_random_bucket_changes_are_harmless() -> None:
    outcomes = fuzz(460, seed=1)["outcomes"]

    # Some changes are harmless, so the cases reach what lies behind the refusals. Which ones are
    # rare depends on the version of Python.
    assert {"local-snapshot: read", "tensors: read", "packed-manifest: refused"} <= outcomes.keys()


# The hundreds above are of the same kinds.
@pytest.mark.full
def test_ten_thousand_random_bucket_changes_are_harmless() -> None:
    outcomes = fuzz(10_000, seed=2)["outcomes"]

    assert {"metadata: read", "snapshot: read"} <= outcomes.keys()


HARM = {
    "a file outside": "open('{outside}/new', 'w')",
    "a file through a link": "open('{inside}/link/new', 'w')",
    "a file outside by number": "os.open('{outside}/new', os.O_CREAT | os.O_RDWR)",
    "a relative path": "os.open('../outside/new', os.O_CREAT | os.O_RDWR)",
    "a folder outside": "os.mkdir('{outside}/new')",
    "a folder of a folder": "os.mkdir('new', dir_fd=os.open('{outside}', os.O_RDONLY))",
    "a removal outside": "os.unlink('{outside}/x')",
    "a rename out": "os.rename('{inside}/a', '{outside}/a')",
    "a mode outside": "os.chmod('{outside}/x', 0o777)",
    "a command": "os.system('true')",
    "a process": "subprocess.Popen(['true'])",
    "a string that is run": "eval('1 + 1')",
    "a pickle with a name": "pickle.loads(PICKLE)",
    "a connection": "socket.create_connection(('127.0.0.1', 9))",
}


@pytest.mark.parametrize("name", HARM)
def test_guard_detects_violations(tmp_path: Path, name: str) -> None:
    """Each of these would fail a case."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside" / "a").write_bytes(b"")
    (tmp_path / "outside" / "x").write_bytes(b"")
    (tmp_path / "inside" / "link").symlink_to("../outside")
    names = {"inside": tmp_path / "inside", "outside": tmp_path / "outside"}
    script = tmp_path / "script.py"
    script.write_text(
        "import collections, os, pickle, socket, subprocess\n"
        "from pathlib import Path\n"
        "from tests.untrusted.guard import Guard, Violation\n"
        "PICKLE = pickle.dumps(collections.OrderedDict())\n"
        f"os.chdir('{tmp_path}/inside')\n"
        f"guard = Guard(Path('{tmp_path}/inside'))\n"
        "try:\n"
        "    with guard.watching():\n"
        "        open('a', 'w').close()\n"
        "        os.mkdir('b')\n"
        f"        {HARM[name].format(**names)}\n"
        "except Violation as error:\n"
        "    print('noticed', error)\n"
    )

    ended = python(str(script), within_s=20)

    assert ended.stdout.startswith("noticed"), ended.stderr
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["x"]
