"""The configuration of one deployment: read from the context, checked, with its warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from stacks.config.keys import all_given, keys_of, read_all
from stacks.config.rules import check
from stacks.config.values import ConfigValues
from stacks.config.warnings import ConfigWarning, dated_warnings_of, warnings_of

if TYPE_CHECKING:
    from datetime import date

    from constructs import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig(ConfigValues):
    """The configuration of one deployment; every existing object has passed all checks."""

    settings: tuple[tuple[str, str], ...] = ()
    """Every key that was given, by ``-c`` or in cdk.json, as it stands after ``-c``."""

    def __post_init__(self) -> None:
        """Refuse an impossible configuration, also after ``dataclasses.replace``."""
        for name, declared in keys_of(type(self)).items():
            declared.read(name, getattr(self, name))
        check(self)

    @classmethod
    def from_context(cls, node: Node) -> Self:
        """Read the app's context; nothing else reads it."""
        context = node.get_all_context()
        return cls(**read_all(keys_of(cls), context), settings=all_given(context))

    @classmethod
    def from_mapping(cls, context: Mapping[str, object]) -> Self:
        """Read context given as a mapping; ``ConfigError`` says what is wrong with it."""
        return cls(**read_all(keys_of(cls), context))

    @property
    def warnings(self) -> tuple[ConfigWarning, ...]:
        """Warnings about what could not be checked, or costs money while idle."""
        return warnings_of(self)

    def dated_warnings(self, today: date) -> tuple[ConfigWarning, ...]:
        """Warnings about versions whose time is running out."""
        return dated_warnings_of(self, today)
