"""The options of `python -m rehearsal run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rehearsal.cli import options
from rehearsal.cli.options import program_of
from rehearsal.deployment.state import OptionsError, RehearsedProgram, Settings


def checked(**changes: Any) -> Settings:
    given: dict[str, Any] = {
        "orchestrators": "batch,eks",
        "nodes": 4,
        "processes_per_node": None,
        "instance_type": "trn1.32xlarge",
        "containers": False,
        "addresses": "127.0.0",
        "path": "",
    }
    return options.check(**{**given, **changes})


@pytest.mark.parametrize(
    ("orchestrators", "workloads"),
    [
        ("batch", ("all-reduce", "llama-tiny", "program")),
        ("eks", ("mnist", "bert-tiny", "program")),
        ("eks, batch", ("all-reduce", "llama-tiny", "program", "mnist", "bert-tiny")),
    ],
)
def test_workloads_match_chosen_orchestrators(
    orchestrators: str, workloads: tuple[str, ...]
) -> None:
    assert checked(orchestrators=orchestrators).workloads == workloads


def test_quick_rehearsal_is_all_reduce_on_two_batch_nodes() -> None:
    settings = checked(quick=True, orchestrators=None, nodes=None)

    assert (settings.orchestrators, settings.workloads) == (("batch",), ("all-reduce",))
    assert (settings.nodes, checked(nodes=None).nodes) == (2, 4)


def test_user_program_is_rehearsed_alone_on_two_batch_nodes(tmp_path: Path) -> None:
    program = RehearsedProgram(file=str(tmp_path), argv=("--epochs", "3"))
    settings = checked(program=program, orchestrators=None, nodes=None)

    assert (settings.workloads, settings.program) == (("program",), program)
    assert (settings.orchestrators, settings.nodes) == (("batch",), 2)


def test_program_path_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    program = program_of(Path("train.py"), ["--lr", "1"], requirements=Path("needs.txt"))

    assert program == RehearsedProgram(
        file=str(tmp_path / "train.py"),
        argv=("--lr", "1"),
        requirements=str(tmp_path / "needs.txt"),
    )


def test_module_is_found_in_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    program = program_of(None, ["--lr", "1"], module="mypkg.train", env=["A=1"])

    assert program == RehearsedProgram(
        module="mypkg.train", workdir=str(tmp_path), argv=("--lr", "1"), env=("A=1",)
    )
    assert checked(program=program, orchestrators=None, nodes=None).program == program


def test_file_and_a_module_are_refused_together() -> None:
    with pytest.raises(OptionsError, match=r"train\.py and -m mypkg\.train are two programs"):
        program_of(Path("train.py"), [], module="mypkg.train")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"argv": [], "env": ["A=1"]}, "--env requires a program of your own"),
        ({"argv": ["--epochs", "3"]}, "--epochs 3 requires a program of your own"),
    ],
)
def test_program_options_are_refused_without_program(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError, match=f"{words}.*--program FILE"):
        program_of(None, given.pop("argv"), **given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"orchestrators": "bach"}, "did you mean 'batch'"),
        ({"orchestrators": "batch", "workloads": ["mnist"]}, "--workload mnist is not rehearsed"),
        ({"orchestrators": "eks", "faults": ["all"]}, "--orchestrators batch"),
        ({"orchestrators": "eks", "containers": True}, "pass --orchestrators batch"),
        (
            {"containers": True, "neuron_release": "2.33.0"},
            "no image contains the emulated device of --neuron-release 2.33.0",
        ),
        (
            {"quick": True, "faults": ["all"], "orchestrators": None},
            "--quick runs only an all-reduce",
        ),
        ({"parameters": ["max-steps"]}, "has no value"),
        ({"parameters": ["colour=red"]}, "none of all-reduce, llama-tiny"),
        ({"orchestrators": "eks", "nodes": 1}, "--nodes 4"),
        (
            {"program": RehearsedProgram(file="/"), "quick": True, "orchestrators": None},
            "cannot be combined with --quick",
        ),
        (
            {"program": RehearsedProgram(file="/"), "faults": ["no-capacity"]},
            "no-capacity does not apply to",
        ),
        ({"program": RehearsedProgram(file="/no/train.py")}, "/no/train.py does not exist"),
        ({"program": RehearsedProgram(file="/", requirements="/no")}, "/no does not exist"),
    ],
)
def test_invalid_options_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        checked(**changes)
