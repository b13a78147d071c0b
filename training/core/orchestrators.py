"""Read a node's position in its job, set by AWS Batch or by a Volcano job from TorchX.

TorchX creates one single-pod task per node; its environment has the node's index and the name of
the variable for the main node's host (torchx, kubernetes_scheduler.py, app_to_resource), which
Volcano's ``svc`` plugin sets (volcano, plugins/svc/svc.go).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainium_catalogue.contract import (
    ENV_ATTEMPT,
    ENV_JOB_ID,
    ENV_MAIN_HOST_FROM,
    ENV_NODE_INDEX,
    ENV_NUM_NODES,
    ENV_TIME_LIMIT,
)

# docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html
BATCH_JOB_ID = "AWS_BATCH_JOB_ID"
BATCH_ATTEMPT = "AWS_BATCH_JOB_ATTEMPT"
BATCH_NODE_INDEX = "AWS_BATCH_JOB_NODE_INDEX"
BATCH_NUM_NODES = "AWS_BATCH_JOB_NUM_NODES"
BATCH_MAIN_INDEX = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
BATCH_MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
# docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
BATCH_ARRAY_INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"
BATCH_ARRAY_SIZE = "AWS_BATCH_JOB_ARRAY_SIZE"

_BATCH_MULTI_NODE = (BATCH_NODE_INDEX, BATCH_NUM_NODES, BATCH_MAIN_INDEX)
_VOLCANO = (ENV_JOB_ID, ENV_ATTEMPT, ENV_NODE_INDEX, ENV_NUM_NODES, ENV_MAIN_HOST_FROM)
# In TorchX the first replica is always the main one (macros.rank0_env).
_VOLCANO_MAIN_INDEX = 0


class ContractError(ValueError):
    """The node's environment is invalid; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePosition:
    """A node's position in its job, under any orchestrator."""

    job_id: str = "local"
    attempt: int = 1
    """1-based."""
    node_index: int = 0
    num_nodes: int = 1
    main_index: int = 0
    main_address: str | None = None
    """None on the main node itself."""
    array_index: int = 0
    """Index of this child in an array job; 0 if it is not part of one."""
    array_size: int = 1
    time_limit_s: int | None = None
    """Time limit enforced by the launcher; None if the orchestrator enforces it."""


def read_position(env: Mapping[str, str], find_host: Callable[[str], str]) -> NodePosition:
    """Read the position from the orchestrator's variables; without them the job has one node.

    ``find_host`` resolves host names; it is called only on child nodes of a Volcano job.
    """
    if not is_volcano(env):
        return _read_batch(env)
    if BATCH_JOB_ID in env:
        raise ContractError(
            f"{BATCH_JOB_ID} and {ENV_JOB_ID} are both set, "
            "but a node belongs to only one job; unset the variables of the other orchestrator"
        )
    return _read_volcano(env, find_host)


def is_volcano(env: Mapping[str, str]) -> bool:
    """Return whether a Volcano job set the environment; refuse one that is incomplete."""
    return _all_or_none(env, _VOLCANO, "a Volcano job of this deployment")


def _read_batch(env: Mapping[str, str]) -> NodePosition:
    node_index, num_nodes, main_index = 0, 1, 0
    if _all_or_none(env, _BATCH_MULTI_NODE, "Batch, on the nodes of a multi-node job,"):
        num_nodes = whole(env, BATCH_NUM_NODES, least=1)
        node_index = _index(env, BATCH_NODE_INDEX, num_nodes)
        main_index = _index(env, BATCH_MAIN_INDEX, num_nodes)
    main_address = None
    if node_index != main_index:
        main_address = env.get(BATCH_MAIN_ADDRESS)
        if main_address is None:
            raise ContractError(
                f"{BATCH_MAIN_ADDRESS} is not set on child node {node_index}; "
                "Batch sets it on every node but the main one"
            )
    array_size = whole(env, BATCH_ARRAY_SIZE, default=1, least=1)
    array_index = whole(env, BATCH_ARRAY_INDEX, default=0)
    if array_index >= array_size:
        raise ContractError(
            f"{BATCH_ARRAY_INDEX}={array_index} is outside an array job of {array_size} children"
        )
    return NodePosition(
        # Strip the "#N" or ":N" that Batch appends for nodes and array children.
        job_id=re.split("[#:]", env.get(BATCH_JOB_ID, "local"))[0],
        attempt=whole(env, BATCH_ATTEMPT, default=1, least=1),
        node_index=node_index,
        num_nodes=num_nodes,
        main_index=main_index,
        main_address=main_address,
        array_index=array_index,
        array_size=array_size,
    )


def _read_volcano(env: Mapping[str, str], find_host: Callable[[str], str]) -> NodePosition:
    num_nodes = whole(env, ENV_NUM_NODES, least=1)
    node_index = _index(env, ENV_NODE_INDEX, num_nodes)
    main_address = None
    # On the main node itself TorchX sets the host to ``localhost``, which peers cannot use.
    if node_index != _VOLCANO_MAIN_INDEX:
        variable = env[ENV_MAIN_HOST_FROM]
        host = env.get(variable, "").partition(",")[0]
        if not host:
            raise ContractError(
                f"{variable}, which {ENV_MAIN_HOST_FROM} names, is not set on child node "
                f"{node_index}; Volcano sets it when the job has the svc plugin"
            )
        main_address = find_host(host)
    return NodePosition(
        job_id=env[ENV_JOB_ID],
        attempt=whole(env, ENV_ATTEMPT) + 1,
        node_index=node_index,
        num_nodes=num_nodes,
        main_index=_VOLCANO_MAIN_INDEX,
        main_address=main_address,
        time_limit_s=whole(env, ENV_TIME_LIMIT, least=1) if ENV_TIME_LIMIT in env else None,
    )


def _all_or_none(env: Mapping[str, str], names: Sequence[str], setter: str) -> bool:
    """Return whether all of ``names`` are set; refuse a mix, since ``setter`` sets all."""
    given = [name for name in names if name in env]
    missing = [name for name in names if name not in env]
    if given and missing:
        raise ContractError(
            f"{given[0]} is set, but not {', '.join(missing)}; {setter} sets all of them"
        )
    return bool(given)


def _index(env: Mapping[str, str], name: str, num_nodes: int) -> int:
    """Read a node's index; refuse one outside the job."""
    index = whole(env, name)
    if index >= num_nodes:
        raise ContractError(
            f"{name}={index} is outside the job's {num_nodes} nodes; indices start at 0"
        )
    return index


def whole(env: Mapping[str, str], name: str, *, default: int | None = None, least: int = 0) -> int:
    """Read an integer of at least ``least``."""
    text = env.get(name)
    if text is None:
        assert default is not None
        return default
    # int() also accepts "1_0", " 1" and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ContractError(f"{name}={text} is not a whole number of at least {least}")
    return int(text)
