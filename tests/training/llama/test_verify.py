"""The verify workload: what it passes, and what it finds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.llama import nxd_standin
from tests.training.llama.conftest import CONTEXT, LoneDevice, Watched
from training.arguments import parse
from training.contract import DeviceKind
from training.payload import tile
from training.probes import PROBES
from training.results import Store
from training.sweep import sum_pattern
from training.verify import verification as verify
from training.verify.data import tokens as batch
from training.verify.llama import golden
from training.verify.outcome import deviations
from training.verify.settings import BF16, FP32, STEPS, config_for
from training.verify.verification import VerificationFailed
from training.workloads import Job
from trainium_catalogue.probing import Place, Probes, Seen, is_intact


def job(folder: Path, *words: str, device: LoneDevice | None = None) -> Job:
    device = device or LoneDevice()
    request = parse(["verify", *words])
    return Job(
        context=replace(CONTEXT, run="check", device=device.kind.value),
        values=request.values,
        given=request.given,
        device=device,
        progress=Watched(folder, lambda text: None),
        store=Store(root=folder, run="check", workload="verify", attempt=1, bucket=None),
    )


def result(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "runs/check/results/verify.json").read_text())
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every check has passed."""
    folder = tmp_path_factory.mktemp("verify")
    verify.run(job(folder))
    return folder


def test_a_cpu_passes_every_check(passed: Path) -> None:
    document = result(passed)
    assert document["status"] == "passed"
    assert {name for name, check in document["checks"].items() if check["ok"]} == {
        "sums", "parity", "resume", "cache",
    }  # fmt: skip


def test_the_committed_losses_are_those_of_this_code(passed: Path) -> None:
    found = [(step["loss"], step["grad_norm"]) for step in result(passed)["steps"][:STEPS]]
    # Else: python -m training.verify_model > training/verify_golden.json
    assert deviations(found, golden()) == pytest.approx((0.0, 0.0), abs=1e-4)


def test_the_loss_falls_far_more_than_the_tolerance() -> None:
    losses = [loss for loss, _ in golden()]
    assert losses[-1] < losses[0] * (1 - 10 * BF16.loss)
    assert FP32.loss < BF16.loss


def test_a_resumed_cpu_repeats_its_losses_exactly(passed: Path) -> None:
    assert "the next 4 losses are off by 0.0e+00" in result(passed)["checks"]["resume"]["detail"]


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 32, 64])
def test_every_instance_type_can_share_the_batch(num_ranks: int) -> None:
    assert config_for(num_ranks).plan.num_ranks == num_ranks


def test_tokens_depend_on_their_position_alone() -> None:
    assert torch.equal(batch(range(8))[5:], batch(range(5, 8)))
    assert int(batch(range(64)).max()) < 512


def test_only_the_checks_that_are_named_are_made(tmp_path: Path) -> None:
    verify.run(job(tmp_path, "--checks=cache,sums"))
    assert list(result(tmp_path)["checks"]) == ["cache", "sums"]


def test_a_check_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names 'speed'; there are sums, parity, resume, cache"):
        verify.run(job(tmp_path, "--checks=sums,speed"))


class Liar(LoneDevice):
    """Adds one to the first element."""

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        tensor[0] += 1


class Wide(LoneDevice):
    """One of 128 ranks, the others of which have sent nothing but their sums."""

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        tensor.copy_(tile(sum_pattern(self.num_ranks), tensor.numel(), tensor.dtype))


def test_a_wrong_sum_is_found_and_the_result_written(tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="sums: wrong on 1 ranks, first on rank 0"):
        verify.run(job(tmp_path, "--checks=sums,cache", device=Liar()))
    assert result(tmp_path)["status"] == "failed"
    assert result(tmp_path)["checks"]["cache"]["ok"] is True


def test_other_losses_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shifted = [(loss * 1.001, norm) for loss, norm in golden()]
    monkeypatch.setattr(verify, "golden", lambda: shifted)
    monkeypatch.setattr(verify, "train", _recorded(golden()))
    with pytest.raises(VerificationFailed, match=r"parity: .* off by 1.0e-03 of 1e-04"):
        verify.run(job(tmp_path, "--checks=parity"))


def test_a_resumed_run_that_begins_anew_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What NxD does whose checkpoints lack the master weights: the loss is that of the beginning.
    monkeypatch.setattr(verify, "train", _recorded([*golden(), *golden()[:4]]))
    with pytest.raises(VerificationFailed, match="resume: after step-00000004"):
        verify.run(job(tmp_path, "--checks=resume"))


def _recorded(steps: Sequence[tuple[float, float]]) -> Any:
    rest = list(steps)

    def train(backend: Any, config: Any, asked: range, report: Any) -> list[tuple[float, float]]:
        return [rest.pop(0) for _ in asked]

    return train


def probed(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "runs/check/results/probes.json").read_text())
    assert isinstance(document, dict)
    return document


def test_a_record_of_the_probes_is_left_beside_the_result(passed: Path) -> None:
    document = probed(passed)
    assert is_intact(document)
    assert {finding["id"] for finding in document["findings"]} == set(PROBES.by_id)
    assert "crashed" not in {finding["state"] for finding in document["findings"]}


def test_the_probes_before_a_check_that_breaks_off_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: Any) -> None:
        raise RuntimeError("nrt_init failed")

    monkeypatch.setattr(verify, "train", fail)
    with pytest.raises(VerificationFailed):
        verify.run(job(tmp_path, "--checks=parity"))
    findings = {finding["id"]: finding for finding in probed(tmp_path)["findings"]}
    assert findings["eager-attention-compiles"]["needs"] == ["neuron", "check parity"]


def test_a_red_or_crashed_probe_fails_no_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(node: Any) -> Any:
        raise RuntimeError("no way")

    made: Probes[Any] = Probes(Place.NODE)
    made.probe("crashes")(crash)
    made.probe("differs")(lambda node: Seen(ok=False, seen="3", expected="2"))
    monkeypatch.setattr("training.probes.survey.PROBES", made)
    monkeypatch.setattr(verify, "PROBES", made)
    verify.run(job(tmp_path, "--checks=cache"))
    assert result(tmp_path)["status"] == "passed"
    assert [finding["state"] for finding in probed(tmp_path)["findings"]] == ["crashed", "red"]


def test_more_ranks_than_the_batch_has_room_for_make_the_other_checks(tmp_path: Path) -> None:
    verify.run(job(tmp_path, device=Wide(num_ranks=128)))
    assert list(result(tmp_path)["checks"]) == ["sums", "cache"]
    with pytest.raises(ValueError, match="128 ranks cannot share the batch of parity, 64 can"):
        verify.run(job(tmp_path, "--checks=parity", device=Wide(num_ranks=128)))


def test_an_error_inside_a_check_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: Any) -> None:
        raise RuntimeError("nrt_init failed")

    monkeypatch.setattr(verify, "train", fail)
    with pytest.raises(VerificationFailed, match=r"check parity broke off: .*nrt_init failed"):
        verify.run(job(tmp_path, "--checks=parity"))


def test_numbers_that_are_none_are_infinitely_far() -> None:
    assert deviations([(float("nan"), 1.0)], [(1.0, 1.0)]) == (float("inf"), 0.0)


def test_the_nxd_backend_passes_on_its_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nxd_standin.install(monkeypatch)
    verify.run(job(tmp_path, "--checks=parity,resume", device=LoneDevice(DeviceKind.XLA)))
    assert "nxd" in result(tmp_path)["checks"]["resume"]["detail"]
