"""A program sees exactly what bare torchrun would give it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import scaled
from tests.training.program.bundles import bundle, leave

ROOT = Path(__file__).resolve().parents[3]
ARGUMENTS = [
    "--epochs",
    "3",
    "two words",
    "",
    "quo\"te's",
    "grüße",
    "$HOME",
    "--",
    "--code=x",
    "\n",
]

# Writes what this rank sees, before it imports anything that Python has not imported itself.
LOOK = '''
"""A program that looks around."""
import sys
modules = sorted(sys.modules)
names = sorted(globals())
import atexit, json, multiprocessing, os, pickle, signal, threading

class Kept:
    """A class of the main module, as torch.save and DataLoader workers pickle them."""

def square(number):
    return number * number

def look():
    folder = os.environ["LOOKED"]
    return {
        "argv": sys.argv,
        "cwd": os.getcwd(),
        "path": sys.path,
        "modules": modules,
        "names": names,
        "main": [repr(value) for value in (
            __name__, __file__, __package__, __spec__ and __spec__.name, __doc__, __cached__,
            type(__loader__).__name__, __annotations__,
        )],
        "is main": sys.modules["__main__"].__dict__ is globals(),
        "pickled": pickle.loads(pickle.dumps(Kept())).__class__ is Kept,
        "module": Kept.__module__,
        "flags": repr(sys.flags),
        "buffered": [sys.stdout.write_through, sys.stdout.isatty(), sys.stdin.read()],
        "encoding": [sys.stdout.encoding, sys.getfilesystemencoding(), sys.stderr.errors],
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)],
        "threads": [thread.name for thread in threading.enumerate()],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace() is None],
        "gc": __import__("gc").isenabled(),
        "environment": {k: v for k, v in os.environ.items() if k in TORCHRUN},
        "handlers": atexit._ncallbacks(),
    }

TORCHRUN = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "OMP_NUM_THREADS",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
    "PWD",
}

if __name__ == "__main__":
    seen = look()
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            seen[how] = pool.map(square, [2, 3])
    def last():
        pickle.dumps(Kept())
        with open(f"{os.environ['LOOKED']}/{os.environ['RANK']}.json", "w") as file:
            json.dump(seen, file)
    atexit.register(last)
'''
FILES = {"sub/look.py": LOOK, "sub/helper.py": "", "pkg/__init__.py": "", "pkg/look.py": LOOK}


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:/somewhere",
        "LOOKED": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def read(folder: Path, code: str) -> list[dict[str, Any]]:
    documents = []
    for rank in (0, 1):
        text = (folder / f"{rank}.json").read_text()
        documents.append(json.loads(text.replace(code, "CODE")))
    return documents


def bare(folder: Path, words: list[str]) -> list[dict[str, Any]]:
    """Return the view of two ranks started by torchrun in the program's folder."""
    code, out = folder / "bare", folder / "bare-out"
    out.mkdir()
    for path, text in FILES.items():
        (code / path).parent.mkdir(parents=True, exist_ok=True)
        (code / path).write_text(text)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--nproc-per-node=2", "--nnodes=1", f"--master-port={port}"]
    flags += ["--master-addr=127.0.0.1", "--local-addr=127.0.0.1"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *flags, *words, *ARGUMENTS],
        cwd=code,
        env={**environment(out), "PYTHONPATH": "/somewhere", "PWD": str(code)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read(out, str(code))


def launched(folder: Path, flags: list[str]) -> list[dict[str, Any]]:
    """Return the view of two ranks started by the launcher."""
    out = folder / "out"
    out.mkdir()
    digest = leave(folder, bundle(FILES), run="local")
    command = [sys.executable, "-m", "training.launch", "program", f"--code={digest}", *flags]
    done = subprocess.run(
        [*command, "--", *ARGUMENTS],
        cwd=folder,
        env={
            **environment(out),
            "TRAINIUM_DEVICE": "cpu",
            "TRAINIUM_PROCESSES_PER_NODE": "2",
        },
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (code,) = {json.loads(path.read_text())["cwd"] for path in out.iterdir()}
    return read(out, code)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        # The sample of `make rehearse` is a script.
        pytest.param(["sub/look.py"], ["--script=sub/look.py"], marks=pytest.mark.full),
        (["-m", "pkg.look"], ["--module=pkg.look"]),
    ],
)
def test_a_program_sees_exactly_torchruns_environment(
    words: list[str], flags: list[str], tmp_path: Path
) -> None:
    expected, seen = bare(tmp_path, words), launched(tmp_path, flags)

    for rank in (0, 1):
        assert seen[rank] == expected[rank]
    assert seen[0]["argv"][1:] == ARGUMENTS
    assert seen[0]["spawn"] == seen[0]["fork"] == [4, 9]
