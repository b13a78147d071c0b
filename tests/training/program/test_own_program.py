"""A user's own program on real launchers: it runs, and ends as any other job does."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.limits import scaled
from tests.training.conftest import Cluster
from tests.training.program.bundles import SAMPLE, bundle, leave, program, upload
from tests.training.program.snapshots.kept_nodes import wait_until
from trainium_catalogue.contract import PROGRAM_LOSSES, RUN_STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_the_sample_trains_on_two_nodes_and_continues_after_a_lost_one(cluster: Cluster) -> None:
    flags = program(cluster.folder, script=SAMPLE.read_text())
    words = (*flags, "--snapshot-every-s=1", "--peer-timeout-s=3", "--", "--epochs=40")
    cluster.start(*words, "--seconds=1", workload="program")
    status = cluster.folder / "build/runs/test-run/snapshots/00000001.json"
    wait_until(status.exists)

    os.kill(cluster.launcher(1), signal.SIGKILL)

    assert cluster.end(within_s=scaled(20)) == {0: 75, 1: 137}, cluster.all_logs()
    again = {"AWS_BATCH_JOB_ATTEMPT": "2"}
    cluster.start(*words, "--seconds=0", workload="program", extra=again)
    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
    assert "restored in" in cluster.log(0) and "restored in" in cluster.log(1)
    assert "program: reads what was restored: " in cluster.log(0)
    assert "continues after epoch " in cluster.log(0)
    assert "epoch 40: loss " in cluster.log(0)
    curves = sorted((cluster.folder / "build/runs/test-run" / PROGRAM_LOSSES).iterdir())
    assert [path.name[-15:] for path in curves] == ["attempt-1.jsonl", "attempt-2.jsonl"]
    points = [json.loads(line) for path in curves for line in path.read_text().splitlines()]
    assert {point["step"] for point in points} == {*range(1, 41)}


FILES = """
import os, pathlib
kept = pathlib.Path(os.environ["TRAINIUM_CHECKPOINT_DIR"], "where-" + os.environ["RANK"])
print("found", kept.exists() and kept.read_text() == f"{os.getcwd()} {kept}", flush=True)
kept.write_text(f"{os.getcwd()} {kept}")
folder = pathlib.Path(os.environ["TRAINIUM_OUTPUT_DIR"], "sub")
folder.mkdir()
(folder / "rank.txt").write_text(os.environ["RANK"])
"""


@dataclass
class Wrote:
    """A run whose program writes files wherever it may: its results, and the logs by attempt."""

    run: str
    results: Path
    logs: dict[str, list[str]]


@pytest.fixture(scope="module")
def wrote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wrote]:
    """Two attempts of it, on two nodes, of which each ends well."""
    job = Cluster(tmp_path_factory.mktemp("wrote"), num_nodes=2)
    run = f"paths-{job.mark}"  # of its own, because other tests run beside this one
    code = leave(job.folder, bundle({"train.py": FILES}), run=run)
    logs = {}
    for attempt in ("1", "2"):
        extra = {"TRAINIUM_RUN": run, "AWS_BATCH_JOB_ATTEMPT": attempt}
        job.start(f"--code={code}", "--script=train.py", workload="program", extra=extra)
        assert job.end(within_s=scaled(30)) == {0: 0, 1: 0}, job.all_logs()
        logs[attempt] = [job.log(node) for node in (0, 1)]
    yield Wrote(run, job.folder / "build/runs" / run / "results", logs)
    job.kill()


def test_an_absolute_path_in_a_checkpoint_holds_in_the_next_attempt(wrote: Wrote) -> None:
    """Litdata, for one, refuses to go on with data that are elsewhere than they were."""
    for attempt, found in (("1", False), ("2", True)):
        assert [f"found {found}" in log for log in wrote.logs[attempt]] == [True, True]
    assert list(Path(tempfile.gettempdir()).glob(f"trainium-{wrote.run}*")) == []


def test_the_output_folder_of_every_node_ends_in_the_results(wrote: Wrote) -> None:
    assert (wrote.results / "output/sub/rank.txt").read_text() == "0"
    assert (wrote.results / "output/node-1/sub/rank.txt").read_text() == "1"


def test_files_come_from_the_bucket_and_credentials_stay_outside(
    lone_node: Cluster, bucket: dict[str, str]
) -> None:
    script = "import os; print(sorted(name for name in os.environ if name.startswith('AWS')))"
    digest = upload(bucket, bundle({"sub/train.py": script}))

    lone_node.start(f"--code={digest}", "--script=sub/train.py", workload="program", extra=bucket)

    assert lone_node.end(within_s=scaled(30)) == {0: 0}, lone_node.all_logs()
    seen = "['AWS_BATCH_JOB_ATTEMPT', "
    line = next(line for line in lone_node.log(0).splitlines() if line.startswith(seen))
    assert "AWS_EC2_METADATA_DISABLED" in line
    assert "KEY" not in line


def test_files_that_will_be_lost_are_told_at_the_end(lone_node: Cluster) -> None:
    lines = (
        "import os",
        "os.makedirs('ckpts', exist_ok=True)",
        "open('ckpts/1.pt', 'w').write(9*'x')",
    )
    flags = program(lone_node.folder, script="\n".join(lines))

    lone_node.start(*flags, workload="program")

    assert lone_node.end(within_s=scaled(30)) == {0: 0}, lone_node.all_logs()
    words = "launch: program: wrote ckpts/ (1 file, 9 bytes), which is not kept; --checkpoint-dir"
    assert words in lone_node.log(0)
    told = "launch: program: nothing was kept: no file was written to TRAINIUM_CHECKPOINT_DIR"
    assert told in lone_node.log(0)
    status = json.loads((lone_node.folder / "build/runs/test-run" / RUN_STATUS).read_text())
    assert status["unkept"].startswith("wrote ckpts/ (1 file, 9 bytes), which is not kept")


def test_a_program_may_have_fewer_processes_than_a_node_has_cores(lone_node: Cluster) -> None:
    flags = program(lone_node.folder, script="import os; print('of', os.environ['WORLD_SIZE'])")

    lone_node.start(
        *flags,
        "--processes-per-node=1",
        workload="program",
        extra={"TRAINIUM_PROCESSES_PER_NODE": "2"},
    )

    assert lone_node.end(within_s=scaled(30)) == {0: 0}, lone_node.all_logs()
    assert "of 1\n" in lone_node.log(0) and "of 2\n" not in lone_node.log(0)


def test_a_node_refuses_processes_that_do_not_fit_its_cores(lone_node: Cluster) -> None:
    flags = program(lone_node.folder, script="print('runs')")
    trainium = {
        "TRAINIUM_DEVICE": "",
        "TRAINIUM_INSTANCE_TYPE": "trn1.32xlarge",
        "TRAINIUM_NEURON_RELEASE": "2.28.0",
    }

    lone_node.start(*flags, "--processes-per-node=5", workload="program", extra=trainium)

    assert lone_node.end(within_s=scaled(20)) == {0: 64}, lone_node.all_logs()
    assert "--processes-per-node 5: a node has 32 NeuronCores" in lone_node.log(0)
