"""Environment variables that a user gives a program: how they are written, and which may not be."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"TRAINIUM_.*"),
        "this project sets it itself; give it a name of your own",
    ),
    (
        re.compile(r"AWS_.*"),
        "it would redirect what the launcher does in AWS; a program that needs the job's role gets "
        "it with --aws-credentials, and can be told a region as an argument",
    ),
    (
        re.compile(r"RANK|WORLD_SIZE|(?:LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC)_.*"),
        "torchrun sets it for each process; leave it out",
    ),
    (
        re.compile(r"PYTHONPATH|PYTHONHOME"),
        "it would change what torchrun itself imports; name the folder to import from with "
        "--workdir, or add to sys.path in the program",
    ),
)


def split_variables(text: str) -> dict[str, str]:
    """Read variables that are quoted as for a shell; ``ValueError`` with reason and remedy."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"--env {text}: {str(error).lower()}; close every quote in it") from None
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ValueError(
                f"--env {word}: a variable is NAME=VALUE, and its name of letters, digits and "
                "underscores, no digit first; write --env NCCL_DEBUG=INFO, for example"
            )
        for pattern, reason in _REFUSED:
            if pattern.fullmatch(name):
                raise ValueError(f"--env {name}: {reason}")
        found[name] = value
    return found


def join_variables(variables: Mapping[str, str]) -> str:
    """Write variables as one text, the same for the same variables."""
    return shlex.join(f"{name}={variables[name]}" for name in sorted(variables))
