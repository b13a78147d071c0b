"""The pages that a reader sees, and the command blocks on them.

The comment above a block of commands states how it is tested:

- ``<!-- run -->``: a test runs it in a rehearsed deployment, in the order of ``RUN_ORDER``
- ``<!-- parsed: REASON -->``: every command is parsed by its own command line, and not run

``<!-- prints -->`` above a block of text states that the block before it prints those lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
RUN_ORDER = ("rehearsal.md", "finetune.md", "llama.md", "new-workload.md")

_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_MARKER = re.compile(r"<!-- (run|prints|parsed: \S.*) -->")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_COMMAND_SPAN = re.compile(r"(python -m|trainium|make|cdk|torchx run) ")
_PLACEHOLDER = re.compile(r"<[a-z][a-z ]*>")
_SEPARATORS = frozenset(["&&", "||", ";", "|", "&"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    marker: str | None
    """The comment above the block, if any."""
    prints: tuple[str, ...] = ()
    """Lines that its commands print, as the page shows them."""

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Return every fenced block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(text):
        above = text[: fence.start()].rstrip("\n").rpartition("\n")[2]
        marker = _MARKER.fullmatch(above.strip())
        yield Block(
            page=page,
            line=text.count("\n", 0, fence.start()) + 1,
            language=fence[2],
            text=re.sub(rf"^{fence[1]}", "", fence[3], flags=re.MULTILINE),
            marker=marker[1] if marker else None,
        )


def blocks() -> list[Block]:
    """Return every fenced block of every page."""
    return [block for page in PAGES for block in blocks_of(page)]


def blocks_to_run() -> list[Block]:
    """Return the blocks that a rehearsed deployment runs, in their order."""
    chosen: list[Block] = []
    for block in blocks():
        if block.marker == "run":
            chosen.append(block)
        elif block.marker == "prints":
            lines = tuple(line.strip() for line in block.text.splitlines() if line.strip())
            chosen[-1] = replace(chosen[-1], prints=lines)
    return sorted(chosen, key=lambda block: (RUN_ORDER.index(block.page.name), block.line))


def spans_of(page: Path) -> list[str]:
    """Return the commands inside sentences and tables; `...` leaves something out."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    spans = (span.replace("\\|", "|") for span in _SPAN.findall(text))
    return [
        span for span in dict.fromkeys(spans) if _COMMAND_SPAN.match(span) and " ... " not in span
    ]


def commands_of(script: str) -> list[list[str]]:
    """Split a script into commands, each a list of arguments; a placeholder becomes one of them."""
    commands: list[list[str]] = []
    for line in _PLACEHOLDER.sub("placeholder", script.replace("\\\n", " ")).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in (*lexer, ";"):
            if word in _SEPARATORS:
                commands += [words] if words else []
                words = []
            else:
                words.append(word)
    return commands
