"""The verify workload: passes and findings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.llama.conftest import CONTEXT, LoneDevice, Watched
from training.core.arguments import parse
from training.core.job import Job
from training.core.ranks import Ranks
from training.diagnostics.allreduce.sweep import sum_pattern, tile
from training.diagnostics.probes import PROBES
from training.diagnostics.verify import checks, verification
from training.diagnostics.verify.reference import deviations
from training.diagnostics.verify.settings import STEPS
from training.diagnostics.verify.verification import Verification, VerificationFailed, run
from training.storage.results import ResultFiles
from training.workloads import IMPLEMENTATIONS
from trainium_catalogue.parameters.verify import CHECKS
from trainium_catalogue.probing import ProbeResult, Probes, ProbeSite, is_intact


def job(folder: Path, *words: str, device: LoneDevice | None = None) -> Job:
    device = device or LoneDevice()
    request = parse(["verify", *words])
    return Job(
        context=replace(CONTEXT, run="check", device=device.kind),
        values=request.values,
        given=request.given,
        device=device,
        progress=Watched(folder, lambda text: None),
        store=ResultFiles(root=folder, run="check", workload="verify", attempt=1, bucket=None),
    )


def result(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "runs/check/results/verify.json").read_text())
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which every check has passed."""
    folder = tmp_path_factory.mktemp("verify")
    run(job(folder))
    return folder


# `make rehearse` runs every check on two nodes, and reads the probes.
@pytest.mark.full
def test_a_cpu_passes_every_check(passed: Path) -> None:
    document = result(passed)
    assert document["status"] == "passed"
    assert [name for name, check in document["checks"].items() if check["ok"]] == [
        "sums", "gradients", "parity", "resume", "families", "data-parallel", "cache",
    ]  # fmt: skip


@pytest.mark.full
def test_the_committed_losses_are_those_of_the_reference_and_of_this_code(passed: Path) -> None:
    found = [(step["loss"], step["grad_norm"]) for step in result(passed)["steps"]]
    # Else: python -m training.diagnostics.verify.checks > training/diagnostics/verify/golden.json
    assert len(found) == STEPS
    assert deviations(found, checks.golden()) == pytest.approx((0.0, 0.0), abs=1e-4)


@pytest.mark.full
def test_a_resumed_cpu_repeats_its_steps_exactly(passed: Path) -> None:
    detail = result(passed)["checks"]["resume"]["detail"]
    assert "the next 4 losses and norms are off by 0.0e+00" in detail


def test_only_the_named_checks_run_in_their_own_order(tmp_path: Path) -> None:
    run(job(tmp_path, "--checks=cache,sums"))
    assert list(result(tmp_path)["checks"]) == ["sums", "cache"]


def test_an_unknown_check_is_refused_before_any_worker_starts() -> None:
    values = parse(["verify", "--checks=sums,speed"]).values
    with pytest.raises(ValueError, match="names 'speed'; known checks: sums, gradients, parity"):
        IMPLEMENTATIONS["verify"].check(values, 2)


def test_the_catalogue_names_the_existing_checks(tmp_path: Path) -> None:
    assert tuple(Verification(job(tmp_path), Ranks.open()).checks) == CHECKS


def test_a_check_that_cannot_run_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="graphs cannot run: on cpu compilations cannot"):
        run(job(tmp_path, "--checks=graphs"))


def test_an_impossible_degree_is_refused_before_any_worker_starts() -> None:
    values = parse(["verify", "--tensor-parallel=32"]).values
    with pytest.raises(ValueError, match="tensor-parallel=32 does not divide num-heads=16"):
        IMPLEMENTATIONS["verify"].check(values, 32)


class Liar(LoneDevice):
    """Add one to the first element."""

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        tensor[0] += 1


class Wide(LoneDevice):
    """One of many ranks; the others contribute only their sums."""

    def all_reduce(self, tensor: torch.Tensor, *, maximum: bool = False) -> None:
        tensor.copy_(tile(sum_pattern(self.num_ranks), tensor.numel(), tensor.dtype))


def test_a_wrong_sum_is_detected_and_the_result_written(tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="sums: wrong on 1 rank, first on rank 0"):
        run(job(tmp_path, "--checks=sums,cache", device=Liar()))
    assert result(tmp_path)["status"] == "failed"
    assert result(tmp_path)["checks"]["cache"]["ok"] is True


def test_different_losses_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shifted = [(loss * 1.001, norm) for loss, norm in checks.golden()]
    monkeypatch.setattr(checks, "golden", lambda: shifted)
    with pytest.raises(VerificationFailed, match=r"parity: .* off by 1.0e-03 \(tolerance 1e-04\)"):
        run(job(tmp_path, "--checks=parity"))


def probed(folder: Path) -> dict[str, Any]:
    document = json.loads((folder / "runs/check/results/probes.json").read_text())
    assert isinstance(document, dict)
    return document


@pytest.mark.full
def test_a_record_of_the_probes_is_written_next_to_the_result(passed: Path) -> None:
    document = probed(passed)
    assert is_intact(document)
    assert {finding["id"] for finding in document["findings"]} == set(PROBES.by_id)
    assert "crashed" not in {finding["state"] for finding in document["findings"]}


def test_a_crashed_check_is_named_and_earlier_probes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: Any, **named: Any) -> None:
        raise RuntimeError("nrt_init failed")

    monkeypatch.setattr(verification, "open_backend", fail)
    with pytest.raises(VerificationFailed, match=r"check parity crashed: .*nrt_init failed"):
        run(job(tmp_path, "--checks=parity"))
    findings = {finding["id"]: finding for finding in probed(tmp_path)["findings"]}
    assert findings["eager-attention-compiles"]["needs"] == ["neuron", "check parity"]


def test_a_red_or_crashed_probe_does_not_fail_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(node: Any) -> Any:
        raise RuntimeError("no way")

    made: Probes[Any] = Probes(ProbeSite.NODE)
    made.probe("crashes")(crash)
    made.probe("differs")(lambda node: ProbeResult(ok=False, seen="3", expected="2"))
    monkeypatch.setattr("training.diagnostics.probes.node.PROBES", made)
    monkeypatch.setattr(verification, "PROBES", made)
    run(job(tmp_path, "--checks=cache"))
    assert result(tmp_path)["status"] == "passed"
    assert [finding["state"] for finding in probed(tmp_path)["findings"]] == ["crashed", "red"]


def test_ranks_that_cannot_share_the_batch_run_the_other_checks(tmp_path: Path) -> None:
    wide = Wide(num_ranks=40)
    with pytest.raises(ValueError, match="parity cannot run: global-batch=96 is not a multip"):
        run(job(tmp_path, "--checks=parity", device=wide))
    run(job(tmp_path, "--checks=sums,cache", device=wide))
    assert list(result(tmp_path)["checks"]) == ["sums", "cache"]


def test_non_finite_numbers_are_infinitely_far() -> None:
    assert deviations([(float("nan"), 1.0)], [(1.0, 1.0)]) == (float("inf"), 0.0)
