"""Where AWS Batch says that a node stands in its job."""

from __future__ import annotations

import re
from collections.abc import Mapping

from training.core.contract_values import ContractError, Place, all_or_none, inside, whole

# docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html
ENV_JOB_ID = "AWS_BATCH_JOB_ID"
ENV_ATTEMPT = "AWS_BATCH_JOB_ATTEMPT"
ENV_NODE_INDEX = "AWS_BATCH_JOB_NODE_INDEX"
ENV_NUM_NODES = "AWS_BATCH_JOB_NUM_NODES"
ENV_MAIN_INDEX = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
ENV_MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
# docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
ENV_ARRAY_INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"
ENV_ARRAY_SIZE = "AWS_BATCH_JOB_ARRAY_SIZE"

_MULTI_NODE = (ENV_NODE_INDEX, ENV_NUM_NODES, ENV_MAIN_INDEX)


def read_place(env: Mapping[str, str]) -> Place:
    """Read what Batch sets; where it says nothing the machine is a job of one node."""
    node_index, num_nodes, main_index = _position(env)
    main_address = None
    if node_index != main_index:
        main_address = env.get(ENV_MAIN_ADDRESS)
        if main_address is None:
            raise ContractError(
                f"{ENV_MAIN_ADDRESS} is not set on child node {node_index}; "
                "Batch sets it on every node but the main one"
            )
    array_index, array_size = _share(env)
    return Place(
        # Without the "#N" or ":N" that Batch appends on nodes and children of an array.
        job_id=re.split("[#:]", env.get(ENV_JOB_ID, "local"))[0],
        attempt=whole(env, ENV_ATTEMPT, default=1, least=1),
        node_index=node_index,
        num_nodes=num_nodes,
        main_index=main_index,
        main_address=main_address,
        array_index=array_index,
        array_size=array_size,
    )


def _position(env: Mapping[str, str]) -> tuple[int, int, int]:
    """Node index, number of nodes, main index."""
    if not all_or_none(env, _MULTI_NODE, "Batch, on the nodes of a multi-node job,"):
        return 0, 1, 0
    num_nodes = whole(env, ENV_NUM_NODES, least=1)
    node_index = whole(env, ENV_NODE_INDEX)
    main_index = whole(env, ENV_MAIN_INDEX)
    inside(ENV_NODE_INDEX, node_index, num_nodes)
    inside(ENV_MAIN_INDEX, main_index, num_nodes)
    return node_index, num_nodes, main_index


def _share(env: Mapping[str, str]) -> tuple[int, int]:
    """Which child of an array job this is, of how many."""
    size = whole(env, ENV_ARRAY_SIZE, default=1, least=1)
    index = whole(env, ENV_ARRAY_INDEX, default=0)
    if index >= size:
        raise ContractError(f"{ENV_ARRAY_INDEX}={index} is outside an array job of {size}")
    return index, size
