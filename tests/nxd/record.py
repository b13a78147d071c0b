"""Record what the real package computes, for CI, which has none.

    NXD_SOURCE=<folder> python -m tests.nxd.record

Writes ``golden.json``: losses and norms on one, two and four ranks, what the project asks of NxD,
and the collectives of a step. ``tests/training/llama/test_golden.py`` holds the fake to it, and
``test_golden.py`` of this suite holds it to the package.
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
    """What is kept of the figures."""
    found = {name: figures.of(name) for name in NAMES}
    return {
        "versions": {
            "neuronx_distributed": found["one"]["nxd"],
            **{name: version(name) for name in ("torch", "torch_xla", "transformers")},
        },
        "words": list(CASES["one"].words),
        "asked": found["one"]["asked"],
        "cases": {
            name: {"losses": one["losses"], "norms": one["norms"], "collectives": collectives(one)}
            for name, one in found.items()
        },
    }


def collectives(figures: dict[str, Any]) -> dict[str, list[Any]]:
    """Of one micro-batch, which all others repeat, and of the update."""
    calls, count = figures["calls"], figures["micro_batches"]
    first = calls["micro-batches"][: len(calls["micro-batches"]) // count]
    assert calls["micro-batches"] == first * count
    return {"micro-batch": first, "update": calls["update"]}


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        document = json.dumps(golden(compute(Path(folder), NAMES)), indent=1)
    # A collective on a line.
    PATH.write_text(_compact(document) + "\n")


def _compact(document: str) -> str:
    """Without line breaks in lists of plain values."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), document)


if __name__ == "__main__":
    main()
