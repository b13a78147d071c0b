"""One rank of the tests of verify: all defects in turn; its last line is a JSON result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checks.verify import making
from training.checks.verify.settings import BF16, FP32
from training.core.contract import DeviceKind
from training.core.device import open_device
from training.storage import LocalObjects

LLAMA = {
    "lost sum": making.lose_sum_of_input_gradients,
    "sum, not mean": making.sum_over_data_ranks,
    "one rank's data": making.take_one_ranks_data,
    "local norm": making.clip_by_local_norm,
    "ranks swapped": making.swap_ranks_of_a_model,
}
FAMILIES = {
    "local gradients": making.keep_gradients_of_head_norms,
    "untied": making.untie,
}
WHOLE = {"sum, not mean": making.sum_over_data_ranks, "one rank's data": making.take_one_ranks_data}


def main(root: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    device = open_device(DeviceKind.CPU, timeout_s=120)
    found: dict[str, Any] = {}

    def llama(name: str, tolerance: Any, **more: Any) -> Any:
        return making.llama(LocalObjects(root / name), device, tolerance, **more)

    checks = llama("healthy", FP32, tensor_parallel=2)
    for check in (checks.gradients, checks.resume):
        outcome = check()
        found[outcome.check] = (outcome.ok, outcome.detail)
    found["gradients at 4"] = _pair(llama("four", FP32).gradients())
    found |= making.whole_models(LocalObjects(root / "whole"), device, FP32)
    found |= making.families(LocalObjects(root / "families"), device, FP32, tensor_parallel=2)
    at_four = making.families(LocalObjects(root / "families at 4"), device, FP32)
    found |= {f"{name} at 4": result for name, result in at_four.items()}
    for name, defect in FAMILIES.items():
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            objects = LocalObjects(root / f"families {name}")
            for model, result in making.families(objects, device, BF16, tensor_parallel=2).items():
                found[f"{model}: {name}"] = result
    for name, defect in LLAMA.items():
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            # The device's tolerance, which is the wider one.
            found[f"llama: {name}"] = _pair(llama(name, BF16, tensor_parallel=2).gradients())
    for name, defect in WHOLE.items():
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            objects = LocalObjects(root / f"whole {name}")
            for model, result in making.whole_models(objects, device, BF16).items():
                found[f"{model}: {name}"] = result
    device.close()
    return found


def _pair(outcome: Any) -> tuple[bool, str]:
    return outcome.ok, outcome.detail


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
