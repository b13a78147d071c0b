"""A deployment that stays up, in which the commands of README and docs are run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.deployment.server import wait_until
from rehearsal.deployment.state import ROOT, RehearsalFolder
from tests.pages.blocks import Block, blocks_to_run
from tests.support.limits import scaled

# One deployment serves all tests of this file. `make test` checks the options of every command on
# the pages, in tests/pages.
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

# Without a terminal for the question, a job on nodes needs `--yes`, which a reader does not type.
ANSWER = """
answer() {
    case " $* " in
        *" submit "* | *" scale "*) command "$@" --yes ;;
        *) command "$@" ;;
    esac
}
python() { answer python "$@"; }
trainium() { answer trainium "$@"; }
"""


def rehearsal(folder: RehearsalFolder, *words: str) -> list[str]:
    return [sys.executable, "-m", "rehearsal", *words, "--folder", str(folder.path)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RehearsalFolder]:
    """A running deployment on Batch and a cluster."""
    folder = RehearsalFolder(tmp_path_factory.mktemp("up"))
    process = subprocess.Popen(
        rehearsal(folder, "up", "--addresses", "127.0.44"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    assert wait_until(folder.environment.exists, limit_s=scaled(240))
    try:
        yield folder
    finally:
        process.terminate()
        process.wait(timeout=scaled(120))


def say(folder: RehearsalFolder, script: str) -> str:
    """Return the output of another terminal that has sourced the rehearsal's environment."""
    program = f'source "$0"; PATH={Path(sys.executable).parent}:"$PATH"; {script}'
    done = subprocess.run(
        ["bash", "-euc", program, folder.environment], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kubectl_reads_only_rehearsal_kubeconfig(up: RehearsalFolder) -> None:
    said = say(up, "python -m jobs kubeconfig >&2; kubectl get queues -o name; echo $KUBECONFIG")

    assert "queue.scheduling.volcano.sh/trainium" in said
    assert said.endswith(f"{up.kubeconfig}\n")


@pytest.mark.parametrize("block", blocks_to_run(), ids=lambda block: block.name)
def test_block_of_commands_runs(up: RehearsalFolder, block: Block) -> None:
    said = say(up, f"{ANSWER}\n{block.text}")

    assert [line for line in block.prints if line not in said] == []


def test_down_destroys_verifies_and_deletes_files(up: RehearsalFolder) -> None:
    say(up, "python -m jobs kubeconfig")
    done = subprocess.run(rehearsal(up, "down"), cwd=ROOT, capture_output=True, text=True)

    assert done.stdout.startswith("passed, 0 left over")
    assert not up.kubeconfig.exists() and not up.environment.exists()
