"""The check ``attention`` on the fake: green with a correct kernel, red with others."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.training.llama import fake_nxd
from tests.training.llama.conftest import LoneDevice
from training.core.contract import DeviceKind
from training.core.ranks import Ranks
from training.diagnostics.probes import VerifyResult
from training.diagnostics.verify import checks
from training.diagnostics.verify.attention import NAMES
from training.diagnostics.verify.settings import BF16

REFERENCE = fake_nxd.nki_flash_attn_func


def outcome(monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., Any]) -> VerifyResult:
    fake_nxd.install(monkeypatch)
    place = sys.modules["neuronx_distributed.kernels.flash_attn"]
    monkeypatch.setattr(place, "nki_flash_attn_func", kernel)
    return checks.attention(LoneDevice(DeviceKind.XLA), BF16, Ranks.open())


def test_a_correct_kernel_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(monkeypatch, REFERENCE)

    assert found.ok, found.detail
    assert all(name in found.detail for name in NAMES)


def test_a_kernel_that_loses_its_gradient_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward_only(query: Any, key: Any, value: Any, **asked: Any) -> Any:
        result = REFERENCE(query, key.detach(), value, **asked)
        return result + 0 * key.sum()

    found = outcome(monkeypatch, forward_only)

    assert not found.ok
    assert "of keys 1.0e+00" in found.detail


@pytest.mark.parametrize("place", [0, 1])
def test_non_finite_numbers_fail_on_any_rank(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    class Two(Ranks):
        def gather(self, mine: Any) -> list[Any]:
            found = [mine, dict(mine)]
            found[place] = {name: math.nan for name in NAMES}
            return found

    fake_nxd.install(monkeypatch)
    found = checks.attention(LoneDevice(DeviceKind.XLA), BF16, Two())

    assert not found.ok
    assert "result nan" in found.detail
