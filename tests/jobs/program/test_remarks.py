"""Notes before a program is sent: paths and modules missing on nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jobs.program.entry import Entry
from jobs.program.imports import missing_imports
from jobs.program.remarks import local_paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine"
    made.mkdir()
    return made


def test_local_paths_are_noted_once(folder: Path, tmp_path: Path) -> None:
    data, config = tmp_path / "data", folder / "conf.yaml"
    data.mkdir()
    config.write_text("x")
    argv = ("--lr", "0.1", "--data", str(data), f"--again={data}", f"--config={config}")

    found = [*local_paths(argv, {"CACHE": f"relative:{data}/..", "N": "4"}, folder)]

    assert [line.partition(": a local path")[0] for line in found] == [
        f"argument {data}",
        f"argument --config={config}",
        f"--env CACHE=relative:{data}/..",
    ]
    assert "put data into the bucket (--input, --dataset)" in found[0]
    assert found[1].endswith("elsewhere on nodes; use conf.yaml")


@pytest.mark.parametrize(
    "word",
    ["/", "/tmp", "/dev/shm", "/etc/hostname", "/nowhere/at/all", "out", "s3://b/c", "/\0", "1/2"],
)
def test_other_words_are_not_local_paths(folder: Path, word: str) -> None:
    assert [*local_paths((word, f"--x={word}"), {"X": word}, folder)] == []


def entry(folder: Path, file: str, module: str | None = None) -> Entry:
    return Entry(folder=folder, script=None if module else file, module=module, file=file)


def remarked(folder: Path, text: str, required: str = "", **others: str) -> list[str]:
    contents = {"train.py": text.encode()}
    contents |= {f"{name.replace('__', '/')}.py": more.encode() for name, more in others.items()}
    return [*missing_imports(entry(folder, "train.py"), contents, required)]


def test_modules_of_parent_folder_are_noted_with_location(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("x = 1\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    text = "import os, torch\nimport own\nfrom helpers import x\nfrom helpers import y\n"

    found = remarked(folder, text, own="import lib.deep\n")

    assert found == [
        f"train.py, line 3: helpers is in {tmp_path}, which is not packed; specify a folder"
        " that contains both with --workdir, or list its package in --requirements",
        f"own.py, line 1: lib is in {tmp_path}, which is not packed; specify a folder that "
        "contains both with --workdir, or list its package in --requirements",
    ]


def test_modules_found_by_pythonpath_or_editable_install_are_noted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python adds the folders of PYTHONPATH and .pth files there.
    lib = tmp_path / "elsewhere" / "src"
    (lib / "in_there").mkdir(parents=True)
    (lib / "in_there" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(lib)])

    (found,) = remarked(folder, "import in_there.deep\n")

    assert f"in_there is in {lib / 'in_there'}, which is not packed" in found


def test_module_next_to_script_folder_is_found_with_module_option(folder: Path) -> None:
    contents = {"scripts/train.py": b"import lib\n", "lib/__init__.py": b""}

    (found,) = missing_imports(entry(folder, "scripts/train.py"), contents, "")

    assert "line 1: lib is in the bundle, but Python looks for modules next to the script" in found
    assert f"submit -m scripts.train --workdir {folder}" in found
    module = entry(folder, "scripts/train.py", module="scripts.train")
    assert [*missing_imports(module, contents, "")] == []


@pytest.mark.parametrize("place", ["src", "libs/mylib/src"])
def test_module_in_src_layout_is_noted_with_import_line(folder: Path, place: str) -> None:
    contents = {"train.py": b"import mypkg.model\n", f"{place}/mypkg/__init__.py": b""}
    found = [*missing_imports(entry(folder, "train.py"), contents, "")]
    contents["train.py"] = f"import sys\nsys.path.insert(0, {place!r})\nimport mypkg\n".encode()

    assert found == [
        f"train.py, line 1: mypkg is in {place}/ of the bundle, but Python looks for modules next "
        "to the script; begin train.py with `import sys; sys.path.insert(0, "
        f"{place!r})`"
    ]
    assert [*missing_imports(entry(folder, "train.py"), contents, "")] == []


@pytest.mark.parametrize(
    "text",
    [
        "import os, json, torch, numpy",
        "import nothing_of_that_name",
        "try:\n    import helpers\nexcept ImportError:\n    helpers = None",
        "from . import helpers",
        "import jobs, rehearsal, training",
        "import help_ers",
        "import wandb, diffusers",
    ],
)
def test_installed_optional_or_unknown_modules_are_not_noted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "help_ers.py").write_text("")
    (tmp_path / "wandb" / "run-1").mkdir(parents=True)
    (tmp_path / "diffusers").mkdir()
    (tmp_path / "diffusers" / "setup.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    assert remarked(folder, f"{text}\n", required="help-ers>=1\n") == []
