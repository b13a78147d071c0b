"""The configuration of one deployment, read from CDK context and validated, and its warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from stacks.config.keys import explicit_settings, keys_of, read_all
from stacks.config.rules import check
from stacks.config.values import ConfigValues
from stacks.config.warnings import ConfigWarning, dated_warnings_of, warnings_of

if TYPE_CHECKING:
    from datetime import date

    from constructs import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig(ConfigValues):
    """The validated configuration of one deployment."""

    settings: tuple[tuple[str, str], ...] = ()
    """Every key set with ``-c`` or in cdk.json, as text that ``-c`` accepts."""

    def __post_init__(self) -> None:
        """Refuse an invalid configuration, even one made by ``dataclasses.replace``."""
        for name, declared in keys_of(type(self)).items():
            declared.read(name, getattr(self, name))
        check(self)

    @classmethod
    def from_context(cls, node: Node) -> Self:
        """Read the app's context, which only this method does; raise ``ConfigError``."""
        context = node.get_all_context()
        return cls(**read_all(keys_of(cls), context), settings=explicit_settings(context))

    @classmethod
    def from_mapping(cls, context: Mapping[str, object]) -> Self:
        """Read context from a mapping; raise ``ConfigError`` if it is invalid."""
        return cls(**read_all(keys_of(cls), context))

    @property
    def warnings(self) -> tuple[ConfigWarning, ...]:
        """Warnings about settings that cannot be checked or cost money while idle."""
        return warnings_of(self)

    def dated_warnings(self, today: date) -> tuple[ConfigWarning, ...]:
        """Return warnings about a Kubernetes version near its end of support or an old AMI."""
        return dated_warnings_of(self, today)
