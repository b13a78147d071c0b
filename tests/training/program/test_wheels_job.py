"""The job that collects wheels, run by its launcher on an ordinary instance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.limits import scaled
from tests.training.conftest import Cluster
from tests.training.program.conftest import KEY
from trainium_catalogue.contract import requirements_key

if TYPE_CHECKING:
    from tests.training.program.package_index import PackageIndex

FLAGS = ("--for-run=mine", f"--key={KEY}")


def require(folder: Path, text: str) -> None:
    """Store the requirements where `submit` puts them."""
    path = folder / "build" / requirements_key("mine", KEY)
    path.parent.mkdir(parents=True)
    path.write_text(text)


def run(lone_node: Cluster, extra: dict[str, str]) -> int:
    lone_node.start(*FLAGS, workload="wheels", extra=extra)
    return lone_node.end(within_s=scaled(40))[0]


def test_it_reads_a_runs_requirements_and_stores_their_wheels(
    lone_node: Cluster, index: PackageIndex, pip_environment: dict[str, str]
) -> None:
    index.add("p4-model", "1.0")
    require(lone_node.folder, index.text("p4-model"))
    assert run(lone_node, pip_environment) == 0, lone_node.all_logs()
    made = lone_node.folder / "build" / "wheels" / KEY
    assert json.loads((made / "complete.json").read_text())["wheels"][0]["name"] == (
        "p4_model-1.0-py3-none-any.whl"
    )


def test_its_last_line_names_the_conflict_and_it_is_not_retried(
    lone_node: Cluster, index: PackageIndex, pip_environment: dict[str, str]
) -> None:
    index.add("p4-old", "1.0", ["torch<1"])
    require(lone_node.folder, index.text("p4-old"))
    assert run(lone_node, pip_environment) == 1, lone_node.all_logs()
    last = lone_node.log(0).splitlines()[-1]
    assert "p4-old 1.0 needs torch<1, but the image has torch" in last
    assert last.endswith("or deploy an image of your own (image_uri)")
    assert "Traceback" not in lone_node.log(0)


def test_without_a_reason_it_names_who_writes_one(
    lone_node: Cluster, pip_environment: dict[str, str]
) -> None:
    assert run(lone_node, pip_environment) == 1, lone_node.all_logs()
    assert "submit the program with --requirements" in lone_node.log(0).splitlines()[-1]
