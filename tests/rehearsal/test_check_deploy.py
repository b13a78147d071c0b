"""`jobs check-deploy` between two deployments by the real CDK CLI, while a job runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.deployment.server import wait_until
from rehearsal.deployment.state import RehearsalFolder
from tests.rehearsal.rehearsals import kept_up, run_script, submit_program
from tests.support.limits import scaled

# One deployment serves all tests of this file, in their order. `make test` covers the
# findings, from templates alone, in tests/jobs.
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SETTINGS = {"max_nodes": 2, "retain_data": "false", "notify_email": "rehearsal@example.com"}
CONTEXT = " ".join(f"-c trainium:{key}={value}" for key, value in SETTINGS.items())
# It lasts as long as the tests, without using CPU time.
WAITS = "import time\n\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RehearsalFolder]:
    """A deployment on Batch with a run that may last longer than an update allows."""
    folder = RehearsalFolder(tmp_path_factory.mktemp("up"))
    words = ("--orchestrators", "batch", "--nodes", "2", "--addresses", "127.0.50")
    with kept_up(folder, *words):
        submit_program(folder, WAITS, "--nodes", "2", "--name", "long", "--time-limit", "160")
        running = "python -m jobs status long | grep -q RUNNING"
        assert wait_until(lambda: run_script(folder, running)[0] == 0, limit_s=scaled(60))
        yield folder


@pytest.fixture(scope="module")
def changed(up: RehearsalFolder) -> Path:
    """The assembly with a larger root volume, which changes the launch template."""
    assembly = up.path / "changed"
    command = f"cdk synth --quiet --output {assembly} {CONTEXT} -c trainium:root_volume_gib=300"
    code, output = run_script(up, command)
    assert code == 0, output
    return assembly


def check(up: RehearsalFolder, assembly: Path) -> tuple[int, dict[str, Any]]:
    code, output = run_script(up, f"python -m jobs check-deploy --assembly {assembly} --json")
    found: dict[str, Any] = json.loads(output)
    return code, found


def test_redeployment_without_change_is_no_op(up: RehearsalFolder) -> None:
    code, found = check(up, up.assembly)

    assert (code, found["findings"]) == (0, [])
    assert {stack["action"] for stack in found["stacks"]} == {"unchanged"}


def test_run_ended_by_node_change_is_named(up: RehearsalFolder, changed: Path) -> None:
    code, found = check(up, changed)
    ends, rolls_back = found["findings"]

    assert code == 1
    assert (ends["kind"], [job["run"] for job in ends["jobs"]]) == ("ends-jobs", ["long"])
    assert (rolls_back["kind"], rolls_back["jobs"]) == ("rolls-back", ends["jobs"])
    assert ends["jobs"][0]["within_minutes"] == 7200
    # The data stack contains the parameter that stores the settings.
    assert {stack["name"] for stack in found["stacks"] if stack["action"] == "update"} == {
        "trainium-default-batch",
        "trainium-default-data",
    }


def test_check_deploy_finds_nothing_after_deployment(up: RehearsalFolder, changed: Path) -> None:
    deploy = f"cdk deploy --all --app {changed} --method=direct --require-approval never"
    code, output = run_script(up, f"CDK_DOCKER={up.docker} {deploy}")
    assert code == 0, output

    assert check(up, changed)[1]["findings"] == []
