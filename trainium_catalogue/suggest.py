"""Suggestions for misspelled names."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for a near miss, otherwise the list of known names."""
    names = sorted(str(name) for name in known)
    near = nearest(value, names)
    return f"known: {', '.join(names)}" if near is None else f"did you mean {near!r}?"


def nearest(value: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name nearest to ``value``; None if none is similar enough.

    ``cutoff`` is difflib's minimum similarity.
    """
    spelled = {name.lower(): name for name in sorted(known)}
    found = get_close_matches(value.lower(), spelled, n=1, cutoff=cutoff)
    return spelled[found[0]] if found else None
