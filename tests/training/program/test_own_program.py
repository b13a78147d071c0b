"""A user's own program on real launchers: it runs, and ends as any other job does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.limits import scaled
from tests.training.program.bundles import SAMPLE, bundle, program, upload
from tests.training.s3_server import REGION, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.training.conftest import Cluster


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """Environment of nodes with a bucket."""
    with s3_server("programs") as url:
        yield {
            "TRAINIUM_BUCKET": "programs",
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }


def test_the_sample_trains_on_two_nodes(cluster: Cluster) -> None:
    flags = program(cluster.folder, script=SAMPLE.read_text())

    cluster.start(*flags, "--", "--epochs", "3", workload="program")

    assert cluster.end(within_s=scaled(30)) == {0: 0, 1: 0}, cluster.all_logs()
    assert "epoch 3: loss " in cluster.log(0)


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
