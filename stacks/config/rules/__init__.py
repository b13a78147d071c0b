"""Rules across keys: a generator of refusals for each subject."""

from __future__ import annotations

from itertools import chain

from stacks.config.refusal import PREFIX, ConfigError
from stacks.config.rules import costs, eks, hardware, network, software, storage
from stacks.config.values import ConfigValues

SUBJECTS = (hardware, eks, network, software, storage, costs)
"""In order: only the first refusal is raised, so a rule may rely on those before it."""


def check(config: ConfigValues) -> None:
    """Raise the first refusal, if any."""
    for key, reason, remedy in chain.from_iterable(each.refusals(config) for each in SUBJECTS):
        raise ConfigError(PREFIX + key, getattr(config, key), reason, remedy)
