"""A user's own program on real launchers: it runs, and ends as any other job does."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.limits import scaled
from tests.training.program.bundles import SAMPLE, bundle, leave, program, upload
from tests.training.s3_server import bucket_environment
from trainium_catalogue.contract import PROGRAM_LOSSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.training.conftest import Cluster


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + scaled(30)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """Environment of nodes with a bucket."""
    with bucket_environment("programs") as environment:
        yield environment


def test_the_sample_trains_on_two_nodes(cluster: Cluster) -> None:
    flags = program(cluster.folder, script=SAMPLE.read_text())

    cluster.start(*flags, "--", "--epochs", "3", workload="program")

    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
    assert "epoch 3: loss " in cluster.log(0)


def test_the_sample_continues_after_a_lost_node(cluster: Cluster) -> None:
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
    assert "continues after epoch " in cluster.log(0)
    assert "epoch 40: loss " in cluster.log(0)
    curves = sorted((cluster.folder / "build/runs/test-run" / PROGRAM_LOSSES).iterdir())
    assert [path.name[-15:] for path in curves] == ["attempt-1.jsonl", "attempt-2.jsonl"]
    points = [json.loads(line) for path in curves for line in path.read_text().splitlines()]
    assert {point["step"] for point in points} == {*range(1, 41)}


def test_an_absolute_path_in_a_checkpoint_holds_in_the_next_attempt(cluster: Cluster) -> None:
    """Litdata, for one, refuses to go on with data that are elsewhere than they were."""
    script = """
import os, pathlib
kept = pathlib.Path(os.environ["TRAINIUM_CHECKPOINT_DIR"], "where-" + os.environ["RANK"])
print("found", kept.exists() and kept.read_text() == f"{os.getcwd()} {kept}", flush=True)
kept.write_text(f"{os.getcwd()} {kept}")
"""
    run = f"paths-{cluster.mark}"  # of its own, because other tests run beside this one
    code = leave(cluster.folder, bundle({"train.py": script}), run=run)
    flags = (f"--code={code}", "--script=train.py")
    for attempt, found in (("1", False), ("2", True)):
        extra = {"TRAINIUM_RUN": run, "AWS_BATCH_JOB_ATTEMPT": attempt}
        cluster.start(*flags, workload="program", extra=extra)
        assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
        assert [f"found {found}" in cluster.log(node) for node in (0, 1)] == [True, True]
    assert list(Path(tempfile.gettempdir()).glob(f"trainium-{run}*")) == []


def test_the_output_folder_of_every_node_ends_in_the_results(cluster: Cluster) -> None:
    script = """
import os, pathlib
folder = pathlib.Path(os.environ["TRAINIUM_OUTPUT_DIR"], "sub")
folder.mkdir()
(folder / "rank.txt").write_text(os.environ["RANK"])
"""
    cluster.start(*program(cluster.folder, script=script), workload="program")

    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
    output = cluster.folder / "build/runs/test-run/results/output"
    assert (output / "sub/rank.txt").read_text() == "0"
    assert (output / "node-1/sub/rank.txt").read_text() == "1"


def test_files_come_from_the_bucket_and_credentials_stay_outside(
    cluster: Cluster, bucket: dict[str, str]
) -> None:
    script = "import os; print(sorted(name for name in os.environ if name.startswith('AWS')))"
    digest = upload(bucket, bundle({"sub/train.py": script}))

    cluster.start(f"--code={digest}", "--script=sub/train.py", workload="program", extra=bucket)

    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
    seen = "['AWS_BATCH_JOB_ATTEMPT', "
    line = next(line for line in cluster.log(0).splitlines() if line.startswith(seen))
    assert "AWS_EC2_METADATA_DISABLED" in line
    assert "KEY" not in line


def test_a_missing_bundle_ends_all_nodes_with_one_message(cluster: Cluster) -> None:
    cluster.start(f"--code={'0' * 64}", "--script=train.py", workload="program")

    assert cluster.end(within_s=scaled(20)) == {0: 64, 1: 64}, cluster.all_logs()
    for node in (0, 1):
        assert "the program's files are missing: there is no " in cluster.log(node).splitlines()[-1]
    assert "Traceback" not in cluster.all_logs()


def test_files_that_will_be_lost_are_told_at_the_end(cluster: Cluster) -> None:
    lines = (
        "import os",
        "os.makedirs('ckpts', exist_ok=True)",
        "open('ckpts/1.pt', 'w').write(9*'x')",
    )
    flags = program(cluster.folder, script="\n".join(lines))

    cluster.start(*flags, workload="program")

    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
    words = "launch: program: wrote ckpts/ (1 file, 9 bytes), which is not kept; --checkpoint-dir"
    assert words in cluster.log(0)
