"""Arguments that a program is given only once there is something to resume from.

Many programs take the path of a checkpoint, and end with an error if there is none, so that the
first attempt must do without what every later one needs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

_NUMBER = re.compile(r"(\d+)")


def split(text: str) -> tuple[str, ...]:
    """Split the parameter into words as a shell does; raises ``ValueError`` with a remedy."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(
            f"--resume-arguments {text}: {str(error).lower()}; close every quote in it"
        ) from None


def resume_arguments(words: Sequence[str], working: Path, kept: Path) -> tuple[str, ...]:
    """Arguments to add, now that the kept folder has been given back.

    A path in the kept folder, alone or after ``=``, must exist, or nothing is added: there may be
    a snapshot from before the first checkpoint. In place of one with a wildcard the match with the
    highest number is given, ``out/checkpoint-20`` for ``out/checkpoint-*``.
    """
    result = []
    for word in words:
        name, mark, path = word.rpartition("=")
        if not _is_kept(path, working, kept):
            result.append(word)
            continue
        matches = [str(match.relative_to(working)) for match in working.glob(path)]
        if not matches:
            return ()
        result.append(f"{name}{mark}{max(matches, key=_in_order)}")
    return tuple(result)


def _is_kept(path: str, working: Path, kept: Path) -> bool:
    # If everything is kept, words cannot be told from names of files, unless they have wildcards.
    if not path or Path(path).is_absolute():
        return False
    below = kept != working and (working / path).is_relative_to(kept)
    return below or any(character in path for character in "*?[")


def _in_order(path: str) -> list[tuple[int, str]]:
    """Order numbers in names by their value."""
    parts = _NUMBER.split(path)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
