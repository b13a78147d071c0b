"""The bundle of a program: included files, excluded files and refusals."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import Refusal
from jobs.program import bundle as bundles
from jobs.program import files
from jobs.program.bundle import Bundle, pack
from jobs.program.files import select
from jobs.program.globs import matches
from jobs.program.secrets import secret_name, secret_words
from tests.jobs.programs import git

Write = Callable[..., Path]
ACCESS_KEY = "AKIA" + "QWERTYUIOPASDF23"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file in the program's folder."""

    def put(name: str, text: str | bytes = "x = 1\n") -> Path:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    put("train.py")
    return put


def packed(tmp_path: Path, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Bundle:
    return pack(select(tmp_path / "mine", include=include, exclude=exclude), include=include)


def paths(
    tmp_path: Path, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()
) -> list[str]:
    return sorted(packed(tmp_path, include, exclude).paths)


def test_same_files_make_same_archive(tmp_path: Path, write: Write) -> None:
    first = packed(tmp_path)
    os.utime(tmp_path / "mine" / "train.py", (1, 1))
    (tmp_path / "mine").rename(tmp_path / "other")

    second = pack(select(tmp_path / "other", include=(), exclude=()))

    assert first.sha256 == second.sha256


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=300), st.text("abc é\n'", min_size=1, max_size=8))
def test_unpacked_files_equal_packed_files(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / name).write_bytes(data)

    assert pack(select(folder, include=(), exclude=())).contents() == {name: data}


def test_executable_files_stay_executable(tmp_path: Path, write: Write) -> None:
    write("run.sh").chmod(0o700)

    modes = {file.path: file.mode for file in packed(tmp_path).files}

    assert modes == {"run.sh": 0o755, "train.py": 0o644}


def test_folder_without_git_excludes_generated_files(tmp_path: Path, write: Write) -> None:
    for name in ("a/b.txt", "__pycache__/x.pyc", "node_modules/y.js", ".venv/z", "env/pyvenv.cfg"):
        write(name)

    bundle = packed(tmp_path)

    assert sorted(bundle.paths) == ["a/b.txt", "train.py"]
    assert {"__pycache__", "node_modules", ".venv", "env"} <= set(bundle.left_out)


def test_ignored_files_are_excluded_with_git(tmp_path: Path, write: Write) -> None:
    write(".gitignore", "data/\n*.log\n")
    write("data/big.bin")
    write("new.py")
    write("a.log")
    git(tmp_path / "mine", "init", "-q")
    git(tmp_path / "mine", "add", "train.py")
    git(tmp_path / "mine", "commit", "-qm", "x")

    bundle = packed(tmp_path)

    assert sorted(bundle.paths) == [".gitignore", "new.py", "train.py"]
    assert bundle.git is not None
    assert bundle.git.dirty
    assert len(bundle.git.commit or "") == 40
    assert paths(tmp_path, include=("data",)) == [
        ".gitignore", "data/big.bin", "new.py", "train.py",
    ]  # fmt: skip


def test_only_program_folder_of_repository_is_packed(tmp_path: Path, write: Write) -> None:
    (tmp_path / "other.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")

    bundle = packed(tmp_path)

    assert sorted(bundle.paths) == ["train.py"]
    assert bundle.git is not None
    assert bundle.git.commit is None


def test_deleted_tracked_file_is_excluded(tmp_path: Path, write: Write) -> None:
    write("old.py")
    git(tmp_path / "mine", "init", "-q")
    git(tmp_path / "mine", "add", ".")
    (tmp_path / "mine" / "old.py").unlink()

    assert paths(tmp_path) == ["train.py"]


def test_nested_repository_is_included(tmp_path: Path, write: Write) -> None:
    write("vendored/lib.py")
    git(tmp_path / "mine" / "vendored", "init", "-q")
    git(tmp_path / "mine", "init", "-q")

    assert paths(tmp_path) == ["train.py", "vendored/lib.py"]


