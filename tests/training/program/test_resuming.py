"""Arguments for a program that resumes only on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.program.preparation import resume_arguments
from training.program.settings import split_words


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
