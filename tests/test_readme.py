"""README.md and docs/verification.md say what the code and the list of claims say."""

import re
from pathlib import Path

import pytest

from stacks.config.table import context_table
from tools.readme import README, tables, with_tables

ROOT = Path(__file__).resolve().parent.parent
TEXT = README.read_text()


@pytest.mark.parametrize("path", tables(), ids=lambda path: path.name)
def test_generated_tables_are_current(path: Path) -> None:
    text = path.read_text()

    assert with_tables(text, tables()[path]) == text, "run make readme"


def test_the_table_of_context_keys_is_in_the_readme() -> None:
    assert context_table() in TEXT


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXT))))
def test_a_relative_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_every_make_target_that_the_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert all(
        re.search(rf"^{target}:", makefile, re.MULTILINE)
        for target in re.findall(r"`make ([a-z-]+)`", TEXT)
    )
