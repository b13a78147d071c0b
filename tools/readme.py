"""Write the generated tables of README.md; run by `make readme`, compared by a test."""

import re
from collections.abc import Mapping
from pathlib import Path

from jobs.explain import KNOWN_REASONS
from stacks.config.table import context_table
from trainium_catalogue.exit_codes import EXIT_CODES

README = Path(__file__).resolve().parent.parent / "README.md"


def reasons_table() -> str:
    """What Batch, ECS, Kubernetes or a node says, what it means and what to do."""
    rows = ["| says | means | do |", "| --- | --- | --- |"]
    for reason in KNOWN_REASONS:
        words = reason.pattern.strip("*").replace("*", "...")
        rows.append(f"| `{words}` | {reason.meaning} | {reason.remedy} |")
    for code, ending in EXIT_CODES.items():
        rows.append(f"| exit code {code.value} | {ending.meaning} | {ending.remedy} |")
    return "\n".join(rows)


def tables() -> Mapping[str, str]:
    """Content of each generated section, by its name."""
    return {"context keys": context_table(), "reasons": reasons_table()}


def with_tables(text: str) -> str:
    """Return the README with every generated section renewed."""
    for name, table in tables().items():
        section = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = section.subn(lambda m, t=table: f"{m[1]}{t}\n{m[2]}", text)  # type: ignore[misc]
        assert count == 1, name
    return text


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
