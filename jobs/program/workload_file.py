"""`workload.toml`: what a program's folder says of itself, as a workload of the catalogue.

From here on it is a workload like the built-in ones: the same table of parameters parses its
options, prints its help and suggests a name for a mistyped one.
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
    """A workload.toml that has been read and checked."""

    path: Path
    workload: Workload
    """Its parameters, then those of every program, with the defaults that it gives."""
    script: str | None
    module: str | None
    requirements: str | None
    """File with the requirements, beside this one."""
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    parameters: tuple[ProgramParameter, ...]
    settings: Mapping[str, Value]
    """Parameters of every program's job that the file sets."""

    def argv(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Spell the program's own parameters, as given or by default."""
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
    """Return the workload of a program that says nothing of itself."""
    return replace(_PROGRAM, parameters=PLATFORM_PARAMETERS)


def read_workload_file(path: Path, *, reserved: Collection[str]) -> WorkloadFile:
    """Read and check a workload.toml; every mistake is one refusal.

    ``reserved`` are the options of `submit` itself.
    """
    top = Table(path, "", read_toml(path))
    top.check_keys(_KEYS)
    script, module = top.text("script"), top.text("module")
    if (script is None) == (module is None):
        raise top.wrong(
            "script",
            script,
            "either script or module says what to run",
            'give one of them, such as script = "train.py"',
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
        default_nodes=top.whole("nodes", 1, least=1),
        time_limit_hours=top.number("time_limit_hours", _PROGRAM.time_limit_hours, least=1 / 60),
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
        raise top.wrong(
            "name",
            name,
            "runs are named after it",
            "use letters, digits, hyphens and underscores, a letter or digit first",
        )
    if name in WORKLOADS:
        raise top.wrong("name", name, "a built-in workload has this name", "choose another")
    return name


def _variables(top: Table) -> str:
    """Read the table ``[env]`` into the parameter's form."""
    table = top.values.get(ENV, {})
    if not isinstance(table, dict):
        raise top.wrong(ENV, table, "it is a table", 'write [env], and NAME = "value" below')
    for name, value in table.items():
        if not isinstance(value, str):
            raise top.wrong(f"{ENV}.{name}", value, "a variable is a text", "put it into quotes")
    text = join_variables(table)
    try:
        check_variables(split_variables(text))
    except ValueError as error:
        raise top.wrong(ENV, None, str(error), "change it there") from None
    return text


def _parameters(top: Table, reserved: Collection[str]) -> tuple[ProgramParameter, ...]:
    tables = Table(top.path, "parameters.", top.tables("parameters"))
    style = top.one_of("style", STYLES, "value")
    taken = {*reserved, *(item.name for item in (*PLATFORM_PARAMETERS, *LAUNCH_PARAMETERS))}
    found: list[ProgramParameter] = []
    for name, value in tables.values.items():
        item = read_parameter(tables, name, value, style)
        if item.parameter.name in taken:
            raise tables.wrong(
                name,
                None,
                f"there is an option --{item.parameter.name} already",
                f'rename the table, and give the program\'s own spelling: flag = "{item.flag}"',
            )
        taken.add(item.parameter.name)
        found.append(item)
    return tuple(found)
