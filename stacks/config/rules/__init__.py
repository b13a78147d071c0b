"""Checks across keys: a table in which each entry refuses one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stacks.config.rules import eks, hardware, network, software, storage
from stacks.config.refusal import ConfigError
from stacks.config.values import ConfigValues

Check: TypeAlias = Callable[[ConfigValues], ConfigError | None]

CHECKS: tuple[Check, ...] = (
    *hardware.CHECKS,
    *eks.CHECKS,
    *network.CHECKS,
    *software.CHECKS,
    *storage.CHECKS,
)
"""All checks in order: a later one relies on the earlier ones."""


def check(config: ConfigValues) -> None:
    """Raise the first refusal of the table."""
    for each in CHECKS:
        if refusal := each(config):
            raise refusal
