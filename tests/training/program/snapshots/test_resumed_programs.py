"""A program resumes from its newest snapshot, on real launchers, by its own means."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.limits import scaled
from tests.training.conftest import Cluster
from tests.training.program.bundles import bundle, leave, program
from tests.training.program.snapshots.kept_nodes import wait_until
from training.program.snapshots.manifest import snapshot_numbers
from training.program.snapshots.process import open_snapshots
from training.storage import LocalObjects


def _numbers(folder: Path, run: str = "test-run") -> list[int]:
    return snapshot_numbers(open_snapshots(LocalObjects(folder / "build"), run))


BEGINS_AGAIN = """
import os, sys, time
from pathlib import Path

model = Path(os.environ["TRAINIUM_CHECKPOINT_DIR"], "model.pt")
for epoch in range(1, 4):
    print("epoch", epoch, flush=True)
    model.write_text(f"rank {os.environ['RANK']}, epoch {epoch}" * 100)
    time.sleep(float(sys.argv[1]))
print("best", model.read_text()[:20])
"""


def test_a_restarted_program_is_informed(lone_node: Cluster) -> None:
    """Like pytorch/examples' word_language_model: it reads the model only after its last epoch."""
    flags = (*program(lone_node.folder, script=BEGINS_AGAIN), "--snapshot-every-s=1")
    lone_node.start(*flags, "--", "1000", workload="program")
    wait_until(lambda: _numbers(lone_node.folder), 60)
    os.kill(lone_node.launcher(0), signal.SIGKILL)
    lone_node.end(within_s=scaled(30))

    extra = {"AWS_BATCH_JOB_ATTEMPT": "2"}
    lone_node.start(*flags, "--", "0.2", workload="program", extra=extra)
    assert lone_node.end(within_s=scaled(30)) == {0: 0}, lone_node.all_logs()
    assert "restored in" in lone_node.log(0)
    assert "read none of the restored files (1 file)" in lone_node.log(0)
    assert "reads a restored file" not in lone_node.log(0)


RESUMES = """
import os, signal, sys, time
from pathlib import Path

mine = Path(os.environ["TRAINIUM_CHECKPOINT_DIR"], "rank-" + os.environ["RANK"])
state = f"saved by {os.environ['RANK']} in {os.getcwd()} as {mine}"
output = Path(os.environ["TRAINIUM_OUTPUT_DIR"], "sub")
output.mkdir()
(output / "rank.txt").write_text(os.environ["RANK"])
print("told", sys.argv[1:], flush=True)
if mine.exists():
    print("found the same", mine.read_text() == state, flush=True)
    sys.exit()

def save(*_):
    mine.write_text(state)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
while True:
    time.sleep(0.1)
"""


@dataclass
class Resumed:
    """A two-node run that was stopped, saved, and succeeded in its second attempt."""

    run: str
    folder: Path
    first_code: int
    first_log: str
    snapshots_of_the_first: list[int]
    logs: list[str]
    """Of the second attempt."""


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resumed]:
    """Run both attempts once for all tests of them."""
    job = Cluster(tmp_path_factory.mktemp("resumed"), num_nodes=2)
    run = f"paths-{job.mark}"  # its own, because other tests run at the same time
    code = leave(job.folder, bundle({"train.py": RESUMES}), run=run)
    words = (
        *(f"--code={code}", "--script=train.py", "--snapshot-every-s=3600"),
        *("--resume-arguments=--resume auto", "--", "7"),
    )
    job.start(*words, workload="program", extra={"TRAINIUM_RUN": run})
    for node in (0, 1):
        job.wait_for("waiting", node=node)
    for node in (0, 1):
        os.kill(job.launcher(node), signal.SIGTERM)
    first_code, first_log = job.end(within_s=scaled(30))[0], job.log(0)
    numbers = _numbers(job.folder, run)
    again = {"TRAINIUM_RUN": run, "AWS_BATCH_JOB_ATTEMPT": "2"}
    job.start(*words, workload="program", extra=again)
    assert job.end(within_s=scaled(30)) == {0: 0, 1: 0}, job.all_logs()
    logs = [job.log(node) for node in (0, 1)]
    yield Resumed(run, job.folder, first_code, first_log, numbers, logs)
    job.kill()


def test_a_program_that_receives_sigterm_saves_once(resumed: Resumed) -> None:
    assert resumed.first_code == 143
    assert resumed.snapshots_of_the_first == [1]


def test_only_the_second_attempt_gets_the_resume_arguments(resumed: Resumed) -> None:
    assert "told ['7']\n" in resumed.first_log
    assert "told ['7', '--resume', 'auto']\n" in resumed.logs[0]


def test_every_rank_finds_what_it_saved_at_the_same_absolute_path(resumed: Resumed) -> None:
    """Litdata, for one, refuses to resume with moved data."""
    assert ["found the same True" in log for log in resumed.logs] == [True, True]
    assert list(Path(tempfile.gettempdir()).glob(f"trainium-{resumed.run}*")) == []


def test_every_nodes_output_folder_is_copied_to_the_results(resumed: Resumed) -> None:
    results = resumed.folder / "build/runs" / resumed.run / "results"
    assert (results / "output/sub/rank.txt").read_text() == "0"
    assert (results / "output/node-1/sub/rank.txt").read_text() == "1"
