"""A node's environment: Batch's variables and the documented extras."""

import pytest

from trainium_emulators.nodes.environment import (
    NodePlace,
    batch_environment,
    rehearsal_extras,
)

MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


def place(index: int) -> NodePlace:
    """Node ``index`` of four."""
    return NodePlace(
        job_id="job", attempt=2, index=index, num_nodes=4, main_index=0, queue="q",
        compute_environment="ce",
    )  # fmt: skip


@pytest.mark.parametrize(("index", "expected"), [(0, False), (1, True), (3, True)])
def test_only_children_have_main_node_address(index: int, expected: bool) -> None:
    environment = batch_environment(place(index), main_address="127.0.0.2")

    assert (MAIN_ADDRESS in environment) is expected


def test_node_job_id_contains_index() -> None:
    environment = batch_environment(place(3), main_address="127.0.0.2")

    assert environment["AWS_BATCH_JOB_ID"] == "job#3"
    assert environment["AWS_BATCH_JOB_ATTEMPT"] == "2"


def test_extras_do_not_override_batch_variables() -> None:
    extras = rehearsal_extras(
        endpoint="http://localhost:1", processes_per_node=1, address="a", device={}
    )

    assert not set(extras) & set(batch_environment(place(1), main_address="a"))