def test_empty_submodule_is_refused(tmp_path: Path, write: Write) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "part.py").write_text("x = 1\n")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "x")
    write("train.py", "import part\n")
    whole, clone = tmp_path / "mine", tmp_path / "clone"
    git(whole, "init", "-q")
    local = ("-c", "protocol.file.allow=always")
    git(whole, *local, "submodule", "add", "-q", str(library), "vendor/library")
    git(whole, "add", ".")
    git(whole, "commit", "-qm", "x")
    git(tmp_path, "clone", "-q", str(whole), str(clone))

    with pytest.raises(Refusal, match="git submodule update --init vendor/library"):
        select(clone, include=(), exclude=())
    left_out = select(clone, include=(), exclude=("vendor",))
    assert left_out.paths == (".gitmodules", "train.py")
    git(clone, *local, "submodule", "update", "-q", "--init", "vendor/library")
    assert "vendor/library/part.py" in select(clone, include=(), exclude=()).paths


def test_ignored_folder_is_packed_with_note(tmp_path: Path, write: Write) -> None:
    (tmp_path / ".gitignore").write_text("mine/\n")
    git(tmp_path, "init", "-q")

    bundle = packed(tmp_path)

    assert sorted(bundle.paths) == ["train.py"]
    assert "git ignores" in (bundle.remark or "")


def test_unreadable_repository_is_noted(tmp_path: Path, write: Write) -> None:
    write(".git", "gitdir: /nowhere\n")

    bundle = packed(tmp_path)

    assert sorted(bundle.paths) == ["train.py"]
    assert "git failed" in (bundle.remark or "")


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a/b/c.pt", "*.pt", True),
        ("a/b/c.pt", "b", True),
        ("a/b/c.pt", "./a/b/", True),
        ("a/b/c.pt", "b/c.pt", False),
        ("a/b/c.py", "*.pt", False),
    ],
)
def test_patterns_follow_gitignore(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, pattern) is expected


def test_include_overrides_exclude(tmp_path: Path, write: Write) -> None:
    write("data/big.bin")
    write("data/tiny.json")

    assert paths(tmp_path, exclude=("data",)) == ["train.py"]
    assert paths(tmp_path, exclude=("data",), include=("data/tiny.json",)) == [
        "data/tiny.json", "train.py",
    ]  # fmt: skip


def test_link_within_folder_is_resolved(tmp_path: Path, write: Write) -> None:
    write("lib/a.py", "a = 1\n")
    (tmp_path / "mine" / "b.py").symlink_to("lib/a.py")
    (tmp_path / "mine" / "alias").symlink_to("lib")

    assert packed(tmp_path).contents() == {
        "alias/a.py": b"a = 1\n", "b.py": b"a = 1\n", "lib/a.py": b"a = 1\n",
        "train.py": b"x = 1\n",
    }  # fmt: skip


def refusal(tmp_path: Path, **options: tuple[str, ...]) -> str:
    with pytest.raises(Refusal) as refused:
        packed(tmp_path, **options)
    return refused.value.message


def test_link_out_of_folder_is_refused(tmp_path: Path, write: Write) -> None:
    (tmp_path / "data.txt").write_text("x")
    (tmp_path / "mine" / "data.txt").symlink_to("../data.txt")

    said = refusal(tmp_path)

    assert "data.txt is a link to ../data.txt, outside" in said
    assert "--workdir, or exclude the link with --exclude data.txt" in said
    assert paths(tmp_path, exclude=("data.txt",)) == ["train.py"]


def test_dangling_link_is_refused(tmp_path: Path, write: Write) -> None:
    (tmp_path / "mine" / "a").symlink_to("gone")

    assert "a is a link to gone, which does not exist; fix the link" in refusal(tmp_path)


def test_usual_names_of_key_files_are_known() -> None:
    names = (
        *(".env", "key.pem", "id_rsa", "id_ed25519", ".netrc", ".git-credentials"),
        *(".aws/credentials", ".docker/config.json", "kaggle.json", "secrets.yaml"),
    )

    assert [name for name in names if secret_name(name) is None] == []


