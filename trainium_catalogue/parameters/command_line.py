"""The parser of a workload's parameters, shared by the CLI and the nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from trainium_catalogue.parameters.parameter import Parameter, Value, kebab
from trainium_catalogue.suggest import did_you_mean

if TYPE_CHECKING:
    from trainium_catalogue.workloads import Workload

_CHOICE = re.compile(r"[a-z0-9-]+")


class ParameterError(ValueError):
    """Invalid parameters: value, reason and remedy, with a stable code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterValues:
    """The parameters of a workload: explicit values, and defaults for the others."""

    workload: Workload
    """The workload, with the defaults of its model if it takes one."""
    given: Mapping[str, Value]

    @property
    def own(self) -> dict[str, Value]:
        """All parameters of the workload itself."""
        return self._of(self.workload.parameters)

    @property
    def own_given(self) -> dict[str, Value]:
        """Explicit parameters of the workload itself."""
        return {name: value for name, value in self.own.items() if name in self.given}

    @property
    def launch(self) -> dict[str, Value]:
        """All parameters of its launcher."""
        return self._of(self.workload.launch_parameters)

    def _of(self, parameters: Sequence[Parameter]) -> dict[str, Value]:
        return {item.name: self.given.get(item.name, item.default) for item in parameters}


def parse_values(
    workload: Workload,
    argv: Sequence[str],
    assignments: Sequence[str] = (),
    *,
    options: Collection[str] = (),
) -> ParameterValues:
    """Parse ``--name value``, and ``name=value`` of ``--set``, against the catalogue.

    Refuses unknown names, invalid values, duplicates and missing required parameters.

    Args:
        options: Options of the command itself, for suggestions.
    """
    known = {item.name: item for item in (*workload.parameters, *workload.launch_parameters)}
    values: dict[str, Value] = {}
    for shown, name, text in chain(_flags(workload, known, argv), _settings(workload, assignments)):
        if name not in known:
            raise _unknown(workload, known, name, options)
        if name in values:
            raise ParameterError(
                "parameter-twice", f"{shown}{name} is set twice; keep one of the two"
            )
        try:
            values[name] = known[name].parse(text)
        except ValueError as error:
            hint = _suggest_choice(known[name], text)
            raise ParameterError("parameter-value", f"{shown}{error}{hint}") from None
    missing = [item for item in workload.parameters if item.required and item.name not in values]
    if missing:
        needed = " and ".join(f"--{item.name} ({item.help})" for item in missing)
        raise ParameterError(
            "parameter-missing",
            f"{workload.name} needs {needed}; `python -m jobs submit {workload.name} --help` "
            "shows all parameters",
        )
    return ParameterValues(workload=workload.of_model(values), given=values)


def _flags(
    workload: Workload, known: Mapping[str, Parameter], argv: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Split ``--name value`` and ``--name=value``; a boolean flag without a value is true."""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ParameterError(
                "parameter-syntax",
                f"{word!r} is not a parameter; "
                + (
                    f"put arguments of the program after --: -- {shlex.join([word, *rest])}"
                    if workload.runs_program
                    else f"parameters look like --{_example(workload)}"
                ),
            )
        name, equals, text = word[2:].partition("=")
        # `max_bytes`, as in Python, is accepted too.
        name = kebab(name)
        if not equals and name in known:
            alone = not rest or rest[0].startswith("--")
            if alone and not isinstance(known[name].default, bool):
                raise ParameterError(
                    "parameter-syntax", f"--{name} needs a value: {known[name].help}"
                )
            text = "true" if alone else rest.pop(0)
        yield "--", name, text


def _settings(workload: Workload, assignments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ParameterError(
                "parameter-syntax",
                f"--set {assignment} is not key=value; for example: --set "
                f"{_example(workload).replace(' ', '=')}",
            )
        yield "--set ", kebab(name.strip().removeprefix("--")), text


def _suggest_choice(parameter: Parameter, text: str) -> str:
    """Suggest the closest of a parameter's choices, if it has a fixed set."""
    choices = (parameter.pattern or "").split("|")
    if not all(_CHOICE.fullmatch(choice) for choice in choices):
        return ""
    hint = did_you_mean(text, choices)
    return f"; {hint}" if hint.startswith("did you mean") else ""


def _example(workload: Workload) -> str:
    first = (*workload.parameters, *workload.launch_parameters)[0]
    return f"{first.name} {first.default or 'VALUE'}"


def _unknown(
    workload: Workload, known: Mapping[str, Parameter], name: str, options: Collection[str]
) -> ParameterError:
    if name in options:
        # As in `plan --name`, or with --set.
        why = f"--{name} is an option of `submit` itself, not a parameter of {workload.name}"
        return ParameterError("unknown-parameter", f"{why}; omit it here")
    hint = did_you_mean(name, (*known, *options))
    is_near = hint.startswith("did you mean")
    if not is_near:
        hint = f"known: {', '.join(sorted(known))}"
    message = f"{workload.name} has no parameter {name!r}; {hint}"
    if workload.runs_program:
        own = f"arguments of the program come after --, as in: submit ./train.py -- --{name}"
        hints = (hint, own) if is_near else (own, hint)
        message = f"--{name} is not an option of submit; {'; '.join(hints)}"
    return ParameterError("unknown-parameter", message)
