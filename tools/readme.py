"""Write the generated tables of README.md and docs/verification.md; run by `make readme`."""

import re
from collections.abc import Mapping
from pathlib import Path

from jobs.output.explain import KNOWN_REASONS
from jobs.verify.claims import Claim, read_claims
from stacks.config.table import context_table
from trainium_catalogue.exit_codes import EXIT_CODES

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
VERIFICATION = ROOT / "docs" / "verification.md"


def reasons_table() -> str:
    """What Batch, ECS, Kubernetes or a node says, what it means and what to do."""
    rows = ["| says | means | do |", "| --- | --- | --- |"]
    for reason in KNOWN_REASONS:
        words = reason.pattern.strip("*").replace("*", "...")
        rows.append(f"| `{words}` | {reason.meaning} | {reason.remedy} |")
    for code, ending in EXIT_CODES.items():
        rows.append(f"| exit code {code.value} | {ending.meaning} | {ending.remedy} |")
    return "\n".join(rows)


def claims_table(section: str) -> str:
    """The claims of one section, with what is open and what settles it."""
    rows = ["| id | claim | evidence | open | probe |", "| --- | --- | --- | --- | --- |"]
    for claim in read_claims():
        if claim.section == section:
            cells = (f"`{claim.id}`", claim.claim, claim.evidence, claim.open, _settled_by(claim))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _settled_by(claim: Claim) -> str:
    where = ", ".join(claim.probe) or ("none" if claim.open else "")
    return f"{where}: {claim.why}" if claim.why else where


def tables() -> Mapping[Path, Mapping[str, str]]:
    """Content of each generated section, by its name, of each file."""
    sections = dict.fromkeys(claim.section for claim in read_claims())
    return {
        README: {"context keys": context_table(), "reasons": reasons_table()},
        VERIFICATION: {f"claims {name}": claims_table(name) for name in sections},
    }


def with_tables(text: str, sections: Mapping[str, str]) -> str:
    """Return a document with every generated section renewed."""
    for name, table in sections.items():
        section = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = section.subn(lambda m, t=table: f"{m[1]}{t}\n{m[2]}", text)  # type: ignore[misc]
        assert count == 1, name
    return text


if __name__ == "__main__":
    for path, sections in tables().items():
        path.write_text(with_tables(path.read_text(), sections))
