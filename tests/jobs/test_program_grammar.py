"""Syntax errors of a program, found before it is sent, by the grammar of the nodes' Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import Refusal
from jobs.program.grammar import check_grammar, python_of
from tests.jobs.conftest import Cli
from tests.jobs.programs import dry_run
from tests.jobs.test_refusals import assert_refused

HERE = sys.version_info[:2]


def check(
    text: str | bytes, *, python: tuple[int, int] | None = HERE, root: str = "", **more: str
) -> list[str]:
    notes: list[str] = []
    data = text if isinstance(text, bytes) else text.encode()
    contents = {"train.py": data} | {
        name.replace("__", "/") + ".py": other.encode() for name, other in more.items()
    }
    check_grammar("train.py", contents, root=root, python=python, note=notes.append)
    return notes


def refused(text: str | bytes, **options: Any) -> str:
    with pytest.raises(Refusal) as error:
        check(text, **options)
    return error.value.message


def test_python_version_of_published_image_is_known() -> None:
    assert python_of("2.28.0") == (3, 12)
    assert python_of("2.33.1") is None
    assert python_of("unknown") is None


def test_syntax_error_is_refused_with_line() -> None:
    assert refused("import os\n\ndef f(:\n    pass\n").startswith(
        "train.py, line 3: invalid syntax (def f(:) in Python"
    )


def test_error_in_bundled_module_is_refused() -> None:
    says = refused("import pkg.model\n", pkg__model="from other import x\n", other="x = (\n")

    assert says.startswith("other.py, line 1: '(' was never closed")


def test_modules_that_import_each_other_are_checked_once() -> None:
    assert check("import a\n", a="import b\n", b="import a\n") == []


def test_unimported_modules_are_not_checked() -> None:
    text = "try:\n    import broken\nexcept ImportError:\n    broken = None\n"

    assert check(text, broken="x = (", unused="print 'python 2'") == []


def test_modules_next_to_script_are_found() -> None:
    assert check("import util\n", root="scripts", util="x = (") == []
    assert "scripts/util.py, line 1" in refused("import util\n", root="scripts", scripts__util="(")


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n"])
def test_file_without_statement_is_refused(text: str) -> None:
    assert "train.py has no statements, so it would do nothing" in refused(text)


def test_binary_file_is_refused() -> None:
    assert "train.py" in refused(b"x = '\x00'\n")
    assert "train.py" in refused(b"\x80\x04\x95")


def test_crlf_and_byte_order_mark_are_accepted() -> None:
    assert check(b"\xef\xbb\xbfimport os\r\n\r\nif os:\r\n    pass\r\n") == []


def test_python_warnings_are_suppressed(
    recwarn: pytest.WarningsRecorder,
) -> None:
    assert check("x = '\\d'\n") == []
    assert not recwarn.list


@pytest.mark.skipif(HERE < (3, 12), reason="needs the grammar of 3.12")
def test_grammar_newer_than_node_python_is_refused() -> None:
    with pytest.raises(Refusal, match=r" in Python 3\.11"):
        check("type X = int\n", python=(3, 11))


@pytest.mark.skipif(HERE >= (3, 12), reason="needs a Python without the grammar of 3.12")
@pytest.mark.parametrize(
    "text", ["type X = int\n", "def f[T](x: T) -> T: ...\n", "x = f'{'a'}'\n", "class A[T]: ...\n"]
)
@pytest.mark.parametrize("python", [(3, 12), None])
def test_grammar_that_node_python_may_accept_is_noted(
    text: str, python: tuple[int, int] | None
) -> None:
    (note,) = check(text, python=python)

    assert note.startswith("train.py, line 1: ")
    assert "may accept it" in note


@pytest.mark.parametrize(
    "line",
    ["from .deep import broken", "from .deep.broken import x", "from ..pkg.deep.broken import x"],
)
def test_relative_imports_of_package_are_followed(line: str) -> None:
    files = {"pkg__mod": f"{line}\n", "pkg__deep__broken": "x = (\n"}

    assert refused("import pkg.mod", **files).startswith("pkg/deep/broken.py, line 1: ")


def test_relative_import_out_of_folder_is_ignored() -> None:
    assert check("from ....other import x\nfrom . import nothing\n") == []


DEEP = {
    "elif": "if x == 0:\n    pass\n" + "".join(
        f"elif x == {number}:\n    pass\n" for number in range(1200)
    ),
    "calls": "x" + ".b()" * 480 + "\n",
    "sum": "x = " + "+".join(["1"] * 9000) + "\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", DEEP)
def test_unimported_deep_code_does_not_stop_submission(cli: Cli, program: Path, kind: str) -> None:
    (program / "gen.py").write_text(DEEP[kind])

    dry_run(cli, "./train.py")


@pytest.mark.parametrize("kind", ["elif", "calls"])
def test_deep_code_that_python_can_read_is_submitted(cli: Cli, program: Path, kind: str) -> None:
    (program / "train.py").write_text(DEEP[kind])

    dry_run(cli, "./train.py")


def test_code_too_deep_to_parse_is_refused(cli: Cli, program: Path) -> None:
    (program / "train.py").write_text("import gen\n")
    (program / "gen.py").write_text(DEEP["sum"])

    result = cli.run("submit", "./train.py", "--dry-run")

    assert_refused(result, "gen.py: code is nested too deeply")
