"""The time limit of an attempt where the launcher sees to it, with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.conftest import Cluster
from tests.training.s3_server import REGION, s3_client, s3_server
from training.core.contract import read_contract
from training.core.orchestrators import ContractError

LIMIT_S = 6
ENDLESS = ("--max-bytes=1024", "--iterations=10000000", "--seconds-per-size=600")


class Pods(Cluster):
    """Nodes that Volcano and TorchX have started."""

    def environment(self, index: int) -> dict[str, str]:
        env = super().environment(index)
        own = {name: value for name, value in env.items() if not name.startswith("AWS_BATCH")}
        main = "VC_NODE_0_HOSTS" if index else "TORCHX_RANK0_HOST"
        return {
            **own,
            "TRAINIUM_JOB_ID": self.mark,
            "TRAINIUM_ATTEMPT": "0",
            "TRAINIUM_NODE_INDEX": str(index),
            "TRAINIUM_NUM_NODES": str(self.num_nodes),
            "TRAINIUM_MAIN_HOST_FROM": main,
            "TRAINIUM_TIME_LIMIT_S": str(LIMIT_S),
            main: self.address(0),
        }


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    cluster = Pods(tmp_path, num_nodes=2)
    yield cluster
    cluster.kill()


def test_an_attempt_that_has_used_its_time_ends_for_good_and_leaves_word(pods: Pods) -> None:
    with s3_server("time-limit") as url:
        aws = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        pods.start(*ENDLESS, extra={**aws, "AWS_REGION": REGION, "TRAINIUM_BUCKET": "time-limit"})
        codes = pods.end(within_s=LIMIT_S + 30)
        left = s3_client(url).list_objects_v2(Bucket="time-limit", Prefix="runs/")["Contents"]

    assert codes == {0: 124, 1: 124}, pods.all_logs()
    assert [item["Key"] for item in left if "/attempts/" in item["Key"]] == [
        f"runs/test-run/results/attempts/{pods.mark}/1-node-{index}.json" for index in (0, 1)
    ]
    assert f"node 0: the attempt has run for {LIMIT_S} s (--time-limit)" in pods.log(1)


def test_a_limit_that_is_none_is_refused(pods: Pods) -> None:
    env = {**pods.environment(0), "TRAINIUM_TIME_LIMIT_S": "0"}

    with pytest.raises(ContractError, match="TRAINIUM_TIME_LIMIT_S=0 is not a whole number"):
        read_contract(env, str)
