"""The pages agree with the code, and their links resolve."""

import re
from pathlib import Path

import pytest

from tests.pages.blocks import PAGES, ROOT
from tools.readme import tables, with_tables

README = ROOT / "README.md"

_LINK = re.compile(r"\]\(([^)\s]*)\)")
# A file or folder of this repository in the text of a page; `<...>` and `*` stand for a part.
_PATH = re.compile(
    r"`((?:constructs|docker|docs|emulators|jobs|node_scaler|notifier|rehearsal|stacks|tests|tools|training)/"
    r"[\w./-]+)`"
)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_links_every_page() -> None:
    text = README.read_text()

    assert "(docs/adr)" in text
    pages = [page for page in PAGES[1:] if page.parent.name != "adr"]
    assert [page.name for page in pages if f"{page.name})" not in text] == []


def test_readme_output_matches_rehearsal_phases() -> None:
    shown = re.findall(r"^ok +(?:\w+: )?(.+?)  +[0-9.]+ s$", README.read_text(), re.MULTILINE)
    source = "".join(path.read_text() for path in (ROOT / "rehearsal").rglob("*.py"))

    assert shown
    assert [phase for phase in shown if f'"{phase}"' not in source] == []


def test_generated_tables_are_current() -> None:
    for path, generated in tables().items():
        text = path.read_text()
        assert with_tables(text, generated) == text, "run make readme"


def resolves(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_on_a_page_resolves(page: Path) -> None:
    links = {link for link in _LINK.findall(page.read_text()) if ":" not in link}

    assert [link for link in sorted(links) if not resolves(page, link)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_on_a_page_exists(page: Path) -> None:
    named = set(_PATH.findall(page.read_text()))

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
