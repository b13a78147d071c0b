"""`workload.toml`: a program's folder as a workload, and every possible mistake in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.errors import Refusal
from jobs.program.requirements import read_requirements
from jobs.program.workload_file import WorkloadFile, read_workload_file
from jobs.submit.read import OWN_OPTIONS, read_parameters
from tests.jobs.conftest import Cli
from tests.jobs.test_refusals import assert_refused

ROOT = Path(__file__).resolve().parents[2]
LINE = """
name = "line"
summary = "train a line"
script = "train.py"
nodes = 2
time_limit_hours = 3
checkpoint_dir = "out"
snapshot_every_s = 30
hang_limit_s = 900

[parameters.learning_rate]
default = 0.05
minimum = 0
help = "step size"

[parameters.optimizer]
default = "adamw"
choices = ["adamw", "sgd"]

[parameters.amp]
default = false

[parameters.seed]
type = "integer"
"""


def read(folder: Path, text: str) -> WorkloadFile:
    path = folder / "workload.toml"
    path.write_text(text)
    return read_workload_file(path, reserved=OWN_OPTIONS)


def argv(file: WorkloadFile, *words: str) -> list[str]:
    return [*file.argv(read_parameters(file.workload, words).given)]


def test_file_defines_workload_and_defaults(tmp_path: Path) -> None:
    workload = read(tmp_path, LINE).workload

    assert (workload.name, workload.summary) == ("line", "train a line")
    assert (workload.default_nodes, workload.time_limit_hours) == (2, 3.0)
    defaults = {item.name: item.default for item in workload.parameters}
    assert defaults["checkpoint-dir"] == "out"
    assert defaults["snapshot-every-s"] == 30.0
    launch = {item.name: item.default for item in workload.launch_parameters}
    assert launch["hang-limit-s"] == 900.0


def test_torchtitan_is_refused_until_its_commit_is_filled_in() -> None:
    folder = ROOT / "examples" / "torchtitan"
    file = read_workload_file(folder / "workload.toml", reserved=OWN_OPTIONS)

    assert argv(file, "--config", "mine") == [
        "--module", "torchtitan_neuron.models.qwen3", "--config", "mine",
        "--hf_assets_path", "tokenizer", "--checkpoint.enable",
        "--comm.init_timeout_seconds", "14400", "--comm.train_timeout_seconds", "3600",
    ]  # fmt: skip
    with pytest.raises(
        Refusal, match=r"torchtitan-neuron@COMMIT is not pinned to a commit.* 40-character"
    ):
        read_requirements(folder / "requirements.txt")


def test_defaults_and_given_parameters_are_passed(tmp_path: Path) -> None:
    file = read(tmp_path, LINE)

    assert argv(file) == ["--learning_rate", "0.05", "--optimizer", "adamw"]
    assert argv(file, "--learning-rate", "0.1", "--amp", "--seed", "7") == [
        "--learning_rate", "0.1", "--optimizer", "adamw", "--amp", "--seed", "7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("equals", ["--lr=0.1", "--amp=true"]),
        ("assignment", ["lr=0.1", "amp=true"]),
        ("value", ["--lr", "0.1", "--amp"]),
    ],
)
def test_arguments_follow_style_of_program(tmp_path: Path, style: str, words: list[str]) -> None:
    text = f'script = "a.py"\nstyle = "{style}"\n[parameters.lr]\ndefault = 0.1\n'
    file = read(tmp_path, f"{text}[parameters.amp]\ndefault = true\n")

    assert argv(file) == words


def test_flag_may_differ_from_option_name(tmp_path: Path) -> None:
    text = 'script = "a.py"\n[parameters.corpus]\ndefault = "x"\nflag = "--dataset"\n'

    assert argv(read(tmp_path, text), "--corpus", "wiki") == ["--dataset", "wiki"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("script = ", "is not valid TOML: invalid value (at end of document)"),
        ("", "script: exactly one of script and module must be set; set only one"),
        ('scrpt = "a.py"', "scrpt = \"a.py\": unknown key; did you mean 'script'?"),
        ('script = ""', 'script = "": it must be a non-empty string; write script = "..."'),
        ('name = "a b"', 'name = "a b": runs are named after it; use letters, digits'),
        ('name = "bert"', 'name = "bert": a built-in workload has this name; choose another'),
        ("nodes = 0", "nodes = 0: it must be an integer of at least 1; write nodes = 1"),
        ("nodes = true", "nodes = true: it must be an integer of at least 1"),
        ("time_limit_hours = 0", "time_limit_hours = 0: it must be a number of at least 0.0167"),
        (
            'include = "*.pt"',
            'include = "*.pt": it must be a list of strings; write include = ["...',
        ),
        (
            'checkpoint_dir = "/ckpt"',
            "checkpoint-dir=/ckpt is not valid; it must be a folder below",
        ),
        (
            "checkpoint_dir = 3",
            "checkpoint_dir = 3: it must be a string; description: folder to which the",
        ),
        ("keep_snapshots = 0", "keep-snapshots=0 is too small; the minimum is 1"),
        ('style = "hydra"', 'style = "hydra": unknown value; choose "value" (--name'),
        ("parameters = 3", "parameters = 3: it must be a table; write [parameters.NAME] above"),
        ("[parameters]\nlr = 3", "parameters.lr = 3: a parameter is a table; write [parameters."),
        ("[parameters.lr]", "parameters.lr.default: both default and type are missing; add a"),
        ("[parameters.lr]\ndefalt = 3", "lr.defalt = 3: unknown key; did you mean 'd"),
        ('[parameters.lr]\ntype = "flaot"', 'lr.type = "flaot": unknown type; did you mean \'f'),
        ("[parameters.lr]\ndefault = [1]", "lr.default = [1]: a parameter is a string, a number"),
        (
            '[parameters.lr]\ntype = "float"\ndefault = "x"',
            'lr.default = "x": lr=x is not a number',
        ),
        ("[parameters.lr]\ndefault = 1\nminimum = 2", "lr.default = 1: lr=1 is too small; the"),
        ("[parameters.lr]\ndefault = 1\nminimum = 3\nmaximum = 2", "lr.minimum = 3.0: the maxim"),
        ('[parameters.lr]\ndefault = 1\nminimum = "2"', 'lr.minimum = "2": it is not a number'),
        (
            '[parameters.o]\ndefault = "a"\nminimum = 2',
            "o.minimum = 2: only numbers have a minimum",
        ),
        (
            '[parameters.o]\ndefault = "a"\nchoices = []',
            "o.choices = []: it must be a list; write ch",
        ),
        (
            '[parameters.o]\ndefault = "a"\nchoices = [1]',
            "o.choices = 1: it is not a string; use",
        ),
        (
            '[parameters.o]\ndefault = "a"\nchoices = ["b", "c"]',
            'o.default = "a": o=a is not valid; it must be one of b, c; use a valid default',
        ),
        ("[parameters.o]\ndefault = true\nchoices = [true]", "o.choices = [True]: a boolean is"),
        (
            "[parameters.o]\ndefault = 1\nrequired = true",
            "o.required = true: a required parameter has",
        ),
        (
            "[parameters.o]\ndefault = 1\nrequired = 1",
            "o.required = 1: it must be a boolean; write",
        ),
        (
            '[parameters."a b"]\ndefault = 1',
            "parameters.a b: an option name must consist of letters, digits",
        ),
        (
            "[parameters.dataset]\ndefault = 1",
            "parameters.dataset: option --dataset already exists; rename the table, and set "
            'the program\'s own spelling: flag = "--dataset"',
        ),
        ('env = "A=1"', 'env = "A=1": it must be a table; write [env], and NAME = "value" below'),
        ("[env]\nA = 1", "env.A = 1: it must be a string; put it in quotes"),
        ('[env]\nRANK = "1"', "env: --env RANK: torchrun sets it for each process; omit it"),
        ('[env]\nHF_TOKEN = "0123456789"', "env: --env HF_TOKEN: it looks like a credential"),
        (
            'script = "a.py"\nmodule = "a"',
            'script = "a.py": exactly one of script and module must be',
        ),
        (
            "[parameters.a_b]\ndefault = 1\n[parameters.a-b]\ndefault = 1",
            "parameters.a-b: option --a-b already exists",
        ),
    ],
)
def test_mistake_is_one_message_with_file_key_value_reason_and_remedy(
    tmp_path: Path, text: str, says: str
) -> None:
    about_script = text.startswith(("script", "scrpt", "module")) or not text
    whole = text if about_script else f'script = "a.py"\n{text}'

    with pytest.raises(Refusal) as refused:
        read(tmp_path, whole)

    assert str(tmp_path / "workload.toml") in refused.value.message
    assert says in refused.value.message
    assert refused.value.code == "workload-file"


def test_file_with_other_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workload.toml").write_bytes(b'script = "\xff.py"')

    with pytest.raises(Refusal, match="is not UTF-8; save it as UTF-8"):
        read_workload_file(tmp_path / "workload.toml", reserved=())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "a-line"
    made.mkdir()
    (made / "workload.toml").write_text(LINE)
    (made / "train.py").write_text("print(1)\n")
    return made


def test_folder_is_submitted_like_built_in_workload(cli: Cli, folder: Path) -> None:
    words = ("--name", "x", "--learning-rate", "0.1", "--dry-run", "--json")
    result = cli.run("submit", str(folder), *words, "--", "--more")

    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    (node_range,) = document["payload"]["nodeOverrides"]["nodePropertyOverrides"]
    command = node_range["containerOverrides"]["command"]
    assert document["payload"]["nodeOverrides"]["numNodes"] == 2
    assert document["payload"]["timeout"] == {"attemptDurationSeconds": 3 * 3600}
    assert command[command.index("--script") :] == [
        "--script", "train.py", "--checkpoint-dir", "out", "--snapshot-every-s", "30.0",
        "--hang-limit-s", "900.0",
        "--", "--learning_rate", "0.1", "--optimizer", "adamw", "--more",
    ]  # fmt: skip


def test_folder_has_workload_help(cli: Cli, folder: Path) -> None:
    result = cli.run("submit", str(folder), "--help")

    assert result.exit_code == 0
    assert "train a line" in result.stdout
    assert "--learning-rate" in result.stdout
    assert "step size" in result.stdout


def test_unknown_parameter_of_folder_is_refused_with_suggestion(cli: Cli, folder: Path) -> None:
    assert_refused(
        cli.run("submit", str(folder), "--lerning-rate", "3"),
        "line has no parameter 'lerning-rate'; did you mean 'learning-rate'?",
    )
    assert_refused(
        cli.run("submit", str(folder), "--optimizer", "sdg"), "one of adamw, sgd; did you mean"
    )


def test_script_of_folder_must_be_inside(cli: Cli, folder: Path) -> None:
    (folder / "train.py").unlink()

    assert_refused(cli.run("submit", str(folder)), "there is no file", "has no Python files")
