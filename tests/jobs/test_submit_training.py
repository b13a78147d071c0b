"""`jobs submit` of a training workload: plan, run, dataset, compile job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import Result

from tests.jobs.conftest import Cli
from tests.jobs.programs import command_of, store_run
from tests.jobs.test_commands import checked
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue import contract
from trainium_catalogue.workloads import WORKLOADS

MANIFEST = {"vocab_size": 32000, "num_tokens": 1_000_000_000}
TRAIN = ("submit", "llama2-7b", "--nodes", "4", "--name", "my-run", "--yes")


@pytest.fixture
def ready(cli: Cli) -> Cli:
    """A deployment with the dataset `wiki`."""
    cli.put("datasets/wiki/manifest.json", MANIFEST)
    return cli


def test_run_of_program_is_not_continued_by_workload(ready: Cli) -> None:
    ready.put("runs/my-run/program.json", {"format": 1, "submissions": []})

    assert_refused(
        ready.run(*TRAIN, "--dataset", "wiki"),
        "run my-run is a program of your own", "use another --name",
    )  # fmt: skip


def existing_run(
    cli: Cli,
    *steps: int,
    workload: str = "llama2-7b",
    values: Mapping[str, object] | None = None,
) -> None:
    store_run(cli, WORKLOADS[workload], *steps, values=values)


def payloads(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    parsed = json.loads(result.stdout)
    return parsed if isinstance(parsed, list) else [parsed]


def command(payload: dict[str, Any]) -> list[str]:
    return command_of({"payload": payload})


def test_named_parameters_reach_nodes(ready: Cli) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki", "--lr", "1e-4", "--dry-run")

    assert command(payloads(result)[0])[4:] == ["--dataset", "wiki", "--lr", "0.0001"]


def test_plan_is_shown_before_submission(ready: Cli) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki")

    shown = result.stderr
    assert "6,738,415,616 parameters, checkpoints of 80.9 GB" in shown
    assert "128 = tensor parallel 8 x data parallel 16" in shown
    assert "16 x micro-batch 1 x 64 accumulation steps; 4,194,304 tokens per step" in shown
    assert "wiki, 1,000,000,000 tokens; 10,000 steps read 41,943,040,000 tokens, 41.9" in shown
    assert "run my-run: new" in shown
    assert shown.index("tokens per step") < shown.index("submitted run my-run")


def test_processes_per_node_follow_environment(ready: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_PROCESSES_PER_NODE, "2")

    result = ready.run(
        "submit", "llama-tiny", "--nodes", "2", "--dataset", "wiki", "--dry-run", "--json"
    )

    assert checked(result, "submit")["plan"]["num_ranks"] == 4


def test_resumed_run_keeps_dataset(ready: Cli) -> None:
    existing_run(ready, 100, 200)

    result = ready.run(*TRAIN)

    assert result.exit_code == 0
    assert "run my-run: resumes from step 200 of 10,000" in result.stderr


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "resumes from step 100"),
        ("s3://bucket/elsewhere", "resumes from step 300"),
        ("/fsx/checkpoints", "the newest checkpoint in /fsx/checkpoints/my-run"),
    ],
)
def test_complete_checkpoints_are_searched_in_location_of_run(
    ready: Cli, uri: str, says: str
) -> None:
    existing_run(ready, 100, values={"checkpoint-uri": uri})
    ready.put("runs/my-run/checkpoints/step-00000200/__0_0.distcp")
    ready.put("elsewhere/my-run/step-00000300/complete.json")

    assert says in ready.run(*TRAIN).stderr


def test_completed_run_is_reported(ready: Cli) -> None:
    existing_run(ready, 60, values={"max-steps": 60})

    said = ready.run(*TRAIN).stderr

    assert (
        "has completed 60 steps and its --max-steps is 60, so the job would train no further"
        in said
    )
    assert "pass a larger --max-steps" in said


def test_plan_mentions_document_masks(ready: Cli) -> None:
    said = ready.run(*TRAIN, "--dataset", "wiki", "--document-masks", "true").stderr

    assert "document masks: tokens attend only to their own document" in said


def test_plan_uses_stored_parameters_of_run(ready: Cli) -> None:
    existing_run(ready, values={"micro-batch": 2})

    assert "16 x micro-batch 2 x 32 accumulation steps" in ready.run(*TRAIN).stderr


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (
            [],
            [
                "run my-run is new and needs --dataset",
                "datasets in the bucket: half, short, wide, wiki",
            ],
        ),
        (
            ["--dataset", "wikki"],
            ["there is no dataset 'wikki'", "did you mean 'wiki'?", "submit tokenize --dataset"],
        ),
        (["--dataset", "half"], ["dataset 'half' is incomplete: its manifest is missing"]),
        (["--dataset", "wide"], ["has token IDs up to 32,767", "--vocab-size 32768"]),
        (["--dataset", "short"], ["short has 4,096 tokens, too few for one sequence"]),
        (
            ["--dataset", "wiki", "--tensor-parallel", "3"],
            ["--tensor-parallel=3 does not divide the 128 ranks"],
        ),
        (
            ["--dataset", "wiki", "--global-batch", "1000"],
            ["--global-batch=1000 is not a multiple of the 16", "global-batch=1008"],
        ),
        (
            ["--dataset", "wiki", "--compile", "--compile-only"],
            ["--compile and --compile-only are mutually exclusive"],
        ),
    ],
)
def test_submission_that_would_fail_on_nodes_is_refused(
    ready: Cli, arguments: list[str], fragments: list[str]
) -> None:
    ready.put("datasets/half/shard-00000.bin")
    ready.put("datasets/wide/manifest.json", {"vocab_size": 32768, "num_tokens": 10**9})
    ready.put("datasets/short/manifest.json", {"vocab_size": 32000, "num_tokens": 4096})

    assert_refused(ready.run(*TRAIN, *arguments), *fragments)
    assert ready.jobs("my-run") == []


def test_resumed_run_keeps_fixed_parameters(ready: Cli) -> None:
    existing_run(ready, 100)

    result = ready.run(*TRAIN, "--seq-len", "2048")

    assert_refused(
        result, "run my-run cannot continue with seq-len=2048 (the run has 4096)", "another run"
    )


def test_run_of_other_workload_is_refused(ready: Cli) -> None:
    existing_run(ready, workload="llama-small")

    assert_refused(ready.run(*TRAIN), "run my-run is a run of llama-small, not of llama2-7b")


def test_bucket_without_datasets_is_refused(cli: Cli) -> None:
    assert_refused(cli.run(*TRAIN), "the bucket has no datasets; the bucket has no runs")


def test_compile_with_release_that_compiles_on_node_is_refused(ready: Cli) -> None:
    ready.parameter(contract.SSM_NEURON_RELEASE, "2.33.1")

    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert result.exit_code == 2
    assert "--compile: Neuron 2.33.1 (TorchNeuron) compiles during training" in result.stderr
    assert "omit --compile" in result.stderr
    assert ready.jobs("my-run-compile") == []


def test_mesh_that_trn2_cannot_route_is_refused(ready: Cli) -> None:
    ready.parameter(contract.SSM_NEURON_RELEASE, "2.33.1")
    ready.parameter(contract.SSM_INSTANCE_TYPE, "trn2.48xlarge")

    refused = ready.run(*TRAIN, "--dataset", "wiki")
    fitting = ready.run(*TRAIN, "--dataset", "wiki", "--tensor-parallel", "4", "--dry-run")

    assert_refused(refused, "--tensor-parallel 8", "a mesh of 8 x 8", "use 1, 2, 4, 16 or 64")
    assert fitting.exit_code == 0, fitting.stderr


def test_feature_missing_in_backend_is_refused(ready: Cli) -> None:
    refused = ready.run(*TRAIN, "--dataset", "wiki", "--recompute", "selective")

    assert_refused(refused, "recompute=selective needs TorchNeuron", "set recompute=attention")


def test_resumed_run_keeps_routable_mesh(ready: Cli) -> None:
    ready.parameter(contract.SSM_NEURON_RELEASE, "2.33.1")
    ready.parameter(contract.SSM_INSTANCE_TYPE, "trn2.48xlarge")
    existing_run(ready, 100, values={"tensor-parallel": 4})

    continued = ready.run(*TRAIN)

    assert continued.exit_code == 0, continued.stderr
    assert "tensor parallel 4 x data parallel 64" in continued.stderr


def test_training_depends_on_compile_job(ready: Cli) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert result.exit_code == 0, result.stderr
    (first,), (second,) = ready.jobs("my-run-compile"), ready.jobs("my-run")
    assert [item["jobId"] for item in second["dependsOn"]] == [first["jobId"]]


def test_refused_concurrent_submission_creates_no_compile_job(ready: Cli) -> None:
    held = {"by": "ana@desk", "at": "2026-11-22T14:00:00+00:00", "job_id": None, "ended": False}
    ready.put(contract.run_key("my-run", contract.RUN_SUBMISSION), held)

    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert "run my-run is being submitted twice at the same time: ana@desk is" in result.stderr
    assert ready.jobs("my-run") == ready.jobs("my-run-compile") == []


def test_compile_job_gets_every_graph_parameter(ready: Cli) -> None:
    existing_run(ready, values={"micro-batch": 2})

    first, second = payloads(ready.run(*TRAIN, "--compile", "--stop-grace-s", "9", "--dry-run"))

    words = command(first)[4:]
    given_to_it = dict(zip(words[::2], words[1::2], strict=True))
    assert given_to_it["--micro-batch"] == "2"
    assert given_to_it["--compile-only"] == "true"
    assert given_to_it["--dataset"] == "wiki"
    assert given_to_it["--stop-grace-s"] == "9.0"
    assert first["nodeOverrides"]["numNodes"] == second["nodeOverrides"]["numNodes"] == 4
    assert "--compile-only" not in command(second)


def test_running_compile_job_is_reused(ready: Cli) -> None:
    ready.run(*TRAIN, "--dataset", "wiki", "--compile")
    (first,), (second,) = ready.jobs("my-run-compile"), ready.jobs("my-run")
    ready.backend_job(first["jobId"]).status = "RUNNING"
    ready.backend_job(second["jobId"]).status = "FAILED"

    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert f"run my-run-compile is already RUNNING, job {first['jobId']}" in result.stderr
    assert len(ready.jobs("my-run-compile")) == 1


def test_conflict_with_earlier_compile_job_is_refused(ready: Cli) -> None:
    values = {item.name: item.default for item in WORKLOADS["llama2-7b"].parameters}
    stored = {**values, "dataset": "wiki", "seq-len": 2048}
    ready.put(
        "runs/my-run-compile/run.json", {"schema": 1, "workload": "llama2-7b", "values": stored}
    )

    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert_refused(result, "run my-run-compile cannot continue with seq-len=4096")


def test_name_too_long_for_compile_job_is_refused(ready: Cli) -> None:
    result = ready.run("submit", "llama2-7b", "--name", "x" * 95, "--dataset", "wiki", "--compile")

    assert_refused(result, "-compile' is not a valid run name")


def test_dry_run_of_two_jobs_is_one_document(ready: Cli) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile", "--dry-run", "--json")

    document = checked(result, "submit")
    assert document["compile"]["run"] == "my-run-compile"
    assert document["compile"]["time_limit_hours"] == 6
    assert document["payload"]["dependsOn"] == [{"jobId": "JOB-ID-OF-THE-COMPILE-JOB"}]
    assert document["plan"]["accumulation_steps"] == 64


def test_submission_document_has_both_jobs(ready: Cli) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile", "--json")

    document = checked(result, "submit")
    assert document["job_id"] == ready.jobs("my-run")[0]["jobId"]
    assert document["compile"]["job_id"] == ready.jobs("my-run-compile")[0]["jobId"]


def test_help_shows_required_parameters(cli: Cli) -> None:
    result = cli.run("submit", "tokenize", "--help")

    assert "submit tokenize --input INPUT --tokenizer TOKENIZER --dataset DATASET" in result.stdout
    assert "required" in result.stdout


@pytest.mark.parametrize(
    ("workload", "words", "message"),
    [
        ("all-reduce", ["--min-bytes", "6"], "--min-bytes=6 is not a multiple of 4"),
        ("all-reduce", ["--min-bytes", "8", "--max-bytes", "4"], "--max-bytes=4 is below min-"),
        ("all-reduce", ["--inject-error-rank", "64"], "the job has ranks 0 to 63"),
        ("verify", ["--checks", "sums,speed"], "names 'speed'; known checks: sums,"),
        ("verify", ["--tensor-parallel", "3"], "--tensor-parallel=3 does not divide the 64 ranks"),
        ("verify", ["--tensor-parallel", "16"], "16 exceeds the 8 key-value heads"),
    ],
)
def test_values_that_do_not_fit_ranks_are_refused(
    cli: Cli, workload: str, words: list[str], message: str
) -> None:
    assert_refused(cli.run("submit", workload, "--nodes", "2", "--yes", *words), message)


def test_negative_value_is_accepted(cli: Cli) -> None:
    result = cli.run(
        "submit", "all-reduce", "--nodes", "1", "--dry-run", "--inject-error-rank", "-1"
    )

    assert command(payloads(result)[0])[4:] == ["--inject-error-rank", "-1"]


def test_verify_workload_runs_on_at_most_four_nodes(cli: Cli) -> None:
    result = cli.run("submit", "verify", "--nodes", "5", "--yes")

    assert_refused(result, "--nodes 5: verify runs on at most 4")
