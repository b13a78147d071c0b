"""One rank of verify's tests; its last line is a JSON result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.training.diagnostics.verify import making
from training.core.contract import DeviceKind
from training.core.device import open_device
from training.diagnostics.verify.settings import BF16, FP32, Tolerance
from training.storage import LocalObjects

LLAMA = {
    "lost sum": making.lose_sum_of_input_gradients,
    "sum, not mean": making.sum_over_data_ranks,
    "local norm": making.clip_by_local_norm,
    "ranks swapped": making.swap_ranks_of_a_model,
}
FAMILIES = {
    "local gradients": making.keep_gradients_of_qk_norms,
}


Found = dict[str, tuple[bool, str]]


def main(root: Path) -> Found:
    """Check each correct model, and every defect once."""
    torch.set_num_threads(1)
    device = open_device(DeviceKind.CPU, timeout_s=120)

    def llama(name: str, tolerance: Tolerance) -> tuple[bool, str]:
        checks = making.llama(LocalObjects(root / name), device, tolerance, tensor_parallel=2)
        outcome = checks.gradients()
        return outcome.ok, outcome.detail

    def qwen3(name: str, tolerance: Tolerance) -> tuple[bool, str]:
        objects = LocalObjects(root / f"families {name}")
        return making.models(objects, device, tolerance, "Qwen3", tensor_parallel=2)["Qwen3"]

    found = {
        "gradients": llama("healthy", FP32),
        **making.models(LocalObjects(root / "whole"), device, FP32, "BERT", "digits"),
        "Qwen3": qwen3("healthy", FP32),
    }
    for model, check, defects in (("llama", llama, LLAMA), ("Qwen3", qwen3, FAMILIES)):
        for name, defect in defects.items():
            with pytest.MonkeyPatch.context() as patch:
                defect(patch)
                # The device's tolerance, the wider one.
                found[f"{model}: {name}"] = check(name, BF16)
    device.close()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
