"""What `python -m rehearsal run` makes of its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rehearsal.cli import options
from rehearsal.cli.options import program_of
from rehearsal.deployment.state import OptionsError, ProgramOptions, Settings


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
        ("both", ("all-reduce", "llama-tiny", "program", "mnist", "bert-tiny")),
        ("eks, batch", ("all-reduce", "llama-tiny", "program", "mnist", "bert-tiny")),
    ],
)
def test_each_half_has_its_workloads(orchestrators: str, workloads: tuple[str, ...]) -> None:
    assert checked(orchestrators=orchestrators).workloads == workloads


def test_the_quick_one_is_an_all_reduce_on_two_nodes_of_batch() -> None:
    settings = checked(quick=True, orchestrators=None, nodes=None)

    assert (settings.orchestrators, settings.workloads) == (("batch",), ("all-reduce",))
    assert (settings.nodes, checked(nodes=None).nodes) == (2, 4)


def test_faults_alone_need_no_cluster() -> None:
    settings = checked(orchestrators=None, faults=["all"])

    assert (settings.orchestrators, settings.workloads) == (("batch",), ("all-reduce",))


def test_a_program_of_the_users_is_rehearsed_alone_on_two_nodes_of_batch(tmp_path: Path) -> None:
    program = ProgramOptions(file=str(tmp_path), argv=("--epochs", "3"))
    settings = checked(program=program, orchestrators=None, nodes=None)

    assert (settings.workloads, settings.program) == (("program",), program)
    assert (settings.orchestrators, settings.nodes) == (("batch",), 2)


def test_a_program_is_named_by_its_whole_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    program = program_of(Path("train.py"), ["--lr", "1"], requirements=Path("needs.txt"))

    assert program == ProgramOptions(
        file=str(tmp_path / "train.py"),
        argv=("--lr", "1"),
        requirements=str(tmp_path / "needs.txt"),
    )


def test_a_module_is_looked_for_in_the_folder_one_is_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    program = program_of(None, ["--lr", "1"], module="mypkg.train", env=["A=1"])

    assert program == ProgramOptions(
        module="mypkg.train", workdir=str(tmp_path), argv=("--lr", "1"), env=("A=1",)
    )
    assert checked(program=program, orchestrators=None, nodes=None).program == program


def test_a_file_and_a_module_are_refused_together() -> None:
    with pytest.raises(OptionsError, match=r"train\.py and -m mypkg\.train are two programs"):
        program_of(Path("train.py"), [], module="mypkg.train")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"argv": [], "env": ["A=1"]}, "--env: for a program"),
        ({"argv": ["--epochs", "3"]}, "--epochs 3: for a program of yours"),
        ({"argv": [], "checkpoint_dir": "out"}, "--checkpoint-dir: for a program"),
        ({"argv": [], "requirements": Path("x")}, "--requirements: for a program"),
        ({"argv": [], "workdir": Path("x")}, "--workdir: for a program"),
        ({"argv": [], "exclude": ["x"]}, "--exclude: for a program"),
        ({"argv": [], "fault_after": "*.pt"}, "--fault-after: for a program"),
    ],
)
def test_what_only_a_program_has_is_refused_without_one(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError, match=f"{words}.*--program FILE"):
        program_of(None, given.pop("argv"), **given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"orchestrators": "slurm"}, "'slurm' is unknown"),
        ({"orchestrators": "bach"}, "did you mean 'batch'"),
        ({"orchestrators": "batch", "workloads": ["mnist"]}, "--workload mnist is not rehearsed"),
        ({"orchestrators": "eks", "faults": ["all"]}, "--orchestrators batch"),
        ({"orchestrators": "eks", "containers": True}, "give --orchestrators batch"),
        ({"quick": True, "faults": ["all"], "orchestrators": None}, "--quick is an all-reduce"),
        ({"parameters": ["max-steps"]}, "has no value"),
        ({"parameters": ["colour=red"]}, "none of all-reduce, llama-tiny"),
        ({"orchestrators": "eks", "nodes": 1}, "--nodes 4"),
        (
            {"program": ProgramOptions(file="/"), "quick": True, "orchestrators": None},
            "rehearsed alone",
        ),
        (
            {"program": ProgramOptions(file="/"), "faults": ["no-capacity"]},
            "no-capacity is not for",
        ),
        ({"program": ProgramOptions(file="/no/train.py")}, "/no/train.py does not exist"),
        ({"program": ProgramOptions(file="/", requirements="/no")}, "/no does not exist"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        checked(**changes)
