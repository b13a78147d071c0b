"""The wording of "did you mean", in one place."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for a near miss, else the list of known names."""
    names = sorted(str(name) for name in known)
    spelled = {name.lower(): name for name in names}
    nearest = get_close_matches(value.lower(), spelled, n=1, cutoff=0.6)
    if nearest:
        return f"did you mean {spelled[nearest[0]]!r}?"
    return f"known are {', '.join(names)}"
