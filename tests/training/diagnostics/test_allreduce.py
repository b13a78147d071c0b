"""The all-reduce workload: its results and findings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.checkpoint.documents import assert_valid
from tests.training.llama.conftest import LoneDevice
from tests.training.nodes import CPU_NODE
from training.core.arguments import parse
from training.core.contract import DeviceKind, NodeContract
from training.core.device import Device
from training.core.job import Job
from training.core.progress import WorkerProgress
from training.diagnostics.allreduce.allreduce import BelowBar, WrongSum, run
from training.diagnostics.allreduce.sweep import BAR, compare, rank_pattern, sum_pattern, tile
from training.storage.results import ResultFiles

if TYPE_CHECKING:
    pass


def identity(values: torch.Tensor) -> torch.Tensor:
    return values


@dataclass
class AllReduceDevice(LoneDevice):
    """A single-rank group whose sums may be corrupted."""

    spoil: Callable[[torch.Tensor], torch.Tensor] = identity

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        tensor.copy_(self.spoil(tensor))


ALONE = replace(CPU_NODE, run="alone", job_id="local")


def run_alone(
    folder: Path, device: Device, *words: str, context: NodeContract = ALONE
) -> dict[str, Any]:
    """Run the workload on one rank; return its result, which is written even if it raises."""
    store = ResultFiles(root=folder, run="alone", workload="all-reduce", attempt=1, bucket=None)
    request = parse(["all-reduce", *words])
    job = Job(
        context=context,
        values=request.values,
        given=request.given,
        device=device,
        progress=WorkerProgress(folder, local_rank=0, rank=0),
        store=store,
    )
    run(job)
    lines = (folder / "runs/alone/metrics/all-reduce.jsonl").read_text().splitlines()
    for line in lines:
        assert_valid(json.loads(line), "metrics-line.schema.json")
    result = result_of(folder)
    events = ["start", *["size"] * len(result["sizes"]), "end"]
    assert [json.loads(line)["event"] for line in lines] == events
    return result


def result_of(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "runs/alone/results/all-reduce.json").read_text())
    assert_valid(document, "all-reduce-result.schema.json")
    assert isinstance(document, dict)
    return document


def to_bf16(values: torch.Tensor) -> torch.Tensor:
    if values.dtype != torch.float32:
        return values
    return values.to(torch.bfloat16).to(torch.float32)


def test_arithmetic_in_bf16_is_detected(tmp_path: Path) -> None:
    def spoil(values: torch.Tensor) -> torch.Tensor:
        return to_bf16(hand_out_sums_of_64(values))

    device = AllReduceDevice(num_ranks=64, spoil=spoil)

    with pytest.raises(WrongSum, match="fp32 is wrong in"):
        run_alone(tmp_path, device, "--max-bytes=4096")

    result = result_of(tmp_path)
    assert (result["status"], result["sizes"]) == ("failed", [])
    assert [check["correct"] for check in result["checks"]] == [True, True, False]


def test_one_wrong_element_is_detected_and_named(tmp_path: Path) -> None:
    def spoil(values: torch.Tensor) -> torch.Tensor:
        wrong = values.clone()
        if len(wrong) > 1000:
            wrong[777] += 1
        return wrong

    with pytest.raises(WrongSum, match="element 777 is "):
        run_alone(tmp_path, AllReduceDevice(spoil=spoil), "--max-bytes=4096")


def test_the_sweep_ends_at_its_time_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(values: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return values

    result = run_alone(
        tmp_path,
        AllReduceDevice(spoil=slow),
        "--max-bytes=65536",
        "--total-seconds=1",
        "--seconds-per-size=0.3",
        "--size-factor=2",
    )

    assert result["skipped_sizes"][-1] == 2**16
    assert all(20_000 <= size["p50_us"] < 1e9 for size in result["sizes"])
    assert result["duration_s"] < 3
    assert "total-seconds is exhausted" in capsys.readouterr().out


def hand_out_sums_of_64(values: torch.Tensor) -> torch.Tensor:
    """Return the sums of 64 ranks; counts, times and zeros are unchanged."""
    if values.numel() <= 20 or not values.any():
        return values
    return tile(sum_pattern(64), values.numel(), values.dtype)


@pytest.mark.parametrize("require", [False, True])
def test_low_bandwidth_fails_the_job_only_on_request(
    require: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The published bar is at 1 GiB; the same rule at a test's size.
    low = replace(BAR, num_bytes=4096, busbw_gib_per_s=1e9)
    monkeypatch.setattr("training.diagnostics.allreduce.sweep.BAR", low)
    device = AllReduceDevice(num_ranks=64, spoil=hand_out_sums_of_64)
    context = replace(
        ALONE,
        device=DeviceKind.XLA,
        instance_type="trn1.32xlarge",
        num_nodes=2,
        processes_per_node=32,
    )
    words = ["--max-bytes=4096", *(["--require-bar"] if require else [])]

    with pytest.raises(BelowBar) if require else nullcontext():
        run_alone(tmp_path, device, *words, context=context)

    result = result_of(tmp_path)
    assert result["bar"]["status"] == "below"
    assert result["status"] == ("failed" if require else "passed")


@given(st.integers(1, 3000), st.sets(st.integers(0, 2999), max_size=5))
def test_comparison_counts_exactly_the_wrong_elements(length: int, places: set[int]) -> None:
    pattern = rank_pattern(3)
    found = tile(pattern, length, torch.float32)
    inside = sorted(place for place in places if place < length)
    found[inside] += 1

    wrong, example = compare(found, pattern)

    assert wrong == len(inside)
    assert (f"element {inside[0]} is" in example) if inside else example == ""
