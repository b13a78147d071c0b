"""A node's environment: Batch's variables for the main node and for children."""

import pytest

from trainium_emulators.nodes.environment import NodePlace, batch_environment

MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


@pytest.mark.parametrize(("index", "expected"), [(0, False), (3, True)])
def test_only_children_have_main_node_address(index: int, expected: bool) -> None:
    place = NodePlace(
        job_id="job", attempt=2, index=index, num_nodes=4, main_index=0, queue="q",
        compute_environment="ce",
    )  # fmt: skip

    environment = batch_environment(place, main_address="127.0.0.2")

    assert (MAIN_ADDRESS in environment) is expected
    assert environment["AWS_BATCH_JOB_ID"] == f"job#{index}"
