"""Retention of checkpoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from training.checkpoint.folders import checkpoints_to_delete

steps = st.sets(st.integers(0, 60))


@given(steps, steps, st.integers(1, 5), st.integers(0, 20))
def test_only_the_newest_and_the_multiples_are_retained(
    complete: set[int], torn: set[int], keep_last: int, keep_every: int
) -> None:
    torn -= complete
    gone = checkpoints_to_delete(
        complete=complete, torn=torn, keep_last=keep_last, keep_every=keep_every
    )
    stay = complete - set(gone)

    newest = set(sorted(complete)[-keep_last:])
    multiples = {step for step in complete if keep_every and step % keep_every == 0}
    assert stay == newest | multiples
    assert torn & set(gone) == {step for step in torn if complete and step < max(complete)}
