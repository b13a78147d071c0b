"""Which checkpoints of a run are kept."""

from __future__ import annotations

from collections.abc import Collection


def superfluous(
    *, complete: Collection[int], torn: Collection[int], keep_last: int, keep_every: int
) -> list[int]:
    """Steps whose checkpoints go, oldest first.

    Of the complete ones stay the ``keep_last`` newest and every multiple of ``keep_every`` (0:
    none). Torn ones go once a newer one is complete; a torn one that is the newest of all may
    still be being written.
    """
    assert keep_last >= 1, keep_last
    ordered = sorted(complete)
    kept = set(ordered[-keep_last:])
    if keep_every:
        kept |= {step for step in ordered if step % keep_every == 0}
    newest = ordered[-1] if ordered else -1
    old_torn = {step for step in torn if step < newest}
    return sorted((set(ordered) - kept) | old_torn)