@pytest.mark.parametrize("name", ["conf/.env.local", "home/.aws/credentials"])
def test_key_files_are_refused_unless_included(tmp_path: Path, write: Write, name: str) -> None:
    write(name)

    said = refusal(tmp_path)

    assert said.startswith(f"{name}: a file named like ")
    assert f"--exclude {name}, or include it anyway with --include {name}" in said
    assert name in paths(tmp_path, include=(name,))
    assert name not in paths(tmp_path, exclude=(name,))


def test_example_keys_are_accepted(tmp_path: Path, write: Write) -> None:
    write(".env.example", "TOKEN=\n")
    # The ids in AWS's own documentation.
    write(
        "a.md",
        "AKIAIOSFODNN7EXAMPLE aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    )

    assert paths(tmp_path) == [".env.example", "a.md", "train.py"]


def test_link_to_key_file_is_refused(tmp_path: Path, write: Write) -> None:
    write("secret/.env")
    (tmp_path / "mine" / "config").symlink_to("secret/.env")

    assert "config: a file named like .env" in refusal(tmp_path, exclude=("secret",))


def test_oversized_archive_is_refused_with_largest_files(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "MAX_PACKED_BYTES", 10_000)
    write("weights.bin", os.urandom(30_000))
    write("small.bin", os.urandom(2_000))

    said = refusal(tmp_path)

    assert "exceed the limit of 10 kB even when compressed" in said
    assert "the largest are weights.bin (30 kB), small.bin (2 kB)" in said
    assert "`python -m jobs upload PATH`, which prints the --input option" in said
    assert "--exclude" in said


def test_oversized_content_is_refused_before_packing(tmp_path: Path, write: Write) -> None:
    with write("zeros.bin").open("wb") as file:
        file.truncate(bundles.MAX_BYTES)

    assert "total 1 GB, but the limit is 1 GB; the largest are zeros.bin (1 GB)" in refusal(
        tmp_path
    )


def test_too_many_files_are_refused_with_folders(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 10)
    for number in range(11):
        write(f"images/{number}.png")

    assert "more than 10 files" in refusal(tmp_path)
    assert "most are in images/" in refusal(tmp_path)


def test_file_changed_while_packing_is_refused(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("a.log", "1\n")
    read = Path.read_bytes

    def read_and_grow(self: Path) -> bytes:
        data = read(self)
        path.write_text("more\n" * 3)
        return data

    monkeypatch.setattr(Path, "read_bytes", read_and_grow)

    assert "changed while the program was being packed" in refusal(tmp_path)


def test_file_deleted_while_packing_is_refused(tmp_path: Path, write: Write) -> None:
    path = write("a.py")
    selection = select(tmp_path / "mine", include=(), exclude=())
    path.unlink()

    with pytest.raises(Refusal, match="changed while the program was being packed"):
        pack(selection)


def test_unreadable_file_is_refused(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> bytes:  # root can read every file
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)

    assert "train.py cannot be read: Permission denied; fix its permissions" in refusal(tmp_path)


def test_undecodable_name_is_refused(tmp_path: Path, write: Write) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path / "mine") + b"/\xff.py")).write_text("")

    assert "is not a UTF-8 name" in refusal(tmp_path)


def test_unmatched_pattern_is_refused(tmp_path: Path, write: Write) -> None:
    said = refusal(tmp_path, include=("*.pt",))

    assert said.startswith("--include *.pt: no file in ")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--api-key", "sk-0123456789abcdef0123"], ["--api-key"]),
        (["--hf_token=hf_" + "a" * 34], ["--hf_token"]),
        (["x", "hf_" + "aB" * 17], ["hf_aBa..."]),
        ([ACCESS_KEY], ["AKIAQW..."]),
        (["--eos_token=</s>"], []),
        (["--db-password=xyz"], ["--db-password"]),
        (["--max-tokens", "12345678"], []),
        (["--password", "--verbose"], []),
    ],
)
def test_arguments_resembling_keys_are_detected(words: list[str], found: list[str]) -> None:
    assert [*secret_words(words)] == found
