"""The job that collects wheels, run by its launcher on an ordinary instance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.limits import scaled
from tests.training.conftest import Cluster
from tests.training.program.conftest import KEY
from trainium_catalogue.contract import requirements_key

if TYPE_CHECKING:
    from tests.training.program.package_index import PackageIndex


def run(lone_node: Cluster, extra: dict[str, str]) -> int:
    lone_node.start("--for-run=mine", f"--key={KEY}", workload="wheels", extra=extra)
    return lone_node.end(within_s=scaled(40))[0]


def test_it_reads_a_runs_requirements_and_stores_their_wheels(
    lone_node: Cluster, index: PackageIndex, pip_environment: dict[str, str]
) -> None:
    index.add("p4-model", "1.0")
    path = lone_node.folder / "build" / requirements_key("mine", KEY)  # where `submit` puts them
    path.parent.mkdir(parents=True)
    path.write_text(index.text("p4-model"))
    assert run(lone_node, pip_environment) == 0, lone_node.all_logs()
    made = lone_node.folder / "build" / "wheels" / KEY
    assert json.loads((made / "complete.json").read_text())["wheels"][0]["name"] == (
        "p4_model-1.0-py3-none-any.whl"
    )


def test_missing_requirements_are_its_last_line_and_not_retried(
    lone_node: Cluster, pip_environment: dict[str, str]
) -> None:
    assert run(lone_node, pip_environment) == 1, lone_node.all_logs()
    assert "submit the program with --requirements" in lone_node.log(0).splitlines()[-1]
    assert "Traceback" not in lone_node.log(0)
