"""`workload.toml`: the description of a program's folder as a workload.

Once read, it is handled like a built-in workload: its parameters are used to parse options,
print help and suggest names for mistyped options.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.program.parameters import (
    ENV,
    PLATFORM_PARAMETERS,
    SETTABLE,
    STYLES,
    ProgramParameter,
    read_parameter,
    read_setting,
    snake,
)
from jobs.program.secrets import check_variables
from jobs.program.table import Table, read_toml
from trainium_catalogue import contract
from trainium_catalogue.variables import join_variables, split_variables
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Value, Workload

_KEYS = (
    *("name", "summary", "script", "module", "nodes", "time_limit_hours"),
    *("requirements", "include", "exclude", "style", "parameters", ENV),
    *(snake(item.name) for item in SETTABLE),
)
_PROGRAM = WORKLOADS[contract.PROGRAM]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFile:
    """A parsed and validated workload.toml."""

    path: Path
    workload: Workload
    """Its own parameters, then those of every program, with the file's defaults."""
    script: str | None
    module: str | None
    requirements: str | None
    """Path of the requirements file, relative to this file's folder."""
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    parameters: tuple[ProgramParameter, ...]
    settings: Mapping[str, Value]
    """Values that the file sets for the parameters common to all programs."""

    def argv(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the program's arguments from given values and defaults."""
        words: list[str] = []
        for item in self.parameters:
            value = values.get(item.parameter.name)
            if value is not None:
                words += item.words(value)
            elif item.is_passed:
                words += item.words(item.parameter.default)
        return tuple(words)

    @property
    def own_names(self) -> frozenset[str]:
        """Names of the program's own parameters, as options of `submit`."""
        return frozenset(item.parameter.name for item in self.parameters)


def plain_workload() -> Workload:
    """Return the workload of a program without a workload.toml."""
    return replace(_PROGRAM, parameters=PLATFORM_PARAMETERS)


def read_workload_file(path: Path, *, reserved: Collection[str]) -> WorkloadFile:
    """Parse and validate a workload.toml; raise ``Refusal`` for the first error.

    ``reserved`` are the options of `submit` itself.
    """
    top = Table(path, "", read_toml(path))
    top.check_keys(_KEYS)
    script, module = top.text("script"), top.text("module")
    if (script is None) == (module is None):
        raise top.invalid(
            "script",
            script,
            "exactly one of script and module must be set",
            'set only one, such as script = "train.py"',
        )
    settings: dict[str, Value] = {
        item.name: read_setting(top, item) for item in SETTABLE if snake(item.name) in top.values
    }
    if variables := _variables(top):
        settings[ENV] = variables
    parameters = _parameters(top, reserved)
    workload = replace(
        _PROGRAM,
        name=_name(top),
        summary=top.text("summary") or f"your own program in {path.parent}",
        default_nodes=top.integer("nodes", 1, minimum=1),
        time_limit_hours=top.number("time_limit_hours", _PROGRAM.time_limit_hours, minimum=1 / 60),
        hang_limit_s=float(settings.get("hang-limit-s", _PROGRAM.hang_limit_s or 0)),
        parameters=(
            *(item.parameter for item in parameters),
            *(
                replace(item, default=settings.get(item.name, item.default))
                for item in PLATFORM_PARAMETERS
            ),
        ),
    )
    return WorkloadFile(
        path=path,
        workload=workload,
        script=script,
        module=module,
        requirements=top.text("requirements"),
        include=top.words("include"),
        exclude=top.words("exclude"),
        parameters=parameters,
        settings=settings,
    )


def _name(top: Table) -> str:
    name = top.text("name") or top.path.absolute().parent.name
    if not re.fullmatch(contract.RUN_NAME_PATTERN, name):
        raise top.invalid(
            "name",
            name,
            "runs are named after it",
            "use letters, digits, hyphens and underscores, starting with a letter or digit",
        )
    if name in WORKLOADS:
        raise top.invalid("name", name, "a built-in workload has this name", "choose another")
    return name


def _variables(top: Table) -> str:
    """Read the table ``[env]`` as a parameter value."""
    table = top.values.get(ENV, {})
    if not isinstance(table, dict):
        raise top.invalid(ENV, table, "it must be a table", 'write [env], and NAME = "value" below')
    for name, value in table.items():
        if not isinstance(value, str):
            raise top.invalid(f"{ENV}.{name}", value, "it must be a string", "put it in quotes")
    text = join_variables(table)
    try:
        check_variables(split_variables(text))
    except ValueError as error:
        raise top.invalid(ENV, None, str(error), "change it in [env]") from None
    return text


def _parameters(top: Table, reserved: Collection[str]) -> tuple[ProgramParameter, ...]:
    tables = Table(top.path, "parameters.", top.tables("parameters"))
    style = top.one_of("style", STYLES, "value")
    taken = {*reserved, *(item.name for item in (*PLATFORM_PARAMETERS, *LAUNCH_PARAMETERS))}
    parameters: list[ProgramParameter] = []
    for name, value in tables.values.items():
        item = read_parameter(tables, name, value, style)
        if item.parameter.name in taken:
            raise tables.invalid(
                name,
                None,
                f"option --{item.parameter.name} already exists",
                f'rename the table, and set the program\'s own spelling: flag = "{item.flag}"',
            )
        taken.add(item.parameter.name)
        parameters.append(item)
    return tuple(parameters)
