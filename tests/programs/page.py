"""The tables of docs/programs.md, which `make readme` writes, and the results that they show."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping

from tests.programs.catalogue import HERE, ROOT, PublicProgram, public_programs
from tools.readme import table

PAGE = ROOT / "docs" / "programs.md"
RESULTS = HERE / "results.json"
_COLUMNS = ("undisturbed", "survived", "batch", "eks")


def results() -> dict[str, dict[str, str]]:
    """What came of the programs, by name, when they were last run."""
    found: dict[str, dict[str, str]] = json.loads(RESULTS.read_text())
    return found


def record(name: str, found: Mapping[str, str]) -> None:
    """Keep what came of a program, beside what is known of it already."""
    known = results()
    known[name] = {**known.get(name, {}), **found}
    listed = {each: known[each] for each in public_programs() if each in known}
    RESULTS.write_text(json.dumps(listed, indent=1) + "\n")


def sections() -> dict[str, str]:
    """The generated parts of the page."""
    programs = public_programs()
    return {"programs": _programs(programs), "commands": _commands(programs)}


def _programs(programs: Mapping[str, PublicProgram]) -> str:
    known = results()
    rows = [
        (name, _origin(program), *(known.get(name, {}).get(each, "") for each in _COLUMNS))
        for name, program in programs.items()
    ]
    head = ("program", "from", "undisturbed", "after a killed node", "rehearsed Batch", "EKS")
    return table(head, *rows)


def _origin(program: PublicProgram) -> str:
    if program.package:
        return program.package.replace("==", " ")
    address = f"https://github.com/{program.repository}/tree/{program.commit}"
    return f"[{program.repository}]({address}) `{program.commit[:7]}`"


def _commands(programs: Mapping[str, PublicProgram]) -> str:
    lines = ["<!-- parsed: needs AWS; tests/programs runs the same on the launcher -->", "```bash"]
    for program in programs.values():
        wrapped = textwrap.wrap(
            program.submission,
            96,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append(" \\\n".join(wrapped))
    return "\n".join([*lines, "```"])
