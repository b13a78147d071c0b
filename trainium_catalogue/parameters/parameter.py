"""A workload's parameter, its parsing and formatting, and the launcher's own parameters."""

import re
from dataclasses import dataclass

Value = int | float | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A command-line option of a workload; it has the type of its default."""

    name: str
    """Name in kebab-case, with its unit, without leading dashes."""
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    required: bool = False
    """True if it must be set; the default then only determines the type."""
    pattern: str | None = None
    """Regular expression that the whole text must match."""
    pattern_help: str = ""
    """Description of ``pattern`` for users."""
    default_of: str = ""
    """Parameter that determines the default; empty if the default is fixed."""
    is_advanced: bool = False
    """True if the default is almost always right: help shows it last."""

    @property
    def shown_default(self) -> str:
        """The default, as on a command line."""
        if self.required:
            return "required"
        if self.default_of:
            return f"the {self.default_of}'s"
        return f"{self.default:g}" if isinstance(self.default, float) else flag_value(self.default)

    def parse(self, text: str) -> Value:
        """Parse ``text`` as this parameter's type; ``ValueError`` describes valid values."""
        value = self._convert(text)
        if isinstance(value, str):
            is_default = value == self.default and not self.required
            if self.pattern and not is_default and not re.fullmatch(self.pattern, value):
                raise ValueError(f"{self.name}={text} is not valid; it must be {self.pattern_help}")
            return value
        if self.minimum is not None and value < self.minimum:
            raise ValueError(
                f"{self.name}={text} is too small; the minimum is {_plain(self.minimum)}"
            )
        if self.maximum is not None and value > self.maximum:
            raise ValueError(
                f"{self.name}={text} is too large; the maximum is {_plain(self.maximum)}"
            )
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


def _plain(number: float) -> str:
    """Format a whole number with separators, any other with up to six significant digits."""
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def kebab(name: str) -> str:
    """Convert a name to kebab-case."""
    return name.replace("_", "-")


def flag_value(value: Value) -> str:
    """Format a parameter's value as on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


LAUNCH_PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="peer-timeout-s",
        is_advanced=True,
        default=30.0,
        minimum=1,
        maximum=600,
        help="seconds without a heartbeat before a peer counts as lost",
    ),
    Parameter(
        name="hang-limit-s",
        default=600.0,
        minimum=1,
        maximum=86400,
        help="seconds without progress by any worker before a node counts as hung",
    ),
    Parameter(
        name="join-timeout-s",
        is_advanced=True,
        default=1800.0,
        minimum=1,
        maximum=86400,
        help="seconds to wait for all nodes to join; children may start late",
    ),
    Parameter(
        name="first-child-timeout-s",
        is_advanced=True,
        default=120.0,
        minimum=1,
        maximum=86400,
        help="seconds that the main node waits for the first child to join once a child has "
        "reported its start in the bucket, or if the bucket is unreachable; at most join-timeout-s",
    ),
    Parameter(
        name="straggler-timeout-s",
        is_advanced=True,
        default=600.0,
        minimum=1,
        maximum=86400,
        help="maximum seconds between the first and the last child to join, within join-timeout-s",
    ),
    Parameter(
        name="stop-grace-s",
        is_advanced=True,
        default=90.0,
        minimum=0,
        maximum=3600,
        help="seconds for workers to exit after SIGTERM; for a program, a third of it, at most "
        "30 s, is reserved for the last snapshot",
    ),
)
"""Parameters of the launcher for every workload."""
