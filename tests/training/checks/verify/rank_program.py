"""One rank of the tests of verify: a part of them in turn; its last line is a JSON result."""

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


Found = dict[str, tuple[bool, str]]


def main(root: Path, part: str) -> Found:
    torch.set_num_threads(1)
    device = open_device(DeviceKind.CPU, timeout_s=120)
    found = {"essence": essence, "rest": rest}[part](root, device)
    device.close()
    return found


def essence(root: Path, device: Any) -> Found:
    """Each model that is right, and every defect once."""

    def llama(name: str, tolerance: Any, **more: Any) -> Any:
        return making.llama(LocalObjects(root / name), device, tolerance, **more)

    found = {
        "gradients": _pair(llama("healthy", FP32, tensor_parallel=2).gradients()),
        **making.whole_models(LocalObjects(root / "whole"), device, FP32),
        **_families(root, device, FP32, "Qwen3"),
    }
    for name, defect in LLAMA.items():
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            # The device's tolerance, which is the wider one.
            found[f"llama: {name}"] = _pair(llama(name, BF16, tensor_parallel=2).gradients())
    return found | _defects_of_families(root, device, "Qwen3")


def rest(root: Path, device: Any) -> Found:
    """The other family and degree, a run that goes on, and what else two of the defects spoil."""
    healthy = making.llama(LocalObjects(root / "healthy"), device, FP32, tensor_parallel=2)
    four = making.llama(LocalObjects(root / "four"), device, FP32)
    at_four = making.families(LocalObjects(root / "families at 4"), device, FP32)
    found = {}
    for name, defect in WHOLE.items():
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            objects = LocalObjects(root / f"whole {name}")
            for model, result in making.whole_models(objects, device, BF16).items():
                found[f"{model}: {name}"] = result
    return found | {
        "gradients at 4": _pair(four.gradients()),
        "resume": _pair(healthy.resume()),
        **_families(root, device, FP32, "Llama 3.2"),
        **{f"{name} at 4": result for name, result in at_four.items()},
        **_defects_of_families(root, device, "Llama 3.2"),
    }


def _families(root: Path, device: Any, tolerance: Any, name: str, of: str = "families") -> Found:
    return making.families(LocalObjects(root / of), device, tolerance, name, tensor_parallel=2)


def _defects_of_families(root: Path, device: Any, model: str) -> Found:
    found = {}
    for name, defect in FAMILIES.items():
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            of = f"families {name}"
            found[f"{model}: {name}"] = _families(root, device, BF16, model, of)[model]
    return found


def _pair(outcome: Any) -> tuple[bool, str]:
    return outcome.ok, outcome.detail


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
