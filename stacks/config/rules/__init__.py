"""Rules across keys: a generator for each subject, which yields what it refuses."""

from __future__ import annotations

from itertools import chain

from stacks.config.refusal import PREFIX, ConfigError
from stacks.config.rules import eks, hardware, network, software, storage
from stacks.config.values import ConfigValues

SUBJECTS = (hardware, eks, network, software, storage)
"""In order: a rule relies on those before it, for only the first refusal is asked for."""


def check(config: ConfigValues) -> None:
    """Raise the first refusal, if any."""
    for key, reason, remedy in chain.from_iterable(each.refusals(config) for each in SUBJECTS):
        raise ConfigError(PREFIX + key, getattr(config, key), reason, remedy)
