"""The pages agree with the code, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

from tests.pages.blocks import PAGES, ROOT
from tools.readme import tables, with_tables

README = ROOT / "README.md"

_LINK = re.compile(r"\]\(([^)\s]*)\)")
# A file or folder of this repository in the text of a page; `<...>` and `*` stand for a part.
_PATH = re.compile(
    r"`((?:constructs|docker|docs|emulators|jobs|node_scaler|rehearsal|stacks|tests|tools|training)/"
    r"[\w./-]+)`"
)
_NAMED = [
    pytest.param(path, id=f"{page.name} {path}")
    for page in PAGES
    for path in sorted(set(_PATH.findall(page.read_text())))
]
_LINKS = [
    pytest.param(page, target, id=f"{page.name} {target}")
    for page in PAGES
    for target in sorted(set(_LINK.findall(page.read_text())))
    if ":" not in target
]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_front_page_names_every_page() -> None:
    text = README.read_text()

    assert "(docs/adr)" in text
    pages = [page for page in PAGES[1:] if page.parent.name != "adr"]
    assert [page.name for page in pages if f"{page.name})" not in text] == []


def test_the_output_on_the_front_page_is_of_phases_that_a_rehearsal_has() -> None:
    shown = re.findall(r"^ok +(?:\w+: )?(.+?)  +[0-9.]+ s$", README.read_text(), re.MULTILINE)
    source = "".join(path.read_text() for path in (ROOT / "rehearsal").rglob("*.py"))

    assert shown
    assert [phase for phase in shown if f'"{phase}"' not in source] == []


@pytest.mark.parametrize("path", tables(), ids=lambda path: path.name)
def test_generated_tables_are_current(path: Path) -> None:
    text = path.read_text()

    assert with_tables(text, tables()[path]) == text, "run make readme"


@pytest.mark.parametrize(("page", "link"), _LINKS)
def test_a_link_leads_somewhere(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page

    assert target.exists()
    assert not anchor or anchor in anchors(target)


@pytest.mark.parametrize("path", _NAMED)
def test_a_file_that_a_page_names_exists(path: str) -> None:
    assert (ROOT / path).exists()
