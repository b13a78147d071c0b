"""The generated sections of the pages on public programs, and their results."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.programs.catalogue import HERE, ROOT, PublicProgram, public_programs
from tools.readme import table

DOCS = ROOT / "docs"
RESULTS = HERE / "results.json"
_COLUMNS = ("undisturbed", "survived", "batch", "eks")


def results() -> dict[str, dict[str, str]]:
    """Return the programs' results of the last run, by name."""
    found: dict[str, dict[str, str]] = json.loads(RESULTS.read_text())
    return found


def record(name: str, found: Mapping[str, str]) -> None:
    """Add results of a program to the recorded ones."""
    known = results()
    known[name] = {**known.get(name, {}), **found}
    listed = {each: known[each] for each in public_programs() if each in known}
    RESULTS.write_text(json.dumps(listed, indent=1) + "\n")


def sections() -> dict[Path, dict[str, str]]:
    """Return the generated sections of each page."""
    programs = public_programs()
    on_cpu = {name: each for name, each in programs.items() if not each.on_neuron}
    on_neuron = {name: each for name, each in programs.items() if each.on_neuron}
    return {
        DOCS / "programs.md": {
            "programs": _programs(
                on_cpu, "uninterrupted", "after a killed node", "rehearsal, Batch", "rehearsal, EKS"
            ),
            "torchneuron": _programs(
                on_neuron,
                "uninterrupted, on CPU",
                "on `neuron`, after a killed node",
                "rehearsal, Batch",
                "rehearsal, EKS",
            ),
        },
        DOCS / "program-commands.md": {"commands": _commands(programs)},
    }


def _programs(programs: Mapping[str, PublicProgram], *results_head: str) -> str:
    known, columns = results(), _COLUMNS[: len(results_head)]
    rows = [
        (name, _origin(program), *(_result(program, known.get(name, {}), each) for each in columns))
        for name, program in programs.items()
    ]
    return table(("program", "from", *results_head), *rows)


def _result(program: PublicProgram, known: Mapping[str, str], column: str) -> str:
    on_neuron = column == "undisturbed" and not program.has_cpu_version
    return known.get(column, "") + (", on `neuron`" if on_neuron else "")


def _origin(program: PublicProgram) -> str:
    if program.package:
        return program.package.replace("==", " ")
    url = f"https://github.com/{program.repository}/tree/{program.commit}"
    return f"[{program.repository}]({url}) `{program.commit[:7]}`"


def _commands(programs: Mapping[str, PublicProgram]) -> str:
    lines = [
        "<!-- parsed: needs AWS; tests/programs runs the same programs with the launcher -->",
        "```bash",
    ]
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
