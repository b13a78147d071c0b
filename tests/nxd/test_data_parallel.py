"""BERT's and MNIST's backend on torch_xla's functions, on several ranks, against the native one.

Judged are initial weights, gradients and their mean over the ranks, clipping, updates, dropout as a
function of the data's position, and that nothing depends on the number of ranks. torch_xla's
buckets, ``all_reduce_bucketized_gradients``, is the real one. Device-specific behaviour is not
judged: summation order of collectives, random numbers (here torch's), and the compiler's rounding.
torch_xla's CPU device has one rank, so graphs of several ranks cannot be executed; those of one are
counted (``test_compilations``).
"""

from __future__ import annotations

import pytest

from tests.nxd.figures import Figures, distance

pytestmark = pytest.mark.timeout(900)
EXACT = 2e-5
"""Of fp32, whose sums are made in another order."""
BERTS = ("bert-xla-1", "bert-xla-2", "bert-xla-4")
DIGITS = (("mnist-xla-2", "mnist-native-2"), ("mnist-xla-4", "mnist-native-4"))
PAIRS = (*((name, "bert-native-1") for name in BERTS), *DIGITS)


@pytest.mark.parametrize(("name", "native"), PAIRS)
def test_losses_and_norms_are_those_of_the_native_backend(
    name: str, native: str, figures: Figures
) -> None:
    mine, theirs = figures.of(name), figures.of(native)

    assert mine["losses"] == pytest.approx(theirs["losses"], rel=EXACT)
    assert mine["norms"] == pytest.approx(theirs["norms"], rel=EXACT)
    assert all(rank == mine["ranks"][0] for rank in mine["ranks"])


@pytest.mark.parametrize(("name", "native"), PAIRS)
def test_every_gradient_is_that_of_the_native_backend(
    name: str, native: str, figures: Figures
) -> None:
    assert distance(figures.initial(name), figures.initial(native)) == {
        parameter: 0 for parameter in figures.initial(native)
    }
    found = distance(figures.gradients(name), figures.gradients(native))
    print(f"{name}: gradients within {max(found.values()):.1e}")

    # A moment is exact; a step of gradient descent is a difference of weights.
    assert max(found.values()) < (EXACT if name.startswith("bert") else 1e-3), found


def test_bf16_stays_within_its_rounding(figures: Figures) -> None:
    mixed, exact = figures.of("bert-xla-mixed-2"), figures.of("bert-native-1")
    found = distance(figures.gradients("bert-xla-mixed-2"), figures.gradients("bert-native-1"))
    # Attention is invariant to it: its gradient is pure rounding.
    found = {name: value for name, value in found.items() if not name.endswith("key.bias")}
    print(f"bf16: gradients within {max(found.values()):.4f}")

    assert max(found.values()) < 0.04, found
    assert mixed["losses"] == pytest.approx(exact["losses"], rel=1e-3)
    assert mixed["norms"] == pytest.approx(exact["norms"], rel=0.012)
