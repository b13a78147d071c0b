"""Parameters of a program: from its workload.toml, and common to all programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jobs.program.table import Table, is_number
from trainium_catalogue import contract
from trainium_catalogue.parameters.parameter import flag_value, kebab
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Parameter, Value

GIVEN_BY_SUBMIT = ("code", "script", "module", "wheels")
"""Parameters of a program's job that `submit` sets."""
ENV = "env"
"""The parameter for environment variables: a repeatable option, and a table."""
PLATFORM_PARAMETERS = tuple(
    item for item in WORKLOADS[contract.PROGRAM].parameters if item.name not in GIVEN_BY_SUBMIT
)
"""Parameters of every program's job."""
SETTABLE = (
    *(item for item in PLATFORM_PARAMETERS if item.name != ENV),
    *(item for item in LAUNCH_PARAMETERS if item.name in ("hang-limit-s", "stop-grace-s")),
)
"""Job and launcher parameters that a workload.toml may set."""
STYLES = {
    "value": "--name value; a boolean: --name when true",
    "equals": "--name=value, also for booleans",
    "assignment": "name=value, as for Hydra",
}
_KEYS = ("default", "type", "help", "minimum", "maximum", "choices", "flag", "required")
_TYPES: Mapping[str, type] = {"string": str, "integer": int, "float": float, "boolean": bool}
_NOUNS = {str: "a string", int: "an integer", float: "a number", bool: "a boolean"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramParameter:
    """A parameter of the program, and its spelling on the program's command line."""

    parameter: Parameter
    """The option of `submit` that sets it."""
    flag: str
    """The program's own flag."""
    style: str
    is_passed: bool
    """True if it is passed by default."""

    def words(self, value: Value) -> tuple[str, ...]:
        """Return its arguments for the program."""
        text = flag_value(value)
        if self.style != "value":
            return (f"{self.flag}={text}",)
        if isinstance(value, bool):
            return (self.flag,) if value else ()
        return (self.flag, text)


def read_parameter(parent: Table, name: str, value: Any, style: str) -> ProgramParameter:
    """Parse a table ``[parameters.NAME]``."""
    if not isinstance(value, dict):
        raise parent.invalid(
            name, value, "a parameter is a table", f"write [parameters.{name}] with a default"
        )
    if not _NAME.fullmatch(name):
        raise parent.invalid(
            name,
            None,
            "an option name must consist of letters, digits, '-' and '_', and start with a letter",
            "rename it, and set flag to the program's own spelling",
        )
    table = Table(parent.path, f"parameters.{name}.", value)
    table.check_keys(_KEYS)
    kind, default = _kind(table), value.get("default")
    choices = _choices(table, kind)
    required = table.flag("required", default=False)
    if required and default is not None:
        raise table.invalid(
            "required", True, "a required parameter has no default", "remove required or default"
        )
    option = Parameter(
        name=kebab(name),
        # Choices are compared as strings, whatever their type.
        default="" if choices else kind(),
        help=_help(table, is_optional=not required and default is None),
        minimum=_bound(table, "minimum", kind),
        maximum=_bound(table, "maximum", kind),
        required=required,
        pattern="|".join(re.escape(choice) for choice in choices) or None,
        pattern_help=f"one of {', '.join(choices)}",
    )
    if option.minimum is not None and option.maximum is not None:
        _check_order(table, option.minimum, option.maximum)
    if default is not None:
        try:
            option = replace(option, default=option.parse(flag_value(default)))
        except ValueError as error:
            raise table.invalid("default", default, str(error), "use a valid default") from None
    flag = table.text("flag") or (name if style == "assignment" else f"--{name}")
    return ProgramParameter(parameter=option, flag=flag, style=style, is_passed=default is not None)


def read_setting(table: Table, item: Parameter) -> Value:
    """Parse the value of one of ``SETTABLE``."""
    key, value = snake(item.name), table.values[snake(item.name)]
    fits = type(value) is type(item.default) or (
        isinstance(item.default, float) and is_number(value)
    )
    if not fits:
        noun = _NOUNS[type(item.default)]
        raise table.invalid(key, value, f"it must be {noun}", f"description: {item.help}")
    try:
        return item.parse(flag_value(value))
    except ValueError as error:
        raise table.invalid(key, value, str(error), f"description: {item.help}") from None


def snake(name: str) -> str:
    """Convert an option's name to its key in a workload.toml."""
    return name.replace("-", "_")


def _help(table: Table, *, is_optional: bool) -> str:
    text = table.text("help") or "parameter of this program"
    return f"{text}; passed only if given" if is_optional else text


def _kind(table: Table) -> type:
    """Return a parameter's type, explicit or from its default."""
    name, default = table.values.get("type"), table.values.get("default")
    if name is not None:
        if not isinstance(name, str) or name not in _TYPES:
            raise table.invalid("type", name, "unknown type", did_you_mean(str(name), _TYPES))
        return _TYPES[name]
    if default is None:
        raise table.invalid(
            "default",
            None,
            "both default and type are missing",
            'add a default, or a type such as type = "float"',
        )
    if type(default) not in _NOUNS:
        raise table.invalid(
            "default",
            default,
            "a parameter is a string, a number or a boolean",
            "put lists and tables in one of the program's files",
        )
    return type(default)


def _choices(table: Table, kind: type) -> tuple[str, ...]:
    value = table.values.get("choices", [])
    if not isinstance(value, list) or ("choices" in table.values and not value):
        raise table.invalid("choices", value, "it must be a list", 'write choices = ["a", "b"]')
    if value and kind is bool:
        raise table.invalid("choices", value, "a boolean is true or false", "remove choices")
    for item in value:
        if type(item) is not kind:
            raise table.invalid("choices", item, f"it is not {_NOUNS[kind]}", "use a single type")
    return tuple(flag_value(item) for item in value)


def _bound(table: Table, key: str, kind: type) -> float | None:
    value = table.values.get(key)
    if value is None:
        return None
    if kind not in (int, float):
        raise table.invalid(key, value, f"only numbers have a {key}", "remove it, or use choices")
    if not is_number(value):
        raise table.invalid(key, value, "it is not a number", f"write {key} = 1")
    return float(value)


def _check_order(table: Table, minimum: float, maximum: float) -> None:
    if minimum > maximum:
        raise table.invalid("minimum", minimum, f"the maximum is {maximum:g}", "swap them")
