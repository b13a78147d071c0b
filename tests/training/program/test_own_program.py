"""A user's own program on real launchers: it runs, and ends like any other job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.limits import scaled
from tests.support.pretend_neuron import ROOT, pretend_neuron
from tests.training.conftest import Cluster
from tests.training.program.bundles import SAMPLE, bundle, program, upload
from tests.training.program.snapshots.kept_nodes import wait_until
from trainium_catalogue.contract import PROGRAM_LOSSES, RUN_STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator


# snapshots/test_resumed_programs resumes smaller programs, and test_curve covers losses.
@pytest.mark.full
def test_the_sample_trains_on_two_nodes_and_resumes_after_a_lost_one(cluster: Cluster) -> None:
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
    assert "program: reads a restored file: " in cluster.log(0)
    assert "continues after epoch " in cluster.log(0)
    assert "epoch 40: loss " in cluster.log(0)
    curves = sorted((cluster.folder / "build/runs/test-run" / PROGRAM_LOSSES).iterdir())
    assert [path.name[-15:] for path in curves] == ["attempt-1.jsonl", "attempt-2.jsonl"]
    points = [json.loads(line) for path in curves for line in path.read_text().splitlines()]
    assert {point["step"] for point in points} == {*range(1, 41)}


def test_the_example_trains_on_torchneurons_device(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(ROOT / "examples/own-program/train.py", "--epochs=1", "--seconds=0"),
        ],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **pretend_neuron(tmp_path, "report"),
        },
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[0] == "trains on neuron"
    # Two gradients, on each of two ranks, whose reports may share a line.
    assert ended.stderr.count("2 x c10d::allreduce_") == 2


def test_files_come_from_the_bucket_and_credentials_are_not_passed_on(
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


FORGETS = """
import os
print("of", os.environ["WORLD_SIZE"])
os.makedirs("ckpts", exist_ok=True)
open("ckpts/1.pt", "w").write(9 * "x")
"""


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A two-core node whose program has one process, and saves to an unpersisted folder."""
    job = Cluster(tmp_path_factory.mktemp("forgetful"), num_nodes=1)
    flags = program(job.folder, script=FORGETS)
    cores = {"TRAINIUM_PROCESSES_PER_NODE": "2"}
    job.start(*flags, "--processes-per-node=1", workload="program", extra=cores)
    assert job.end(within_s=scaled(30)) == {0: 0}, job.all_logs()
    yield job
    job.kill()


def test_unpersisted_files_are_reported_at_the_end(forgetful: Cluster) -> None:
    words = "launch: program: wrote ckpts/ (1 file, 9 bytes), which is not kept; --checkpoint-dir"
    assert words in forgetful.log(0)
    told = "launch: program: nothing was saved: no file was written to TRAINIUM_CHECKPOINT_DIR"
    assert told in forgetful.log(0)
    status = json.loads((forgetful.folder / "build/runs/test-run" / RUN_STATUS).read_text())
    assert status["unpersisted"].startswith("wrote ckpts/ (1 file, 9 bytes), which is not kept")


def test_a_program_may_have_fewer_processes_than_cores(forgetful: Cluster) -> None:
    assert "of 1\n" in forgetful.log(0) and "of 2\n" not in forgetful.log(0)


def test_a_node_refuses_more_processes_than_cores(lone_node: Cluster) -> None:
    flags = program(lone_node.folder, script="print('runs')")
    trainium = {
        "TRAINIUM_DEVICE": "",
        "TRAINIUM_INSTANCE_TYPE": "trn1.32xlarge",
        "TRAINIUM_NEURON_RELEASE": "2.28.0",
    }

    lone_node.start(*flags, "--processes-per-node=5", workload="program", extra=trainium)

    assert lone_node.end(within_s=scaled(20)) == {0: 64}, lone_node.all_logs()
    assert "--processes-per-node 5: a node has 32 NeuronCores" in lone_node.log(0)
