"""Environment variables that a user sets for a program: their format, and forbidden names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"TRAINIUM_.*"),
        "this project sets it; use another name",
    ),
    (
        re.compile(r"AWS_.*"),
        "it would redirect the launcher's AWS calls; for the job's role, use --aws-credentials, "
        "and pass a region to the program as an argument",
    ),
    (
        re.compile(r"RANK|WORLD_SIZE|(?:LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC)_.*"),
        "torchrun sets it for each process; omit it",
    ),
    (
        re.compile(r"PYTHONPATH|PYTHONHOME"),
        "it would change what torchrun itself imports; specify the folder to import from with "
        "--workdir, or add to sys.path in the program",
    ),
)


def split_variables(text: str) -> dict[str, str]:
    """Parse shell-quoted variables; ``ValueError`` with reason and remedy."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"--env {text}: {str(error).lower()}; close every quote in it") from None
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ValueError(
                f"--env {word}: a variable is NAME=VALUE, with a name of letters, digits and "
                "underscores, not starting with a digit; for example: --env NCCL_DEBUG=INFO"
            )
        for pattern, reason in _REFUSED:
            if pattern.fullmatch(name):
                raise ValueError(f"--env {name}: {reason}")
        found[name] = value
    return found


def join_variables(variables: Mapping[str, str]) -> str:
    """Format variables as canonical text."""
    return shlex.join(f"{name}={variables[name]}" for name in sorted(variables))
