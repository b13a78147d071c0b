"""Arguments for a program that resumes only on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.limits import scaled
from tests.training.program.bundles import program
from training.program.preparation import resume_arguments
from training.program.settings import split_words

if TYPE_CHECKING:
    from tests.training.conftest import Cluster


@pytest.fixture
def working(tmp_path: Path) -> Path:
    """Create a program's folder with three checkpoints in ``out``."""
    for name in ("checkpoint-9", "checkpoint-10", "last.pt"):
        (tmp_path / "out" / name).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "added"),
    [
        ("--init_from=resume", ["--init_from=resume"]),
        ("--resume out/last.pt", ["--resume", "out/last.pt"]),
        ("ckpt_path=out/last.pt", ["ckpt_path=out/last.pt"]),
        ("--from out/checkpoint-*", ["--from", "out/checkpoint-10"]),
        ("--from=./out/checkpoint-?", ["--from=out/checkpoint-9"]),
        ("--resume out/first.pt", []),
        ("--resume --from out/step-*", []),
        ("--resume /out/last.pt", ["--resume", "/out/last.pt"]),
        ("--config other/run.yaml", ["--config", "other/run.yaml"]),
        ("", []),
    ],
)
def test_a_named_checkpoint_must_exist(working: Path, words: str, added: list[str]) -> None:
    assert list(resume_arguments(split_words(words), working, working / "out")) == added


def test_without_a_folder_only_wildcards_are_names(working: Path) -> None:
    words = ("--resume", "auto", "--from", "out/checkpoint-*")

    assert resume_arguments(words, working, working)[-1] == "out/checkpoint-10"


def test_an_unclosed_quote_is_refused_with_its_location(lone_node: Cluster) -> None:
    flags = program(lone_node.folder, script="")

    lone_node.start(*flags, "--resume-arguments=--from 'out", workload="program")

    assert lone_node.end(within_s=scaled(20)) == {0: 64}
    assert "--resume-arguments --from 'out: no closing quotation" in lone_node.log(0)


def test_only_the_second_attempt_gets_the_resume_arguments(lone_node: Cluster) -> None:
    script = """
import pathlib, sys
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path(f"out/step-{len(sys.argv)}").write_text("")
print("told", sys.argv[1:], flush=True)
"""
    flags = [
        *program(lone_node.folder, script=script),
        *("--checkpoint-dir=out", "--resume-arguments=--from out/step-*"),
    ]
    told = []
    for attempt in ("1", "2"):
        lone_node.start(
            *flags, "--", "7", workload="program", extra={"AWS_BATCH_JOB_ATTEMPT": attempt}
        )
        assert lone_node.end(within_s=scaled(30)) == {0: 0}, lone_node.all_logs()
        told.append([line for line in lone_node.log(0).splitlines() if line.startswith("told")])

    assert told == [["told ['7']"], ["told ['7', '--from', 'out/step-2']"]]
