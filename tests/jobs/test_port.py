"""`jobs port`: findings in programs of every kind, and no crash on odd ones.

Measured on public scripts: `python tools/port_score.py tests/jobs/port_labels.json FOLDER`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

import hypothesis
import jsonschema
import pytest

from jobs.errors import Refusal
from jobs.port.findings import MAX_BYTES, SourceFolder, find, findings, source_of
from jobs.port.report import lines, remark, summary
from jobs.port.rules import RULES, Hazard, PortKind
from jobs.program.entry import Entry
from tests.jobs.conftest import Cli
from tools.port_score import score
from trainium_catalogue.releases import TorchBackend

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(__file__).parent / "port"
STANDARD = sorted(Path(ast.__file__).parent.glob("[!t]*/*.py"))


def found_in(text: str, **others: str) -> tuple[Hazard, ...]:
    """Return the findings of a program and its modules."""
    files = {"train.py": text, **{f"{name}.py": other for name, other in others.items()}}
    return find_in({name: other.encode() for name, other in files.items()})


def find_in(contents: Mapping[str, bytes]) -> tuple[Hazard, ...]:
    entry = Entry(folder=Path(), script="train.py", module=None, file="train.py")
    return find(entry, contents)


@pytest.mark.parametrize("kind", PortKind)
def test_labelled_lines_are_found_exactly(kind: PortKind) -> None:
    path = EXAMPLES / f"{kind.replace('-', '_')}.py"
    wanted = {
        (number, name)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := re.search(r"# finds (.+)", line))
        for name in match[1].split(", ")
    }

    found = findings([source_of(path.name, path.read_bytes())])

    assert {(item.line, str(item.kind)) for item in found} == wanted
    assert kind in {name for _, name in wanted}


def test_imported_modules_called_from_loop_are_checked() -> None:
    engine = "import tools\ndef train(model, opt):\n    for x in loader:\n"
    engine += "        loss = model(x.to(d))\n        loss.backward()\n        tools.log(loss)\n"
    tools = "def log(loss):\n    print(loss)\n"

    found = found_in("from engine import train\ntrain(model, opt)\n", engine=engine, tools=tools)

    assert [(item.file, item.line, item.rule) for item in found] == [("tools.py", 2, "printed")]


def test_program_without_training_has_no_host_syncs() -> None:
    assert found_in("for x in loader:\n    print(model(x.to(d)).item())\n") == ()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"x = (\n", "train.py, line 1: '(' was never closed; fix it and try again"),
        (b"x = '\x00'\n", "null bytes"),
        (b"\xff\xfe\x00", "train.py"),
        (b"x = " + b"+".join([b"a"] * 5000), "train.py: code is nested too deeply"),
        (b"x" + b".a()" * 600, "train.py: code is nested too deeply"),
        (b"x = " + b"(" * 3000, "train.py"),
        (b"#" * (MAX_BYTES + 1), "train.py is larger than 2 MB"),
    ],
)
def test_unreadable_program_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(Refusal) as refused:
        find_in({"train.py": data})

    assert says in refused.value.message


def test_unreadable_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import engine\n")
    (tmp_path / "engine.py").write_text("")

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(Refusal, match=r"train\.py cannot be read: Permission denied; fix its"):
        find_in(SourceFolder(tmp_path))


def test_files_outside_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("model.cuda()\n")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "train.py").write_text("from .. import outside\nfrom ..outside import x\n")

    assert find_in(SourceFolder(inside)) == ()


def as_training_steps(text: str) -> str:
    """Make each function of a program a training step that works with the loss."""
    tree = ast.parse(re.sub(r"\b(self|name|value|result|data)\b", "loss", text))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body[:0] = ast.parse("loss = model(x.to(device))\nloss.backward()").body
    return ast.unparse(tree)


def test_any_program_is_read_or_refused() -> None:
    sample = [*STANDARD, *sorted(Path(hypothesis.__file__).parent.rglob("*.py"))]
    for path in sample[::20]:
        text = path.read_text(errors="replace")
        for version in (text, as_training_steps(text)):
            try:
                found = findings([source_of(path.name, version.encode())])
            except Refusal as refusal:
                assert refusal.code in ("syntax-error", "not-python", "too-nested"), path
            else:
                lines_of = version.count("\n") + 1
                assert all(1 <= item.line <= lines_of for item in found), path


def test_call_chain_takes_linear_time() -> None:
    chain = "x" + ".a(y.b(print(str(z))))" * 40
    text = "".join(f"{' ' * depth}for a{depth} in y:\n" for depth in range(12))

    assert found_in(f"{text}{' ' * 12}loss.backward(); {chain}\n") == ()


def test_advice_is_given_per_backend_if_it_differs() -> None:
    found = found_in("model.cuda()\nx.half()\n")

    both, one = "\n".join(lines(found, None)), "\n".join(lines(found, TorchBackend.TORCH_NEURON))

    assert both.count("instead  torch_xla:") == both.count("instead  TorchNeuron:") == 1
    assert "torch_xla" not in one
    assert "instead  .to(device), with device = torch.device('neuron')" in one


def test_note_names_first_call_and_backend() -> None:
    text = "device = 'cuda'\nmodel.cuda()\nmodel.cuda()\ninit('nccl')\n"

    said = remark(found_in(text), "python -m jobs port ./train.py")

    assert said == (
        "4 places need a change for Trainium: device 3, backend 1; train.py, line 2: model.cuda(): "
        f"{RULES['cuda-device'].why}; train.py, line 4: 'nccl': {RULES['nccl'].why}; "
        "for details: python -m jobs port ./train.py"
    )
    assert remark((), "port") is None
    assert summary(()) == "no code was found that needs a change for Trainium"


def test_label_matches_finding_on_next_line_once() -> None:
    labelled = {(3, "device"), (8, "device"), (9, "dtype")}
    found = {(4, "device"), (5, "device"), (9, "dtype"), (8, "dtype")}

    assert score(labelled, found) == ({(8, "device")}, {(5, "device"), (8, "dtype")})


GPU_PROGRAM = """import torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.distributed.init_process_group("nccl")
torch.nn.Linear(8, 8).cuda()
"""


@pytest.fixture
def gpu_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPU program in the test's folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(GPU_PROGRAM)
    return path


def test_port_needs_no_account_and_exits_with_1_on_findings(gpu_program: Path) -> None:
    result = Cli("").run("port", "./train.py")

    assert result.exit_code == 1
    assert "train.py, line 3: backend: 'nccl' selects the process group backend" in result.stdout
    assert "3 places need a change for Trainium: device 2, backend 1" in result.stdout


def test_port_without_findings_exits_with_0(gpu_program: Path) -> None:
    gpu_program.write_text("print(3)\n")

    result = Cli("").run("port", "./train.py")

    assert (result.exit_code, result.stdout.count("no code was found")) == (0, 1)


@pytest.mark.parametrize(
    ("words", "backends"),
    [
        (["./train.py", "--torch-backend", "torchneuron"], {"torchneuron"}),
        (["-m", "train"], {"xla", "torchneuron"}),
        (["."], {"xla", "torchneuron"}),
    ],
)
def test_port_prints_document(gpu_program: Path, words: list[str], backends: set[str]) -> None:
    gpu_program.with_name("workload.toml").write_text('name = "x"\nscript = "train.py"\n')

    result = Cli("").run("port", *words, "--json")

    document = json.loads(result.stdout)
    schema = json.loads((ROOT / "docs" / "schemas" / "jobs-port.schema.json").read_text())
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    assert [(item["line"], item["rule"]) for item in document["findings"]] == [
        (2, "cuda-available"), (3, "nccl"), (4, "cuda-device"),
    ]  # fmt: skip
    assert {name for rule in document["rules"] for name in rule["instead"]} == backends


def test_port_gives_advice_for_named_deployment(cli: Cli, gpu_program: Path) -> None:
    result = cli.run("port", "./train.py", "--deployment", "default", "--json")

    assert json.loads(result.stdout)["torch_backend"] == "xla"


def test_port_accepts_deployment_before_command_or_in_environment(
    cli: Cli, gpu_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cli.run("--deployment", "nope", "port", "./train.py")
    monkeypatch.setenv("TRAINIUM_DEPLOYMENT", "elsewhere")
    of_environment = cli.run("port", "./train.py")

    assert before.exit_code == of_environment.exit_code == 2
    assert "no deployment 'nope'" in before.stderr
    assert before.stderr.endswith("; deployed here: default\n")
    assert "no deployment 'elsewhere'" in of_environment.stderr


def test_port_shows_dangling_link(gpu_program: Path) -> None:
    gpu_program.with_name("loopy.py").symlink_to("loopy.py")
    gpu_program.with_name("broken.py").symlink_to("gone.py")

    loop, broken = (Cli("").run("port", word) for word in ("./loopy.py", "./broken.py"))

    assert "./loopy.py is a link that leads back to itself; specify a Python file" in loop.stderr
    assert "./broken.py is a link to gone.py, which does not exist" in broken.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no program was specified; specify your program's file or folder, such as ./train.py"),
        (["llama2-7b"], "llama2-7b is not a program of your own"),
        (["./nowhere.py"], "there is no file ./nowhere.py"),
        ([""], "no program was specified"),
        (["-m", "torch.nowhere"], "-m torch.nowhere is not in "),
        (["./train.py", "-m", "train"], "are two programs"),
    ],
)
def test_port_refuses_non_programs(gpu_program: Path, words: list[str], says: str) -> None:
    result = Cli("").run("port", *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_submit_notes_unsupported_code(cli: Cli, gpu_program: Path) -> None:
    result = cli.run("submit", "./train.py", "--name", "x", "--dry-run")

    assert "3 places need a change for Trainium: device 2, backend 1; train.py, line 4: " in (
        result.stderr
    )
    assert "for details: python -m jobs port train.py" in result.stderr


def test_submit_of_module_names_port_command(
    cli: Cli, gpu_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    result = cli.run(
        "submit", "-m", "train", "--workdir", str(gpu_program.parent), "--name", "x", "--dry-run"
    )

    command = f"python -m jobs port -m train --workdir {gpu_program.parent}\n"
    assert f"for details: {command}" in result.stderr
