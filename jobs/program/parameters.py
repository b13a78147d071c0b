"""Parameters of a program: those that its workload.toml names, and those of every program."""

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
"""Parameters of a program's job that nobody types."""
ENV = "env"
"""The parameter for environment variables: an option that is repeated, and a table."""
PLATFORM_PARAMETERS = tuple(
    item for item in WORKLOADS[contract.PROGRAM].parameters if item.name not in GIVEN_BY_SUBMIT
)
"""Parameters of every program's job."""
SETTABLE = (
    *(item for item in PLATFORM_PARAMETERS if item.name != ENV),
    *(item for item in LAUNCH_PARAMETERS if item.name in ("hang-limit-s", "stop-grace-s")),
)
"""Those that a workload.toml may set, of the job and of its launcher."""
STYLES = {
    "value": "--name value; a boolean: --name when true",
    "equals": "--name=value, booleans too",
    "assignment": "name=value, as Hydra takes it",
}
_KEYS = ("default", "type", "help", "minimum", "maximum", "choices", "flag", "required")
_TYPES: Mapping[str, type] = {"string": str, "integer": int, "float": float, "boolean": bool}
_NOUNS = {str: "a text", int: "a whole number", float: "a number", bool: "a boolean"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramParameter:
    """A parameter of the program, and how the program takes it."""

    parameter: Parameter
    """Its entry in the table of options."""
    flag: str
    """Its name as the program spells it."""
    style: str
    is_passed: bool
    """True if it is passed when nobody gives it, because it has a default."""

    def words(self, value: Value) -> tuple[str, ...]:
        """Spell it for the program."""
        text = flag_value(value)
        if self.style != "value":
            return (f"{self.flag}={text}",)
        if isinstance(value, bool):
            return (self.flag,) if value else ()
        return (self.flag, text)


def read_parameter(parent: Table, name: str, value: Any, style: str) -> ProgramParameter:
    """Read a table ``[parameters.NAME]``."""
    if not isinstance(value, dict):
        raise parent.wrong(
            name, value, "a parameter is a table", f"write [parameters.{name}], and default below"
        )
    if not _NAME.fullmatch(name):
        raise parent.wrong(
            name,
            None,
            "an option takes letters, digits, hyphens and underscores, a letter first",
            "rename it, and give the program's own spelling as flag",
        )
    table = Table(parent.path, f"parameters.{name}.", value)
    table.check_keys(_KEYS)
    kind, default = _kind(table), value.get("default")
    choices = _choices(table, kind)
    required = table.flag("required", default=False)
    if required and default is not None:
        raise table.wrong(
            "required", True, "a parameter with a default need not be given", "keep one of them"
        )
    option = Parameter(
        name=kebab(name),
        # Of choices the texts are compared, whatever their type.
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
            raise table.wrong("default", default, str(error), "give one that fits") from None
    flag = table.text("flag") or (name if style == "assignment" else f"--{name}")
    return ProgramParameter(parameter=option, flag=flag, style=style, is_passed=default is not None)


def read_setting(table: Table, item: Parameter) -> Value:
    """Read one of ``SETTABLE``."""
    key, value = snake(item.name), table.values[snake(item.name)]
    fits = type(value) is type(item.default) or (
        isinstance(item.default, float) and is_number(value)
    )
    if not fits:
        noun = _NOUNS[type(item.default)]
        raise table.wrong(key, value, f"it is {noun}", f"it means: {item.help}")
    try:
        return item.parse(flag_value(value))
    except ValueError as error:
        raise table.wrong(key, value, str(error), f"it means: {item.help}") from None


def snake(name: str) -> str:
    """Spell an option's name as a key."""
    return name.replace("-", "_")


def _help(table: Table, *, is_optional: bool) -> str:
    text = table.text("help") or "of this program"
    return f"{text}; not passed unless it is given" if is_optional else text


def _kind(table: Table) -> type:
    """Return a parameter's type: as it says, or its default's."""
    said, default = table.values.get("type"), table.values.get("default")
    if said is not None:
        if not isinstance(said, str) or said not in _TYPES:
            raise table.wrong("type", said, "no such type", did_you_mean(str(said), _TYPES))
        return _TYPES[said]
    if default is None:
        raise table.wrong(
            "default",
            None,
            "it is missing, and so is the type",
            'give a default, or a type such as type = "float"',
        )
    if type(default) not in _NOUNS:
        raise table.wrong(
            "default",
            default,
            "a parameter is a text, a number or a boolean",
            "put lists and tables into a file of the program",
        )
    return type(default)


def _choices(table: Table, kind: type) -> tuple[str, ...]:
    value = table.values.get("choices", [])
    if not isinstance(value, list) or ("choices" in table.values and not value):
        raise table.wrong("choices", value, "it is a list", 'write choices = ["a", "b"]')
    if value and kind is bool:
        raise table.wrong("choices", value, "a boolean is true or false", "remove them")
    for item in value:
        if type(item) is not kind:
            raise table.wrong("choices", item, f"it is not {_NOUNS[kind]}", "write all alike")
    return tuple(flag_value(item) for item in value)


def _bound(table: Table, key: str, kind: type) -> float | None:
    value = table.values.get(key)
    if value is None:
        return None
    if kind not in (int, float):
        raise table.wrong(key, value, "only numbers have one", "remove it, or give choices")
    if not is_number(value):
        raise table.wrong(key, value, "it is not a number", f"write {key} = 1")
    return float(value)


def _check_order(table: Table, minimum: float, maximum: float) -> None:
    if minimum > maximum:
        raise table.wrong("minimum", minimum, f"the maximum is {maximum:g}", "exchange them")
