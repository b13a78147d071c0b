"""A deployment that stays up, in which the commands of README and docs are run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from rehearsal.deployment.state import ROOT, RehearsalFolder
from tests.pages.blocks import Block, blocks_to_run
from tests.rehearsal.rehearsals import kept_up, rehearsal, run_script

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


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RehearsalFolder]:
    """A running deployment on Batch and a cluster."""
    folder = RehearsalFolder(tmp_path_factory.mktemp("up"))
    with kept_up(folder, "--addresses", "127.0.44"):
        yield folder


def say(folder: RehearsalFolder, script: str) -> str:
    """Return the output of another terminal that has sourced the rehearsal's environment."""
    code, output = run_script(folder, script, options="-euc")
    assert code == 0, output
    return output


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
