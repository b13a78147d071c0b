"""Every command on a page is run in a rehearsed deployment, or parsed by its own parser.

``tests/rehearsal/test_up.py`` runs the blocks; the tests here cover all of them.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import typer

from jobs.cli import app as jobs_app
from jobs.program.workload_file import read_workload_file
from jobs.submit.read import OWN_OPTIONS
from rehearsal.cli.commands import app as rehearsal_app
from stacks.config.app_config import AppConfig
from tests.pages.blocks import PAGES, ROOT, RUN_ORDER, Block, blocks, commands_of, spans_of
from tests.programs.catalogue import public_programs
from tools import programs

BLOCKS = blocks()
CDK_CLI = ROOT / "tools" / "cdk" / "node_modules" / "aws-cdk" / "lib" / "cli"
LANGUAGES = ("bash", "python", "text", "toml")
KEY = re.compile(r"trainium:([a-z_]+)")
# Third-party programs; only arguments that are paths in this repository are checked.
FOREIGN = {"aws", "cd", "cp", "docker", "git", "kill", "kubectl", "ls", "source"}
REHEARSED = {"rehearsal_synth", "rehearsal_deploy"}
TO_FILL_IN = MappingProxyType(
    {
        "zone_ids=FIRST,NEXT": "zone_ids=usw2-az4,usw2-az1",
        "capacity_block_id=NEXT": "capacity_block_id=cr-0123456789abcdef0",
        "max_nodes=NODES": "max_nodes=8",
        "root_volume_gib=GIB": "root_volume_gib=400",
        "neuron_release=RELEASE": "neuron_release=2.29.1",
        "data_uris=URI": "data_uris=s3://bucket/data",
    }
)
"""Placeholders in capitals, which the reader fills in, each with an example."""


class ReachedAws(BaseException):
    """A command line was parsed and accepted: its next action is a call to AWS."""


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a command where it would create its first client."""

    def refuse(*args: object, **options: object) -> None:
        raise ReachedAws

    monkeypatch.setattr("botocore.session.Session.create_client", refuse)
    for name in [name for name in os.environ if name.startswith(("AWS_", "TRAINIUM_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a user's folder with the files that the pages name."""
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "sockeye").mkdir()
    (tmp_path / "weights").mkdir()
    public = [program.script for program in public_programs().values() if program.script]
    for name in ("train.py", "mypkg/train.py", "weights/tiny.pt", "sockeye/train.py", *public):
        (tmp_path / name).write_text("print(1)\n")
    (tmp_path / "requirements.txt").write_text("einops\n")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    # As in docs/torchtitan.md: with a commit in its requirements.
    titan = shutil.copytree(ROOT / "examples/torchtitan", tmp_path / "my-titan")
    lines = (titan / "requirements.txt").read_text()
    (titan / "requirements.txt").write_text(lines.replace("@COMMIT", f"@{'a' * 40}"))
    monkeypatch.chdir(tmp_path)


def succeeds(command: Any, words: Sequence[str]) -> bool:
    """Run a command line to its end or its first call to AWS; pytest shows its output."""
    try:
        command.main(list(words), prog_name="test")
    except ReachedAws:
        return True
    except SystemExit as end:
        return not end.code
    return True


def parse_with(app: typer.Typer, words: Sequence[str]) -> None:
    """Parse the arguments as the program does, without running it."""
    command: Any = typer.main.get_command(app)
    for sub in command.commands.values():
        sub.callback = lambda **options: None
    assert succeeds(command, words), " ".join(words)


def check_jobs(words: Sequence[str]) -> None:
    parse_with(jobs_app, words)
    if "submit" in words:
        # A workload's parameters are parsed by `submit` itself, before it calls AWS.
        assert succeeds(typer.main.get_command(jobs_app), words), " ".join(words)


def check_rehearsal(words: Sequence[str]) -> None:
    parse_with(rehearsal_app, words)


def check_python(words: Sequence[str]) -> None:
    if words[0] == "tools/programs.py":
        given = programs.parse_arguments(list(words[1:]))
        assert set(given.names) <= set(public_programs()), words
        return
    assert words[0] == "-m", words
    match words[1]:
        case "jobs":
            check_jobs(words[2:])
        case "rehearsal":
            check_rehearsal(words[2:])
        case "pytest":
            for word in words[2:]:
                assert word.startswith("-") or word.isdigit() or (ROOT / word).exists(), word
        case module:
            assert module.startswith("training."), f"python -m {module}: no check can parse this"
            assert find_spec(module) is not None, f"python -m {module} does not exist"


def check_make(words: Sequence[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, given, _ = word.partition("=")
        what = rf"\$\({name}\)|{name}=<" if given else rf"^{name}:"
        assert re.search(what, makefile, re.MULTILINE), f"make {word}"


@cache
def cdk_options() -> Mapping[str, Mapping[str, bool]]:
    """Return the options of each CDK CLI command, and whether each takes a value."""
    registry = json.loads((CDK_CLI / "cli-type-registry.json").read_text())

    def options(table: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        for name, option in table.items():
            aliases = option.get("alias", [])
            for alias in (name, *([aliases] if isinstance(aliases, str) else aliases)):
                dashes = "-" if len(alias) == 1 else "--"
                yield dashes + alias, option["type"] != "boolean"

    everywhere = dict(options(registry["globalOptions"]))
    return {
        name: {**everywhere, **dict(options(command.get("options", {})))}
        for name, command in registry["commands"].items()
    }


def check_cdk(words: Sequence[str]) -> None:
    name, *rest = words
    known = cdk_options()[name]
    context: dict[str, str] = {}
    while rest:
        option, equals, _ = rest.pop(0).partition("=")
        if not option.startswith("-"):
            assert option.startswith("trainium-"), f"{option} is not a stack of this project"
            continue
        assert option in known, f"cdk {name} has no {option}"
        value = rest.pop(0) if known[option] and not equals else ""
        if option == "-c":
            key, _, context[key] = value.partition("=")
    check_context(context)


def check_context(context: Mapping[str, str]) -> None:
    """Read the keys as synthesis does; `...` stands for any value."""
    whole = {key: value for key, value in context.items() if value != "..."}
    if whole and all(key.startswith("trainium:") for key in whole):
        AppConfig.from_mapping(whole)


def check_torchx(words: Sequence[str]) -> None:
    (component,) = [word for word in words if ".py:" in word]
    path, _, function = component.partition(":")
    assert f"def {function}(" in (ROOT / path).read_text(), component


def check_foreign(words: Sequence[str]) -> None:
    for word in words:
        path = word.partition("*")[0]
        if path.startswith(("docs/", "docker/", "jobs/", "training/", "tools/")):
            assert (ROOT / path).exists(), f"{word} does not exist"


CHECKS: Mapping[str, Callable[[Sequence[str]], None]] = MappingProxyType(
    {
        "python": check_python,
        "trainium": check_jobs,
        "make": check_make,
        "cdk": check_cdk,
        "torchx": check_torchx,
        **dict.fromkeys(REHEARSED, lambda words: check_cdk(("synth", *words))),
        **dict.fromkeys(FOREIGN, check_foreign),
    }
)


def check(words: Sequence[str]) -> None:
    program, *rest = dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words)
    assert program in CHECKS, f"{program}: no check can parse this"
    CHECKS[program](rest)


def exists_in(module: str, name: str) -> bool:
    return hasattr(import_module(module), name)


def imported_names(text: str) -> Iterator[tuple[str, str]]:
    """Return the modules and names that a piece of Python imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_block_states_kind_and_check(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block.name}: give the language, one of {LANGUAGES}"
    if block.language == "bash":
        assert block.marker is not None, f"{block.name}: put `<!-- run -->` or a reason above it"
        assert block.marker != "run" or block.page.name in RUN_ORDER
    else:
        assert not re.match(r"\$ ", block.text), f"{block.name}: put commands in bash blocks"


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=lambda block: block.name
)
def test_block_of_python_compiles(block: Block) -> None:
    compile(block.text, block.name, "exec")

    assert [name for name in imported_names(block.text) if not exists_in(*name)] == []


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "toml"], ids=lambda block: block.name
)
def test_workload_file_on_a_page_can_be_read(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "workload.toml"
    path.write_text(block.text)

    assert read_workload_file(path, reserved=OWN_OPTIONS).script is not None


@pytest.mark.parametrize(
    ("block", "words"),
    [
        pytest.param(block, words, id=f"{block.name} {' '.join(words)[:60]}")
        for block in BLOCKS
        if block.language == "bash"
        for words in commands_of(block.text)
    ],
)
def test_command_is_accepted_by_its_parser(block: Block, words: list[str]) -> None:
    check(words)


@pytest.mark.parametrize(
    ("page", "span"),
    [
        pytest.param(page, span, id=f"{page.name} {span[:60]}")
        for page in PAGES
        for span in spans_of(page)
    ],
)
def test_inline_command_is_accepted_by_its_parser(page: Path, span: str) -> None:
    for word, value in TO_FILL_IN.items():
        span = span.replace(word, value)
    for words in commands_of(span):
        # A sentence may name a command without its required arguments.
        own = 1 if words[0] == "trainium" else 3 * (words[:3] == ["python", "-m", "jobs"])
        check([*words, "--help"] if len(words) < own + 2 else words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_context_key_on_a_page_exists(page: Path) -> None:
    named = {match[1] for match in KEY.finditer(page.read_text())}

    assert named <= set(AppConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    "script",
    [
        "python -m jobs stauts",
        "python -m jobs status --plott",
        "python -m jobs scale --nodes two",
        "python -m jobs submit llama3",
        "python -m jobs submit llama-tiny --learning 1",
        "python -m jobs submit llama-tiny --lr fast",
        "python -m jobs submit ./trian.py",
        "python -m jobs submit ./train.py --epochs 3",
        "python -m jobs submit ./examples/own-program --lrr 0.1",
        "python -m rehearsal run --orchestrator eks",
        "make rehears",
        "make rehearse HALF=eks",
        "cdk deploy --everything",
        "cdk deploy --all -c trainium:max_node=4",
        "cdk deploy --all -c trainium:max_nodes=0",
        "torchx run jobs/torchx_components.py:brt",
        "curl https://example.com",
    ],
)
def test_invalid_command_is_detected(script: str) -> None:
    (words,) = commands_of(script)

    with pytest.raises((AssertionError, ValueError)):
        check(words)
