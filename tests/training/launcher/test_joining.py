"""What is known of children that have not joined."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.nodes import CPU_NODE
from training.launcher.joining import Lookout, StartedSign, likely_causes
from training.storage import LocalObjects, ObjectInfo, StorageRefused, StorageUnavailable

MAIN = replace(CPU_NODE, num_nodes=3, node_index=0, attempt=2, bucket="bucket")
CHILD = replace(MAIN, node_index=2)


class Failing(LocalObjects):
    """Storage that does not list."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        raise self._error


def test_a_sign_of_a_child_is_evidence(tmp_path: Path) -> None:
    folder = LocalObjects(tmp_path)
    lookout = Lookout(MAIN)

    assert StartedSign(CHILD)._act(folder)
    assert lookout._act(folder)

    assert lookout.evidence == "node 2 has started, as it says in the bucket"


def test_a_sign_of_an_earlier_attempt_is_none(tmp_path: Path) -> None:
    folder = LocalObjects(tmp_path)
    lookout = Lookout(MAIN)

    StartedSign(replace(CHILD, attempt=1))._act(folder)

    assert not lookout._act(folder)
    assert lookout.evidence is None


def test_a_bucket_out_of_reach_is_evidence_until_it_answers(tmp_path: Path) -> None:
    lookout = Lookout(MAIN)

    assert not lookout._act(Failing(StorageUnavailable("no answer")))
    assert lookout.evidence == "this node cannot reach the bucket either"

    assert not lookout._act(LocalObjects(tmp_path))
    assert lookout.evidence is None


def test_a_bucket_that_refuses_is_within_reach() -> None:
    lookout = Lookout(MAIN)

    assert not lookout._act(Failing(StorageRefused("no permission")))
    assert lookout.evidence is None


@pytest.mark.parametrize(
    ("on_cluster", "first"),
    [(False, "the VPC's default security group"), (True, "the nodes' security groups")],
)
def test_the_first_cause_is_the_group_that_the_orchestrator_gives_tasks(
    on_cluster: bool, first: str
) -> None:
    causes = likely_causes(replace(MAIN, on_cluster=on_cluster))

    assert re.match(f"likely causes, in this order: {first}", causes)
    assert causes.index("group") < causes.index("network ACL") < causes.index("zones")
