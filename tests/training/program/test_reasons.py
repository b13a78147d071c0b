"""A rank's report of its own exit, run as by torchrun but without it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.limits import scaled
from training.core.progress import ENV_SCRATCH, Failure, read_failures, read_states
from training.program import worker
from training.program.environment import OWN_ROOTS
from training.program.reports import GO_FILE, PROGRAM_FILE
from trainium_catalogue.exit_codes import ExitCode

HEAD = """
import os, sys

def deeper():
    raise ValueError("bad\\n  data")

"""


@dataclass
class End:
    """Return rank 3's exit code, whether it reports completion, and its failures."""

    code: int
    done: bool
    failures: list[Failure]


def end_of(action: str, folder: Path) -> End:
    (folder / "train.py").write_text(HEAD + action)
    words = [str(folder), "", os.pathsep.join(OWN_ROOTS), "script", "train.py"]
    (folder / PROGRAM_FILE).write_text("\0".join(words))
    (folder / GO_FILE).touch()
    ended = subprocess.run(
        [sys.executable, "-u", worker.__file__],
        env={"PATH": os.environ["PATH"], "RANK": "3", "LOCAL_RANK": "1", ENV_SCRATCH: str(folder)},
        capture_output=True,
        timeout=scaled(10),
    )
    (state,) = read_states(folder).values()
    return End(ended.returncode, state.done, read_failures(folder))


@pytest.mark.parametrize(
    ("action", "code", "error", "weak"),
    [
        ("deeper()", 1, "ValueError: bad data", False),
        ("sys.exit('no data at all')", 1, "sys.exit: no data at all", True),
        ("sys.exit(3)", 1, "sys.exit(3)", True),
        (
            "import argparse; argparse.ArgumentParser().parse_args(['--epoch', '3'])",
            1,
            "sys.exit(2), error: unrecognized arguments: --epoch 3",
            False,
        ),
        (
            "try:\n  deeper()\nexcept ValueError:\n  sys.exit(4)",
            1,
            "sys.exit(4) while handling ValueError: bad data",
            True,
        ),
    ],
)
def test_a_rank_reports_why_it_exits(
    tmp_path: Path, action: str, code: int, error: str, weak: bool
) -> None:
    end = end_of(action, tmp_path)

    assert end.failures == [Failure(rank=3, code=ExitCode(code), error=error, weak=weak)]
    assert end.code != 0 and not end.done


def test_a_rank_reports_that_its_host_is_unfit(tmp_path: Path) -> None:
    end = end_of("raise RuntimeError('NRT_EXEC_HW_ERR_HBM_UE')", tmp_path)

    assert [(failure.code, failure.unfit_host) for failure in end.failures] == [
        (ExitCode.HOST, True)
    ]


@pytest.mark.parametrize("action", ["sys.exit()", "sys.exit(0)", "pass"])
def test_a_rank_that_ends_with_0_is_done(tmp_path: Path, action: str) -> None:
    assert end_of(action, tmp_path) == End(code=0, done=True, failures=[])


def test_a_rank_that_vanishes_reports_nothing(tmp_path: Path) -> None:
    assert end_of("os._exit(3)", tmp_path) == End(code=3, done=False, failures=[])
