"""`jobs check-deploy` between two deployments by the real CDK CLI, while a job runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.deployment.server import wait_until
from rehearsal.deployment.state import ROOT, RehearsalFolder
from tests.support.limits import scaled

# One deployment serves all tests of this file, in their order. `make test` has the judgements, of
# templates alone, in tests/jobs.
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

CONTEXT = "-c trainium:max_nodes=2 -c trainium:retain_data=false"
# It lasts as long as the tests, and leaves the processor to them.
WAITS = "import time\n\ntime.sleep(600)\n"
BIN = Path(sys.executable).parent


def rehearsal(folder: RehearsalFolder, *words: str) -> list[str]:
    return [sys.executable, "-m", "rehearsal", *words, "--folder", str(folder.path)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RehearsalFolder]:
    """A deployment on Batch with a run that may last longer than an update lets it."""
    folder = RehearsalFolder(tmp_path_factory.mktemp("up"))
    process = subprocess.Popen(
        rehearsal(
            folder, "up", "--orchestrators", "batch", "--nodes", "2", "--addresses", "127.0.50"
        ),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    assert wait_until(folder.environment.exists, limit_s=scaled(240))
    try:
        program = folder.path / "program" / "wait.py"
        program.parent.mkdir()
        program.write_text(WAITS)
        submit = f"submit {program} --nodes 2 --name long --time-limit 160 --yes"
        code, said = say(folder, f"python -m jobs {submit}")
        assert code == 0, said
        running = "python -m jobs status long | grep -q RUNNING"
        assert wait_until(lambda: say(folder, running)[0] == 0, limit_s=scaled(60))
        yield folder
    finally:
        process.terminate()
        process.wait(timeout=scaled(120))


@pytest.fixture(scope="module")
def changed(up: RehearsalFolder) -> Path:
    """What the CLI makes of a larger root volume, which is another launch template."""
    assembly = up.path / "changed"
    command = f"cdk synth --quiet --output {assembly} {CONTEXT} -c trainium:root_volume_gib=300"
    code, said = say(up, command)
    assert code == 0, said
    return assembly


def say(folder: RehearsalFolder, script: str) -> tuple[int, str]:
    """Exit code and output of another terminal that has sourced the rehearsal's environment."""
    program = f'source "$0"; PATH={BIN}:"$PATH"; {script}'
    done = subprocess.run(
        ["bash", "-uc", program, folder.environment], cwd=ROOT, capture_output=True, text=True
    )
    return done.returncode, done.stdout or done.stderr


def check(up: RehearsalFolder, assembly: Path) -> tuple[int, dict[str, Any]]:
    code, said = say(up, f"python -m jobs check-deploy --assembly {assembly} --json")
    found: dict[str, Any] = json.loads(said)
    return code, found


def test_what_was_just_deployed_changes_nothing(up: RehearsalFolder) -> None:
    code, found = check(up, up.assembly)

    assert (code, found["findings"]) == (0, [])
    assert {stack["action"] for stack in found["stacks"]} == {"unchanged"}


def test_the_run_is_named_that_a_change_of_the_nodes_would_end(
    up: RehearsalFolder, changed: Path
) -> None:
    code, found = check(up, changed)
    ends, rolls_back = found["findings"]

    assert code == 1
    assert (ends["kind"], [job["run"] for job in ends["jobs"]]) == ("ends-jobs", ["long"])
    assert (rolls_back["kind"], rolls_back["jobs"]) == ("rolls-back", ends["jobs"])
    assert ends["jobs"][0]["within_minutes"] == 7200
    # The data stack has the parameter that remembers the settings.
    assert {stack["name"] for stack in found["stacks"] if stack["action"] == "update"} == {
        "trainium-default-batch",
        "trainium-default-data",
    }


def test_after_the_deployment_there_is_nothing_left_to_say(
    up: RehearsalFolder, changed: Path
) -> None:
    deploy = f"cdk deploy --all --app {changed} --method=direct --require-approval never"
    code, said = say(up, f"CDK_DOCKER={up.docker} {deploy}")
    assert code == 0, said

    assert check(up, changed)[1]["findings"] == []
