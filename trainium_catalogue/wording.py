"""Formatting of counts and alternatives."""

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """Format a number of things: 1 node, 2 nodes."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def either(alternatives: Iterable[object]) -> str:
    """List alternatives: a; a or b; a, b or c."""
    listed = [str(each) for each in alternatives]
    return " or ".join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))
