"""Parsing of requirements files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs.errors import Refusal
from jobs.program import requirements
from jobs.program.requirements import read_requirements

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def written(folder: Path, text: str, name: str = "requirements.txt") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(folder: Path, text: str) -> list[str]:
    return read_requirements(written(folder, text)).text.splitlines()


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(Refusal) as caught:
        read(folder, text)
    return caught.value.message.replace(f"{folder}/", "")


def test_comments_are_dropped_and_continued_lines_joined(
    tmp_path: Path,
) -> None:
    text = """\
# what the model needs
einops >=0.7   # shapes

lightning[extra]~=2.4 ; python_version < "3.14"
safetensors==0.4.2 \\
    --hash=sha256:00 \\
    --hash=sha256:11
"""
    assert read(tmp_path, text) == [
        "einops >=0.7",
        'lightning[extra]~=2.4 ; python_version < "3.14"',
        "safetensors==0.4.2 --hash=sha256:00 --hash=sha256:11",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "einops (>=0.7,<1)",
        "zope.interface != 5.*",
        "model @ https://host.example/model-1.0-py3-none-any.whl",
        "https://host.example/model-1.0.tar.gz",
        f"model @ git+https://host.example/model.git@{COMMIT}#subdirectory=python",
        "--pre",
        "--only-binary :all:",
    ],
)
def test_portable_lines_are_kept_verbatim(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"{line}\n") == [line]


def test_short_options_are_expanded(tmp_path: Path) -> None:
    assert read(tmp_path, "-i https://host.example/simple\n-f=https://host.example/wheels\n") == [
        "--index-url https://host.example/simple",
        "--find-links https://host.example/wheels",
    ]


def test_included_files_are_inlined_and_constraints_kept(tmp_path: Path) -> None:
    written(tmp_path, "einops\n-c limits.txt\n", "more/base.txt")
    written(tmp_path, "numpy<3  # for now\n", "more/limits.txt")
    found = read_requirements(written(tmp_path, "-r more/base.txt\nlightning\n"))
    assert found.text.splitlines() == ["einops", "# constraint: numpy<3", "lightning"]
    assert found.count == 2


def test_key_depends_on_text_and_image_but_not_comments(tmp_path: Path) -> None:
    one = read_requirements(written(tmp_path, "einops\n"))
    same = read_requirements(written(tmp_path, "\n# shapes\neinops  # all of them\n"))
    other = read_requirements(written(tmp_path, "einops>=0.8\n"))
    assert one.key("image:1") == same.key("image:1")
    assert len({one.key("image:1"), one.key("image:2"), other.key("image:1")}) == 3
    assert re.fullmatch("[0-9a-f]{32}", one.key("image:1"))


@pytest.mark.parametrize(
    ("line", "reason", "remedy"),
    [
        ("--editable ./lib", "--editable ./lib is local code", "the program's folder is packed"),
        (".", ". is a local path", "remove it: the program's folder is packed"),
        ("../elsewhere", "is a local path", "put the package on an index"),
        ("a-1.0-py3-none-any.whl", "is a local path", "on an index"),
        ("model @ file:///home/me/model", "is a local file", "on an index"),
        ("--find-links ./wheels", "./wheels is not an http or https URL", "https URL"),
        (
            "git+https://host.example/m.git",
            "is not pinned to a commit",
            "append @ and the full 40-character commit hash",
        ),
        ("m @ git+https://host.example/m.git@main", "is not pinned to a commit", "40-character"),
        (f"git+ssh://host.example/m.git@{COMMIT}", "git+https, not git+ssh", "git+https://HOST"),
        (
            "--index-url https://me:secret@host.example/simple",
            "the URL at host.example has a user name or password",
            "put the credentials in the pip.conf",
        ),
        (
            "m @ https://token@host.example/m-1.0.tar.gz",
            "the URL at host.example has a user name or password",
            "put the credentials in the pip.conf",
        ),
        (f"m==hf_{'a' * 34}", "hf_aaa... looks like a credential", "remove it"),
        ("m==${VERSION}", "${VERSION} is an environment variable", "without it"),
        ("--process-dependency-links", "is not supported here", "use one of --index-url"),
        ("-r https://host.example/r.txt", "is a URL", "copy that file next to this one"),
        ("-r missing.txt", "no such file or directory", "known: requirements.txt"),
        ("-r requirements.txt", "includes itself", "remove the -r or -c line"),
        ("einops=0.8", "'einops=0.8' is not a requirement", "write einops==0.8"),
        ("einops 0.8", "'einops 0.8' is not a requirement", "write it like einops>=0.7"),
        ("ftp://host.example/m.whl", "ftp: is not supported", "an https URL"),
    ],
)
def test_unsupported_line_is_refused_with_location(
    tmp_path: Path, line: str, reason: str, remedy: str
) -> None:
    message = refusal(tmp_path, f"torch\n{line}\n")
    assert "requirements.txt" in message
    assert reason in message
    assert remedy in message
    assert "secret@" not in message


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("-e libs/mylib[extra]", "libs/mylib/src"),
        ("./libs/flat", "libs/flat"),
        ("mylib @ ./libs/mylib", "libs/mylib/src"),
    ],
)
def test_local_package_is_refused_with_import_line(tmp_path: Path, line: str, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)

    message = refusal(tmp_path, f"torch\n{line}\n")

    assert "remove it, and list its own requirements instead" in message
    assert f"`import sys; sys.path.insert(0, '{place}')`" in message


def test_location_of_line_is_file_and_number(tmp_path: Path) -> None:
    assert refusal(tmp_path, "torch\n\n-e .\n").startswith("requirements.txt, line 3: ")


def test_missing_file_is_refused_with_suggestion(tmp_path: Path) -> None:
    written(tmp_path, "einops\n")
    with pytest.raises(Refusal, match=r"no such file.*did you mean 'requirements\.txt'\?"):
        read_requirements(tmp_path / "requirement.txt")


def test_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe\x00e")
    with pytest.raises(Refusal, match="it is not UTF-8 text; save it as UTF-8"):
        read_requirements(tmp_path / "requirements.txt")


def test_oversized_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "_MAX_BYTES", 1_000)
    text = "".join(f"package-{number}\n" for number in range(100))
    with pytest.raises(Refusal, match="the limit is 1,000; list only"):
        read_requirements(written(tmp_path, text))
