"""What the readers of a node's environment share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class ContractError(ValueError):
    """The node was configured in a way that cannot run; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node stands in its job, whoever started it."""

    job_id: str = "local"
    attempt: int = 1
    node_index: int = 0
    num_nodes: int = 1
    main_index: int = 0
    main_address: str | None = None
    """None on the main node itself."""
    array_index: int = 0
    array_size: int = 1
    time_limit_s: int | None = None
    """Of the attempt; None where the orchestrator sees to it."""


def all_or_none(env: Mapping[str, str], names: Sequence[str], setter: str) -> bool:
    """Whether all of ``names`` are set; refuse when only some are, as ``setter`` sets all."""
    given = [name for name in names if name in env]
    missing = [name for name in names if name not in env]
    if given and missing:
        raise ContractError(
            f"{', '.join(missing)} is not set although {given[0]} is; {setter} sets all of them"
        )
    return bool(given)


def inside(name: str, index: int, num_nodes: int) -> None:
    """Refuse an index that no node of the job has."""
    if index >= num_nodes:
        raise ContractError(
            f"{name}={index} is outside the job's {num_nodes} nodes; indices start at 0"
        )


def whole(env: Mapping[str, str], name: str, *, default: int | None = None, least: int = 0) -> int:
    """Read a whole number of at least ``least``."""
    text = env.get(name)
    if text is None:
        assert default is not None
        return default
    # Not int(): it would take "1_0", " 1" and other scripts' digits.
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ContractError(f"{name}={text} is not a whole number of at least {least}")
    return int(text)
