"""Parameters of a workload as they stand on the command line: `--lr 1e-4`, or `--set lr=1e-4`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from jobs.errors import Refusal
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, Parameter, Value, Workload

OWN_OPTIONS = (
    *("nodes", "name", "follow", "time-limit", "set", "compile", "dry-run", "yes", "json"),
    *("on", "release", "scale"),
    *("deployment", "region", "help"),
)
"""Options of ``submit`` itself; no workload has a parameter of such a name."""
_WORD = re.compile(r"[a-z0-9-]+")


def parsed_parameters(
    workload: Workload, words: Sequence[str], assignments: Sequence[str]
) -> dict[str, Value]:
    """Read ``--name value`` and ``--set name=value`` against the catalogue.

    Refuses unknown names, wrong values, a parameter given twice and one that must be given and
    is not.
    """
    known = {parameter.name: parameter for parameter in (*workload.parameters, *LAUNCH_PARAMETERS)}
    values: dict[str, Value] = {}
    for shown, name, text in (*_flags(workload, known, words), *_settings(workload, assignments)):
        if name not in known:
            raise Refusal("unknown-parameter", _unknown(workload, known, name))
        if name in values:
            raise Refusal("parameter-twice", f"{shown}{name} is given twice; keep one of them")
        try:
            values[name] = known[name].parse(text)
        except ValueError as error:
            meant = _meant(known[name], text)
            raise Refusal("parameter-value", f"{shown}{error}{meant}") from None
    missing = [item for item in workload.parameters if item.required and item.name not in values]
    if missing:
        needed = " and ".join(f"--{item.name} ({item.help})" for item in missing)
        raise Refusal(
            "parameter-missing",
            f"{workload.name} needs {needed}; `python -m jobs submit {workload.name} --help` "
            "shows all parameters",
        )
    return values


def with_defaults(workload: Workload, given: Mapping[str, Value]) -> dict[str, Value]:
    """Every parameter of the workload itself."""
    return {item.name: given.get(item.name, item.default) for item in workload.parameters}


def _flags(
    workload: Workload, known: Mapping[str, Parameter], words: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Split ``--name value`` and ``--name=value``; a boolean may stand alone and is then true."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise Refusal(
                "parameter-syntax",
                f"{word!r} is not a parameter; parameters look like --{_example(workload)}",
            )
        name, equals, text = word[2:].partition("=")
        name = _kebab(name)
        if name not in known:
            raise Refusal("unknown-parameter", _unknown(workload, known, name))
        if not equals:
            alone = not rest or rest[0].startswith("--")
            if alone and not isinstance(known[name].default, bool):
                raise Refusal(
                    "parameter-syntax", f"--{name} has no value; it takes {known[name].help}"
                )
            text = "true" if alone else rest.pop(0)
        yield "--", name, text


def _settings(workload: Workload, assignments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise Refusal(
                "parameter-syntax",
                f"--set {assignment} is not key=value; for example: --set "
                f"{_example(workload).replace(' ', '=')}",
            )
        yield "--set ", _kebab(name.strip().removeprefix("--")), text


def _meant(parameter: Parameter, text: str) -> str:
    """The nearest of a parameter's words, where it takes nothing but some."""
    words = (parameter.pattern or "").split("|")
    if not all(_WORD.fullmatch(word) for word in words):
        return ""
    hint = did_you_mean(text, words)
    return f"; {hint}" if hint.startswith("did you mean") else ""


def _kebab(name: str) -> str:
    # `max_bytes` is what one would type after reading Python; both are meant.
    return name.replace("_", "-")


def _example(workload: Workload) -> str:
    first = (*workload.parameters, *LAUNCH_PARAMETERS)[0]
    return f"{first.name} {first.default or 'VALUE'}"


def _unknown(workload: Workload, known: Mapping[str, Parameter], name: str) -> str:
    hint = did_you_mean(name, (*known, *OWN_OPTIONS))
    if not hint.startswith("did you mean"):
        hint = f"known are {', '.join(sorted(known))}"
    return f"{workload.name} has no parameter {name!r}; {hint}"
