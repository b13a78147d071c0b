"""Differences between two submissions of a run: files, arguments, parameters, nodes."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Mapping, Set

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.program.bundle import Bundle, fetch, listing_key
from jobs.program.record import Submitted
from trainium_catalogue.wording import counted

_MAX_SHOWN = 12
_MAX_LINES = 5_000
"""Longer files are only reported as changed."""


def changes(
    bucket: Bucket,
    run: str,
    last: Submitted,
    new: Submitted,
    bundle: Bundle,
    *,
    as_arguments: Set[str] = frozenset(),
) -> Iterator[str]:
    """Yield the changes since the last submission.

    ``as_arguments`` are parameters that become arguments of the program, and are shown as such.
    """
    if last.shown != new.shown:
        yield f"program: {new.shown}, was {last.shown}"
    if last.code != new.code:
        yield from file_changes(bucket, run, last.code, bundle)
    if last.argv != new.argv:
        yield f"arguments: {shlex.join(new.argv) or 'none'}; were {shlex.join(last.argv) or 'none'}"
    for name in sorted({*last.parameters, *new.parameters} - as_arguments):
        was, now = last.parameters.get(name), new.parameters.get(name)
        if was != now:
            yield f"--{name}: {_value(now)}, was {_value(was)}"
    yield from _requirements(last, new)
    if last.num_nodes != new.num_nodes:
        yield f"nodes: {new.num_nodes}, were {last.num_nodes}"


def file_changes(bucket: Bucket, run: str, code: str, bundle: Bundle) -> Iterator[str]:
    """Yield the changes since an earlier bundle."""
    listing = bucket.document(listing_key(run, code))
    if listing is None:
        yield "files: changed; the earlier list of files no longer exists"
        return
    was = {str(file["path"]): str(file["sha256"]) for file in listing["files"]}
    now = {file.path: file.sha256 for file in bundle.files}
    modified = sorted(path for path in was.keys() & now.keys() if was[path] != now[path])
    added, removed = sorted(now.keys() - was.keys()), sorted(was.keys() - now.keys())
    modes = {str(file["path"]): int(file["mode"]) for file in listing["files"]}
    mode_changes = [
        f"{file.path} {'is' if file.mode & 0o100 else 'is no longer'} executable"
        for file in bundle.files
        if file.path in modes and (file.mode ^ modes[file.path]) & 0o100
    ]
    if not (modified or added or removed or mode_changes):
        return  # the same files, packed by another version of zlib
    old = _fetch_earlier(bucket, run, code) if modified or removed else {}
    new = bundle.contents() if modified or added else {}
    words = [
        *(f"{path} changed{_difference_text(old.get(path), new[path])}" for path in modified),
        *(f"{path} added{_size_text(new[path])}" for path in added),
        *(f"{path} removed{_size_text(old.get(path))}" for path in removed),
        *mode_changes,
    ]
    more = len(words) - _MAX_SHOWN
    shown = ", ".join(words[:_MAX_SHOWN])
    yield f"files: {shown}" + (f", and {more} more" if more > 0 else "")


def _fetch_earlier(bucket: Bucket, run: str, code: str) -> Mapping[str, bytes]:
    """Read the files of an earlier bundle; empty if it no longer exists."""
    try:
        return fetch(bucket, run, code)
    except Refusal:
        return {}


def _difference_text(old: bytes | None, new: bytes) -> str:
    """Describe the difference of a file in lines or bytes."""
    if old is None:
        return ""
    before, after = _lines(old), _lines(new)
    if before is None or after is None:
        return f" ({counted(len(old), 'byte')}, now {len(new):,})"
    if max(len(before), len(after)) > _MAX_LINES:
        return f" ({len(before):,} lines, now {len(after):,})"
    plus = minus = 0
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, low, high, first, last in matcher.get_opcodes():
        if tag != "equal":
            minus, plus = minus + high - low, plus + last - first
    return f" (+{plus} -{minus})"


def _size_text(data: bytes | None) -> str:
    """Format the size of a file in lines or bytes; "" if it is unknown."""
    if data is None:
        return ""
    lines = _lines(data)
    size = counted(len(data), "byte") if lines is None else counted(len(lines), "line")
    return f" ({size})"


def _lines(data: bytes) -> list[str] | None:
    """Split text into lines; None for binary data."""
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError:
        return None


def _requirements(last: Submitted, new: Submitted) -> Iterator[str]:
    was, now = _lines_of(last.requirements), _lines_of(new.requirements)
    if was != now:
        added, removed = sorted(now - was), sorted(was - now)
        words = [*(f"+ {line}" for line in added), *(f"- {line}" for line in removed)]
        yield f"requirements: {', '.join(words)}"


def _lines_of(requirements: Mapping[str, object] | None) -> set[str]:
    text = str((requirements or {}).get("text") or "")
    return {line.strip() for line in text.splitlines() if line.strip()}


def _value(value: object) -> str:
    return "not given" if value is None else str(value)
