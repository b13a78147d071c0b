"""Measure how many labels ``python -m jobs port`` finds in public scripts.

    PYTHONPATH=.:constructs python tools/port_score.py tests/jobs/port_labels.json SOURCES

SOURCES is a folder with the scripts; the labels contain their repository, commit, path and SHA-256.
A label counts as found if the same kind is reported on its line or an adjacent one. ``--dev``
selects the scripts on which the rules were tuned; ``--show`` prints the differences.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from jobs.port.findings import findings, source_of

Place = tuple[int, str]


def score(labeled: set[Place], found: set[Place]) -> tuple[set[Place], set[Place]]:
    """Return the missed labels and the findings without a label."""
    unlabeled, missed = set(found), set[Place]()
    for line, kind in sorted(labeled & found):
        unlabeled.discard((line, kind))
    for line, kind in sorted(labeled - found):
        near = [(line + by, kind) for by in (1, -1) if (line + by, kind) in unlabeled]
        if near:
            unlabeled.discard(near[0])
        else:
            missed.add((line, kind))
    return missed, unlabeled


def main(labels: Path, sources: Path, *, is_dev: bool, shows: bool) -> None:
    """Print the scores of the development or test scripts, and totals by kind."""
    found_of, missed_of, false_of = Counter[str](), Counter[str](), Counter[str]()
    per_script: list[int] = []
    scripts: list[dict[str, Any]] = json.loads(labels.read_text())
    for script in scripts:
        if script.get("dev", False) is not is_dev:
            continue
        data = (sources / script["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != script["sha256"]:
            raise SystemExit(f"{script['file']} is not the labeled file")
        labeled = {(item["line"], item["kind"]) for item in script["findings"]}
        reported = findings([source_of(script["file"], data)])
        found = {(item.line, str(item.kind)) for item in reported}
        missed, false = score(labeled, found)
        missed_of.update(kind for _, kind in missed)
        found_of.update(kind for _, kind in labeled - missed)
        false_of.update(kind for _, kind in false)
        per_script.append(len(false))
        print(f"{script['file']}: {len(labeled) - len(missed)} of {len(labeled)}, "
              f"{len(false)} false")  # fmt: skip
        if shows:
            lines = data.decode().splitlines()
            for label, places in (("missed", missed), ("false", false)):
                for line, kind in sorted(places):
                    print(f"    {label} {line} {kind}: {lines[line - 1].strip()[:90]}")
    for kind in sorted(found_of.keys() | missed_of.keys() | false_of.keys()):
        total = found_of[kind] + missed_of[kind]
        print(f"{kind:14} {found_of[kind]} of {total}, {false_of[kind]} false")
    total = found_of.total() + missed_of.total()
    print(
        f"{len(per_script)} scripts: {found_of.total()} of {total} labels found "
        f"({found_of.total() / total:.1%}), {false_of.total()} false findings "
        f"({false_of.total() / len(per_script):.2f} per script, at most {max(per_script)})"
    )


if __name__ == "__main__":
    labels, sources = [Path(word) for word in sys.argv[1:] if not word.startswith("--")]
    main(labels, sources, is_dev="--dev" in sys.argv, shows="--show" in sys.argv)
