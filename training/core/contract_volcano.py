"""Where a Volcano job that TorchX made says that a node stands in it.

TorchX makes one task of one pod for each node and writes the node's index, and the name of the
variable with the main node's host, into its environment (torchx, kubernetes_scheduler.py,
app_to_resource); Volcano's plugin ``svc`` sets that variable (volcano, plugins/svc/svc.go).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from training.core.contract_values import ContractError, Place, all_or_none, inside, whole
from trainium_catalogue.contract import (
    ENV_ATTEMPT,
    ENV_JOB_ID,
    ENV_MAIN_HOST_FROM,
    ENV_NODE_INDEX,
    ENV_NUM_NODES,
    ENV_TIME_LIMIT,
)

_NAMES = (ENV_JOB_ID, ENV_ATTEMPT, ENV_NODE_INDEX, ENV_NUM_NODES, ENV_MAIN_HOST_FROM)
# TorchX appoints the first replica (macros.rank0_env).
_MAIN_INDEX = 0


def is_volcano(env: Mapping[str, str]) -> bool:
    """Whether a Volcano job set the environment; refuse when it set only a part of it."""
    return all_or_none(env, _NAMES, "a Volcano job of this deployment")


def read_place(env: Mapping[str, str], find_host: Callable[[str], str]) -> Place:
    """Read it; ``find_host`` returns the address of a host name, and is called on children only.

    On the main node itself TorchX names the host ``localhost``, which is of no use to anybody.
    """
    num_nodes = whole(env, ENV_NUM_NODES, least=1)
    node_index = whole(env, ENV_NODE_INDEX)
    inside(ENV_NODE_INDEX, node_index, num_nodes)
    main_address = None
    if node_index != _MAIN_INDEX:
        main_address = find_host(_main_host(env, node_index))
    return Place(
        job_id=env[ENV_JOB_ID],
        attempt=whole(env, ENV_ATTEMPT) + 1,
        node_index=node_index,
        num_nodes=num_nodes,
        main_index=_MAIN_INDEX,
        main_address=main_address,
        time_limit_s=whole(env, ENV_TIME_LIMIT, least=1) if ENV_TIME_LIMIT in env else None,
    )


def _main_host(env: Mapping[str, str], node_index: int) -> str:
    """The main node's host name: the first that the variable lists."""
    variable = env[ENV_MAIN_HOST_FROM]
    host = env.get(variable, "").partition(",")[0]
    if not host:
        raise ContractError(
            f"{variable}, which {ENV_MAIN_HOST_FROM} names, is not set on child node "
            f"{node_index}; Volcano sets it when the job has the plugin svc"
        )
    return host
