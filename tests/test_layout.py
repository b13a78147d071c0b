"""Top-level folders must not shadow the packages we depend on (docs/adr/0001)."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import FIRST

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("folder", ["constructs", "docker", "tests"])
def test_folder_is_not_an_import_package(folder: str) -> None:
    stray = [str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.py")]

    assert [name for name in stray if not Path(name).name.startswith(("test_", "conftest"))] == []


def test_tests_have_no_init_files() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_constructs_is_the_published_package() -> None:
    spec = find_spec("constructs")

    assert spec is not None and spec.origin is not None
    assert ROOT / "constructs" not in Path(spec.origin).parents


def test_every_file_in_first_exists() -> None:
    assert [path for path in FIRST if not path.is_file()] == []
