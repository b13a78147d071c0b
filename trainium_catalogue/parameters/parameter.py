"""A workload's parameter, the parsing and spelling of its text, and the launcher's own ones."""

import re
from dataclasses import dataclass

Value = int | float | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One command-line flag of a workload; its type is the type of its default."""

    name: str
    """Name in kebab-case, without leading dashes, with its unit."""
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    required: bool = False
    """True if it must be given; the default then only sets the type."""
    pattern: str | None = None
    """Regular expression that the whole text must match."""
    pattern_help: str = ""
    """Description of ``pattern`` for people."""
    default_of: str = ""
    """Parameter whose value decides the default; empty if it is always the same."""
    is_advanced: bool = False
    """True if its default suits nearly everyone: help shows it last."""

    @property
    def shown_default(self) -> str:
        """The default in words, as on a command line."""
        if self.required:
            return "required"
        if self.default_of:
            return f"the {self.default_of}'s"
        return f"{self.default:g}" if isinstance(self.default, float) else flag_value(self.default)

    def parse(self, text: str) -> Value:
        """Parse ``text`` as this parameter's type; ``ValueError`` says what would be valid."""
        value = self._convert(text)
        if isinstance(value, str):
            is_default = value == self.default and not self.required
            if self.pattern and not is_default and not re.fullmatch(self.pattern, value):
                raise ValueError(f"{self.name}={text} cannot be; it takes {self.pattern_help}")
            return value
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"{self.name}={text} is too small; the least is {self.minimum:g}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"{self.name}={text} is too large; the most is {self.maximum:g}")
        return value

    def _convert(self, text: str) -> Value:
        if isinstance(self.default, str):
            return text
        if isinstance(self.default, bool):
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            raise ValueError(f"{self.name}={text} is not a boolean; write true or false")
        kind = type(self.default)
        try:
            value = kind(text)
        except ValueError:
            noun = {int: "a whole number", float: "a number"}[kind]
            raise ValueError(
                f"{self.name}={text} is not {noun}; the default is {self.default}"
            ) from None
        if isinstance(value, float) and value - value != 0:
            raise ValueError(f"{self.name}={text} is not finite; the default is {self.default}")
        return value


def kebab(name: str) -> str:
    """Spell a name as an option."""
    return name.replace("_", "-")


def flag_value(value: Value) -> str:
    """Spell a parameter's value as on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


LAUNCH_PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="peer-timeout-s",
        is_advanced=True,
        default=30.0,
        minimum=1,
        maximum=600,
        help="seconds of silence after which a peer counts as lost",
    ),
    Parameter(
        name="hang-limit-s",
        default=600.0,
        minimum=1,
        maximum=86400,
        help="seconds without progress of any worker after which the node counts as hung",
    ),
    Parameter(
        name="join-timeout-s",
        is_advanced=True,
        default=1800.0,
        minimum=1,
        maximum=86400,
        help="seconds that nodes wait for each other at the start; children may start late",
    ),
    Parameter(
        name="first-child-timeout-s",
        is_advanced=True,
        default=120.0,
        minimum=1,
        maximum=86400,
        help="seconds that the main node waits for a first child once one has started, as it says "
        "in the bucket, or once the bucket is out of reach too, within join-timeout-s",
    ),
    Parameter(
        name="straggler-timeout-s",
        is_advanced=True,
        default=600.0,
        minimum=1,
        maximum=86400,
        help="seconds after the first child that the last one may join, within join-timeout-s",
    ),
    Parameter(
        name="stop-grace-s",
        is_advanced=True,
        default=90.0,
        minimum=0,
        maximum=3600,
        help="seconds that workers have to end after SIGTERM; of a program's, a third, at most 30, "
        "are for its last snapshot",
    ),
)
"""Parameters that the launcher understands for every workload."""
