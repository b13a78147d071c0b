"""The fake, compared with values recorded from neuronx_distributed (``tests/nxd/record.py``).

CI does not have the real package, only these values: losses and norms of a tiny Llama on one rank,
which the fake must reproduce within bf16's rounding, and of the same model on two and four; and
the backend's calls to NxD, in order.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from tests.nxd.cases import CASES, RECORDED_STEPS, STEPS, micro_batches, parts
from tests.nxd.record import PATH
from tests.training.llama import fake_nxd
from tests.training.llama.conftest import LoneDevice
from training.core.contract import DeviceKind

GOLDEN: dict[str, Any] = json.loads(PATH.read_text())
LOSS, NORM = 1e-3, 0.012
"""Relative, as in ``tests/nxd/test_gradients.py``."""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    """Return the losses, norms and calls of the same steps on the fake."""
    # Imports transformers first, which would otherwise find the fake torch_xla.
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
            if step == RECORDED_STEPS:
                found["calls"] = fake_nxd.names()
    return found


def test_values_were_recorded_for_the_current_computation() -> None:
    assert GOLDEN["arguments"] == list(CASES["one"].words)
    assert GOLDEN["versions"]["neuronx_distributed"] in ("0.17.0", "0.18.0")


@pytest.mark.parametrize("case", ["one", "tp2", "tp2dp2"])
def test_losses_and_norms_are_those_of_the_real_package(case: str, values: dict[str, Any]) -> None:
    real = GOLDEN["cases"][case]

    assert values["losses"] == pytest.approx(real["losses"], rel=LOSS)
    assert values["norms"] == pytest.approx(real["norms"], rel=NORM)
    assert real["losses"][-1] < real["losses"][0] - 1


def test_backend_makes_the_same_calls_in_the_same_order(values: dict[str, Any]) -> None:
    assert values["calls"] == GOLDEN["calls"]
