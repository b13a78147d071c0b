"""Llama-2-7B on 128 ranks, sharded by the training code without any rank."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from training.launch import main as launch
from training.models.llama.dry_run import DoesNotFit, DryRun, dry_run, main
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.parameters.layout import Recompute
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import GIB
from trainium_catalogue.workloads import find_workload

TRN1 = find_instance_type("trn1.32xlarge")


def defaults(name: str, **changed: Value) -> dict[str, Value]:
    values = {p.name: p.default for p in find_workload(name).parameters}
    return values | {key.replace("_", "-"): value for key, value in changed.items()}


@pytest.fixture(scope="module")
def full_size() -> DryRun:
    return dry_run("llama2-7b", defaults("llama2-7b"), num_nodes=4, instance_type=TRN1)


def test_the_plan_counts_the_parameters_that_pytorch_shards(full_size: DryRun) -> None:
    assert full_size.shards.tensor_parallel == full_size.plan.parameters_per_rank == 842_534_912
    assert full_size.shards.data_parallel == full_size.plan.optimizer_parameters_per_rank
    assert full_size.shards.data_parallel == 52_658_432


def test_the_plan_counts_the_bytes_of_a_rank_and_of_a_checkpoint(full_size: DryRun) -> None:
    memory, plan = full_size.memory, full_size.plan
    assert memory.weights + memory.gradients + memory.optimizer == plan.state_bytes_per_rank
    moments_and_masters = 12 * sum(
        rows * columns if columns else rows
        for rows, columns in [
            (32000, 4096), (32000, 4096), (4096, 0),
            *[(4096, 4096)] * 4 * 32, *[(11008, 4096)] * 3 * 32, *[(4096, 0)] * 2 * 32,
        ]
    )  # fmt: skip
    assert plan.checkpoint_bytes == moments_and_masters


def test_llama2_7b_fits_the_memory_of_a_trn1_core(full_size: DryRun) -> None:
    assert full_size.memory.available == 16 * GIB
    assert full_size.memory.total < 10 * GIB
    full_size.memory.refuse_too_much(full_size.plan, full_size.layout)


@pytest.mark.parametrize(
    ("recompute", "memory", "remedy"),
    [
        (Recompute.NOTHING, {"activations": 20 * GIB}, "activation-checkpointing=true"),
        (Recompute.ATTENTION, {"activations": 20 * GIB}, "recompute=auto"),
        (Recompute.LAYERS, {"activations": 20 * GIB}, "lower micro-batch"),
        (Recompute.LAYERS, {"weights": 20 * GIB}, "raise tensor-parallel"),
    ],
)
def test_a_run_that_does_not_fit_is_refused_with_a_remedy(
    full_size: DryRun, recompute: Recompute, memory: dict[str, int], remedy: str
) -> None:
    layout = replace(full_size.layout, recompute=recompute)
    with pytest.raises(DoesNotFit, match=remedy):
        replace(full_size.memory, **memory).refuse_too_much(full_size.plan, layout)


def test_resharding_is_the_remedy_where_it_suffices() -> None:
    kind = find_instance_type("trn2.48xlarge")
    # With several micro-batches gradients would stay whole.
    changed: dict[str, Value] = {"tensor_parallel": 1, "global_batch": 64}
    refused, outcome = (
        dry_run(
            "llama2-7b",
            defaults("llama2-7b", **changed, reshard_after_forward=reshard),
            num_nodes=1,
            instance_type=kind,
        )
        for reshard in (False, True)
    )
    with pytest.raises(DoesNotFit, match="reshard-after-forward=true"):
        refused.memory.refuse_too_much(refused.plan, refused.layout)
    outcome.memory.refuse_too_much(outcome.plan, outcome.layout)


def test_a_type_without_torchneuron_refuses_resharding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llama2-7b", "--reshard-after-forward=true", "--nodes=4"]) == 2
    assert "reshard-after-forward=true needs TorchNeuron" in capsys.readouterr().err


def test_a_plan_that_leaves_the_compiler_little_memory_gets_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--micro-batch=3", "--global-batch=48", "--recompute=attention"]
    assert main(["llama2-7b", *words, "--nodes=4"]) == 0
    said = capsys.readouterr().err
    assert "dry run: warning: the plan fills 91% of a rank's memory, and beyond 75%" in said
    assert said.rstrip().endswith("set recompute=auto")


def test_the_command_prints_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(["llama-tiny", "--dry-run-full", "--nodes", "1", "--json"], {}) == 0
    said = capsys.readouterr()
    assert not said.err
    document = json.loads(said.out)
    assert document["num_ranks"] == 32
    assert document["plan_agrees"] is True


def test_the_command_refuses_ranks_that_cannot_share_a_layer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["llama-tiny", "--tensor-parallel=3"]) == 2
    assert "tensor-parallel=3 does not divide" in capsys.readouterr().err


def test_the_command_exits_with_2_when_the_plan_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["llama-small", "--seq-len", "32768", "--attention=eager"]) == 2
    assert "a rank needs" in capsys.readouterr().err


def test_a_workload_without_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all-reduce", "--dry-run-full"]) == 2
    assert "all-reduce has no model to shard; --dry-run-full supports" in capsys.readouterr().err
