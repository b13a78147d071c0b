"""Requirements as the command line reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs.errors import Refusal
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


def test_comments_and_empty_lines_do_not_count_and_continued_lines_are_joined(
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
        "einops",
        "einops==0.8.2",
        "einops (>=0.7,<1)",
        "zope.interface != 5.*",
        "model @ https://host.example/model-1.0-py3-none-any.whl",
        "https://host.example/model-1.0.tar.gz",
        f"git+https://host.example/model.git@{COMMIT}",
        f"model @ git+https://host.example/model.git@{COMMIT}#subdirectory=python",
        "--index-url https://host.example/simple",
        "--pre",
        "--only-binary :all:",
    ],
)
def test_what_pip_on_another_machine_can_have_is_kept_as_it_is(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"{line}\n") == [line]


def test_short_options_are_spelt_out(tmp_path: Path) -> None:
    assert read(tmp_path, "-i https://host.example/simple\n-f=https://host.example/wheels\n") == [
        "--index-url https://host.example/simple",
        "--find-links https://host.example/wheels",
    ]


def test_files_that_a_file_names_go_along_and_constraints_stay_constraints(tmp_path: Path) -> None:
    written(tmp_path, "einops\n-c limits.txt\n", "more/base.txt")
    written(tmp_path, "numpy<3  # for now\n", "more/limits.txt")
    found = read_requirements(written(tmp_path, "-r more/base.txt\nlightning\n"))
    assert found.text.splitlines() == ["einops", "# constraint: numpy<3", "lightning"]
    assert found.count == 2


def test_an_empty_file_requires_nothing(tmp_path: Path) -> None:
    assert read_requirements(written(tmp_path, "# nothing\n")).text == ""


def test_the_key_depends_on_text_and_image_and_not_on_comments(tmp_path: Path) -> None:
    one = read_requirements(written(tmp_path, "einops\n"))
    same = read_requirements(written(tmp_path, "\n# shapes\neinops  # all of them\n"))
    other = read_requirements(written(tmp_path, "einops>=0.8\n"))
    assert one.key("image:1") == same.key("image:1")
    assert len({one.key("image:1"), one.key("image:2"), other.key("image:1")}) == 3
    assert re.fullmatch("[0-9a-f]{32}", one.key("image:1"))


@pytest.mark.parametrize(
    ("line", "reason", "remedy"),
    [
        ("-e .", "-e . is code of this machine", "the program's folder goes along"),
        ("--editable ./lib", "--editable ./lib is code", "the program's folder goes along"),
        (".", ". is a path of this machine", "leave it out: the program's folder goes along"),
        ("../elsewhere", "is a path of this machine", "put the package on an index"),
        ("./dist/a-1.0-py3-none-any.whl", "is a path of this machine", "on an index"),
        ("a-1.0-py3-none-any.whl", "is a path of this machine", "on an index"),
        ("model @ ./model", "is a path of this machine", "on an index"),
        ("model @ file:///home/me/model", "is a file of this machine", "on an index"),
        ("--find-links ./wheels", "./wheels is no address on the network", "https address"),
        ("git+https://host.example/m.git", "names no commit", "40 digits after an @"),
        ("m @ git+https://host.example/m.git@main", "names no commit", "40 digits"),
        (f"git+ssh://host.example/m.git@{COMMIT}", "no keys for git+ssh", "git+https://HOST"),
        (
            "--index-url https://me:secret@host.example/simple",
            "the address at host.example carries a name or password",
            "let the image's pip.conf hold it",
        ),
        (
            "m @ https://token@host.example/m-1.0.tar.gz",
            "the address at host.example carries a name or password",
            "let the image's pip.conf hold it",
        ),
        (f"m==hf_{'a' * 34}", "hf_aaa... has the form of a key", "take it out"),
        ("m==${VERSION}", "${VERSION} is a variable of this machine", "without it"),
        ("--process-dependency-links", "cannot be used here", "known are --index-url"),
        ("-r https://host.example/r.txt", "is an address", "copy that file beside this one"),
        ("-r missing.txt", "no such file or directory", "known are requirements.txt"),
        ("-r requirements.txt", "names itself", "take that line out"),
        ("einops=0.8", "'einops=0.8' is no requirement", "write einops==0.8"),
        ("einops 0.8", "'einops 0.8' is no requirement", "write it like einops>=0.7"),
        ("ftp://host.example/m.whl", "nothing can be fetched from ftp:", "an https address"),
    ],
)
def test_lines_that_cannot_work_are_refused_with_their_place(
    tmp_path: Path, line: str, reason: str, remedy: str
) -> None:
    said = refusal(tmp_path, f"torch\n{line}\n")
    assert "requirements.txt" in said
    assert reason in said
    assert remedy in said
    assert "secret@" not in said


@pytest.mark.parametrize("line", ["-e {}", "./{}", "mylib @ ./{}", "-e {}[extra]"])
@pytest.mark.parametrize(
    ("package", "place"), [("libs/mylib", "libs/mylib/src"), ("libs/flat", "libs/flat")]
)
def test_a_package_in_the_folder_is_refused_with_the_line_that_finds_it(
    tmp_path: Path, line: str, package: str, place: str
) -> None:
    (tmp_path / place).mkdir(parents=True)

    said = refusal(tmp_path, f"torch\n{line.format(package)}\n")

    assert "leave it out, and name what it requires in its place" in said
    assert f"`import sys; sys.path.insert(0, '{place}')`" in said


def test_the_place_of_a_line_is_its_file_and_number(tmp_path: Path) -> None:
    assert refusal(tmp_path, "torch\n\n-e .\n").startswith("requirements.txt, line 3: ")


def test_a_missing_file_is_refused_with_a_near_one(tmp_path: Path) -> None:
    written(tmp_path, "einops\n")
    with pytest.raises(Refusal, match=r"no such file.*did you mean 'requirements\.txt'\?"):
        read_requirements(tmp_path / "requirement.txt")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe\x00e")
    with pytest.raises(Refusal, match="it is not text in UTF-8; write it anew"):
        read_requirements(tmp_path / "requirements.txt")


def test_a_text_that_is_too_long_to_keep_is_refused(tmp_path: Path) -> None:
    text = "".join(f"package-{number}\n" for number in range(60_000))
    with pytest.raises(Refusal, match="at most 524,288 are kept with a run; name only"):
        read_requirements(written(tmp_path, text))
