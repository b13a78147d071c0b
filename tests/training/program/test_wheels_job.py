"""The job that collects wheels, as its launcher runs it on an ordinary instance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.limits import scaled
from tests.training.conftest import Cluster
from trainium_catalogue.contract import requirements_key

if TYPE_CHECKING:
    from tests.training.program.package_index import PackageIndex

KEY = "0123456789abcdef" * 2
FLAGS = ("--for-run=mine", f"--key={KEY}")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Cluster]:
    """One instance; whatever a test leaves is killed."""
    job = Cluster(tmp_path, num_nodes=1)
    yield job
    job.kill()


def require(folder: Path, text: str) -> None:
    """Leave the requirements where `submit` puts them."""
    path = folder / "build" / requirements_key("mine", KEY)
    path.parent.mkdir(parents=True)
    path.write_text(text)


def run(instance: Cluster, extra: dict[str, str]) -> int:
    instance.start(*FLAGS, workload="wheels", extra=extra)
    return instance.end(within_s=scaled(40))[0]


def test_it_reads_the_requirements_of_a_run_and_leaves_their_wheels(
    instance: Cluster, index: PackageIndex, pip_environment: dict[str, str]
) -> None:
    index.add("p4-model", "1.0")
    require(instance.folder, index.text("p4-model"))
    assert run(instance, pip_environment) == 0, instance.all_logs()
    made = instance.folder / "build" / "wheels" / KEY
    assert json.loads((made / "complete.json").read_text())["wheels"][0]["name"] == (
        "p4_model-1.0-py3-none-any.whl"
    )


def test_its_last_line_tells_the_conflict_and_it_is_not_retried(
    instance: Cluster, index: PackageIndex, pip_environment: dict[str, str]
) -> None:
    index.add("p4-old", "1.0", ["torch<1"])
    require(instance.folder, index.text("p4-old"))
    assert run(instance, pip_environment) == 1, instance.all_logs()
    last = instance.log(0).splitlines()[-1]
    assert "p4-old 1.0 needs torch<1, but the image has torch" in last
    assert last.endswith("or deploy an image of your own (image_uri)")
    assert "Traceback" not in instance.log(0)


def test_without_a_text_it_says_who_leaves_one(
    instance: Cluster, pip_environment: dict[str, str]
) -> None:
    assert run(instance, pip_environment) == 1, instance.all_logs()
    assert "submit the program with --requirements" in instance.log(0).splitlines()[-1]
