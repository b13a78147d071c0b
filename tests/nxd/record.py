"""Record the real package's results for CI, which lacks it.

    NXD_SOURCE=<folder> python -m tests.nxd.record

Writes ``golden.json``: losses and norms on one, two and four ranks, the project's calls of NxD, and
a step's collectives. ``tests/training/llama/test_golden.py`` compares the fake with it, and
``test_golden.py`` of this suite the package.
"""

from __future__ import annotations

import json
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.nxd.cases import CASES
from tests.nxd.figures import Figures, compute

PATH = Path(__file__).with_name("golden.json")
NAMES = ("one", "tp2", "tp2dp2")


def golden(figures: Figures) -> dict[str, Any]:
    """Select the recorded figures."""
    found = {name: figures.of(name) for name in NAMES}
    return {
        "versions": {
            "neuronx_distributed": found["one"]["nxd"],
            **{name: version(name) for name in ("torch", "torch_xla", "transformers")},
        },
        "arguments": list(CASES["one"].words),
        "calls": found["one"]["first_calls"],
        "cases": {
            name: {"losses": one["losses"], "norms": one["norms"], "collectives": collectives(one)}
            for name, one in found.items()
        },
    }


def collectives(figures: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the collectives of one micro-batch and of the update."""
    calls, count = figures["calls"], figures["micro_batches"]
    first = calls["micro-batches"][: len(calls["micro-batches"]) // count]
    assert calls["micro-batches"] == first * count
    return {"micro-batch": first, "update": calls["update"]}


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        document = json.dumps(golden(compute(Path(folder), NAMES)), indent=1)
    # One collective per line.
    PATH.write_text(_compact(document) + "\n")


def _compact(document: str) -> str:
    """Format JSON without line breaks in lists of scalars."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), document)


if __name__ == "__main__":
    main()
