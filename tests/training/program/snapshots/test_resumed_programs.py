"""A program goes on from its newest snapshot, on real launchers, by its own means."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.limits import scaled
from tests.training.program.bundles import program
from tests.training.program.snapshots.kept_nodes import wait_until
from training.program.snapshots.manifest import snapshot_numbers
from training.program.snapshots.process import open_snapshots
from training.storage import LocalObjects

if TYPE_CHECKING:
    from tests.training.conftest import Cluster


def _numbers(folder: Path) -> list[int]:
    return snapshot_numbers(open_snapshots(LocalObjects(folder / "build"), "test-run"))


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


def test_a_program_that_begins_again_is_told_so(cluster: Cluster) -> None:
    """As pytorch/examples' word_language_model does: it reads the model only after its last epoch,
    when it has written its own."""
    flags = (*program(cluster.folder, script=BEGINS_AGAIN), "--snapshot-every-s=1")
    cluster.start(*flags, "--", "1000", workload="program")
    wait_until(lambda: _numbers(cluster.folder), 60)
    for index in range(2):
        os.kill(cluster.launcher(index), signal.SIGKILL)
    cluster.end(within_s=scaled(30))

    extra = {"AWS_BATCH_JOB_ATTEMPT": "2"}
    cluster.start(*flags, "--", "0.2", workload="program", extra=extra)
    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
    assert "restored in" in cluster.log(0)
    assert "has read none of the 1 files that were restored" in cluster.log(0)
    assert "reads what was restored" not in cluster.all_logs()


def test_a_program_that_is_told_to_stop_saves_and_goes_on_from_there(cluster: Cluster) -> None:
    script = """
import os, signal, sys, time
from pathlib import Path

folder = Path(os.environ["TRAINIUM_CHECKPOINT_DIR"])
mine = folder / f"rank-{os.environ['RANK']}"
if mine.exists():
    print("found", mine.read_text(), flush=True)
    sys.exit()

def save(*_):
    mine.write_text(f"saved by {os.environ['RANK']}")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
while True:
    time.sleep(0.1)
"""
    flags = program(cluster.folder, script=script)
    cluster.start(*flags, "--snapshot-every-s=3600", workload="program")
    cluster.wait_for("waiting", node=0)
    cluster.wait_for("waiting", node=1)
    for index in range(2):
        os.kill(cluster.launcher(index), signal.SIGTERM)
    assert cluster.end(within_s=scaled(30))[0] == 143, cluster.all_logs()
    assert _numbers(cluster.folder) == [1], cluster.all_logs()

    cluster.start(*flags, workload="program", extra={"AWS_BATCH_JOB_ATTEMPT": "2"})
    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
    for index in range(2):
        assert f"found saved by {index}" in cluster.log(index)
