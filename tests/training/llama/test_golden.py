"""The fake, held to what the real neuronx_distributed has computed (``tests/nxd/record.py``).

Without the real package, this is what CI knows of it: losses and norms of a tiny Llama on one rank,
which the fake has to reproduce within bf16's rounding, and on two and four, which are the same
model; and what the back-end asks of NxD, in order.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from tests.nxd.cases import ASKED_STEPS, CASES, STEPS, micro_batches, parts
from tests.nxd.record import PATH
from tests.training.llama import fake_nxd
from tests.training.llama.conftest import LoneDevice
from training.core.contract import DeviceKind

GOLDEN: dict[str, Any] = json.loads(PATH.read_text())
LOSS, NORM = 1e-3, 0.012
"""Relative, as in ``tests/nxd/test_gradients.py``."""


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """Of the same steps on the fake."""
    # Imports transformers now, which would look for torch_xla and find the fake.
    import_module("training.models.llama.network")
    found: dict[str, Any] = {"losses": [], "norms": []}
    with pytest.MonkeyPatch.context() as patch:
        fake_nxd.install(patch)
        config, backend, batch = parts(CASES["one"], LoneDevice(DeviceKind.XLA))
        backend.build()
        for step in range(1, STEPS + 1):
            loss = micro_batches(config, backend, batch, step)
            norm = backend.clip_and_step(config.learning_rate_at(step))
            found["losses"].append(backend.mean_over_data(loss))
            found["norms"].append(backend.fetch(norm))
            if step == ASKED_STEPS:
                found["asked"] = fake_nxd.names()
    return found


def test_the_figures_were_recorded_for_what_is_computed_here() -> None:
    assert GOLDEN["words"] == list(CASES["one"].words)
    assert GOLDEN["versions"]["neuronx_distributed"] in ("0.17.0", "0.18.0")


@pytest.mark.parametrize("case", ["one", "tp2", "tp2dp2"])
def test_losses_and_norms_are_those_of_the_real_package(case: str, figures: dict[str, Any]) -> None:
    real = GOLDEN["cases"][case]

    assert figures["losses"] == pytest.approx(real["losses"], rel=LOSS)
    assert figures["norms"] == pytest.approx(real["norms"], rel=NORM)
    assert real["losses"][-1] < real["losses"][0] - 1


def test_the_backend_asks_for_the_same_in_the_same_order(figures: dict[str, Any]) -> None:
    assert figures["asked"] == GOLDEN["asked"]
