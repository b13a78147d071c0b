"""`jobs submit` of a training workload: plan, run, dataset, compile job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import Result

from tests.jobs.conftest import Desk
from tests.jobs.test_commands import checked
from tests.jobs.test_refusals import assert_refused
from trainium_catalogue import contract
from trainium_catalogue.workloads import WORKLOADS

MANIFEST = {"vocab_size": 32000, "num_tokens": 1_000_000_000}
TRAIN = ("submit", "llama2-7b", "--nodes", "4", "--name", "my-run", "--yes")


@pytest.fixture
def ready(desk: Desk) -> Desk:
    """The dataset `wiki` is there."""
    desk.put("datasets/wiki/manifest.json", MANIFEST)
    return desk


def test_a_run_of_a_program_is_not_continued_by_a_workload(ready: Desk) -> None:
    ready.put("runs/my-run/program.json", {"format": 1, "submissions": []})

    assert_refused(
        ready.run(*TRAIN, "--dataset", "wiki"),
        "run my-run is one of a program of your own", "give another --name",
    )  # fmt: skip


def existing_run(
    desk: Desk,
    *steps: int,
    workload: str = "llama2-7b",
    values: Mapping[str, object] | None = None,
) -> None:
    defaults = {item.name: item.default for item in WORKLOADS[workload].parameters}
    stored = {**defaults, "dataset": "wiki", **(values or {})}
    desk.put("runs/my-run/run.json", {"schema": 1, "workload": workload, "values": stored})
    for step in steps:
        desk.put(f"runs/my-run/checkpoints/step-{step:08d}/complete.json")


def command_of(desk: Desk, run: str) -> list[str]:
    (job,) = desk.jobs(run)
    sent: list[str] = desk.backend_job(job["jobId"]).container_overrides["command"]
    return sent


def payloads(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    parsed = json.loads(result.stdout)
    return parsed if isinstance(parsed, list) else [parsed]


def command(payload: dict[str, Any]) -> list[str]:
    (node_range,) = payload["nodeOverrides"]["nodePropertyOverrides"]
    words: list[str] = node_range["containerOverrides"]["command"]
    return words


def test_parameters_by_name_reach_the_nodes(ready: Desk) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki", "--lr", "1e-4", "--dry-run")

    assert command(payloads(result)[0])[4:] == ["--dataset", "wiki", "--lr", "0.0001"]


def test_the_plan_is_shown_before_anything_is_spent(ready: Desk) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki")

    shown = result.stderr
    assert "6,738,415,616 parameters; a checkpoint takes 80.9 GB" in shown
    assert "128 = tensor parallel 8 x data parallel 16" in shown
    assert "16 ranks x 1 x 64 accumulation steps; 4,194,304 tokens a step" in shown
    assert "wiki, 1,000,000,000 tokens; 10,000 steps read 41,943,040,000 tokens, 41.9" in shown
    assert "run my-run: new" in shown
    assert shown.index("tokens a step") < shown.index("submitted run my-run")


def test_a_rehearsal_plans_with_its_own_processes(
    ready: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.ENV_PROCESSES_PER_NODE, "2")

    result = ready.run(
        "submit", "llama-tiny", "--nodes", "2", "--dataset", "wiki", "--dry-run", "--json"
    )

    assert checked(result, "submit")["plan"]["num_ranks"] == 4


def test_a_run_continues_without_naming_its_dataset(ready: Desk) -> None:
    existing_run(ready, 100, 200)

    result = ready.run(*TRAIN)

    assert result.exit_code == 0
    assert "run my-run: continues from step 200 of 10,000" in result.stderr


def test_a_checkpoint_without_its_marker_does_not_count(ready: Desk) -> None:
    existing_run(ready, 100)
    ready.put("runs/my-run/checkpoints/step-00000200/__0_0.distcp")

    assert "continues from step 100" in ready.run(*TRAIN).stderr


def test_checkpoints_are_looked_for_where_the_run_keeps_them(ready: Desk) -> None:
    existing_run(ready, values={"checkpoint-uri": "s3://bucket/elsewhere"})
    ready.put("elsewhere/my-run/step-00000300/complete.json")

    assert "continues from step 300" in ready.run(*TRAIN).stderr


def test_checkpoints_on_a_file_system_are_not_guessed(ready: Desk) -> None:
    existing_run(ready, values={"checkpoint-uri": "/fsx/checkpoints"})

    assert "the newest checkpoint in /fsx/checkpoints/my-run" in ready.run(*TRAIN).stderr


def test_a_run_that_has_all_its_steps_says_so(ready: Desk) -> None:
    existing_run(ready, 60, values={"max-steps": 60})

    said = ready.run(*TRAIN).stderr

    assert "has made 60 steps already: the job would take its nodes and train nothing" in said
    assert "has all its 60 steps; give a larger --max-steps" in said


def test_a_plan_names_what_a_run_does_beside_training(ready: Desk) -> None:
    said = ready.run(*TRAIN, "--dataset", "wiki", "--document-masks", "true").stderr

    assert "document masks: a token attends to its own document only" in said


def test_a_plan_remembers_the_parameters_of_the_run(ready: Desk) -> None:
    existing_run(ready, values={"micro-batch": 2})

    assert "16 ranks x 2 x 32 accumulation steps" in ready.run(*TRAIN).stderr


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
        (["--dataset", "half"], ["dataset 'half' is not complete: its manifest is missing"]),
        (["--dataset", "wide"], ["has ids up to 32767", "--vocab-size 32768"]),
        (["--dataset", "short"], ["short has 4,096 tokens, less than one sequence"]),
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
            ["--compile and --compile-only exclude each other"],
        ),
    ],
)
def test_what_would_fail_on_the_nodes_is_refused(
    ready: Desk, arguments: list[str], fragments: list[str]
) -> None:
    ready.put("datasets/half/shard-00000.bin")
    ready.put("datasets/wide/manifest.json", {"vocab_size": 32768, "num_tokens": 10**9})
    ready.put("datasets/short/manifest.json", {"vocab_size": 32000, "num_tokens": 4096})

    assert_refused(ready.run(*TRAIN, *arguments), *fragments)
    assert ready.jobs("my-run") == []


def test_an_existing_run_keeps_what_makes_it_what_it_is(ready: Desk) -> None:
    existing_run(ready, 100)

    result = ready.run(*TRAIN, "--seq-len", "2048")

    assert_refused(
        result, "run my-run cannot continue with seq-len=2048 (the run has 4096)", "another run"
    )


def test_a_run_of_another_workload_is_refused(ready: Desk) -> None:
    existing_run(ready, workload="llama-small")

    assert_refused(ready.run(*TRAIN), "run my-run is a run of llama-small, not of llama2-7b")


def test_a_bucket_without_datasets_says_so(desk: Desk) -> None:
    assert_refused(desk.run(*TRAIN), "the bucket has no datasets; the bucket has no runs")


def test_a_release_whose_graphs_stay_on_the_node_compiles_nothing_beforehand(ready: Desk) -> None:
    ready.parameter(contract.SSM_NEURON_RELEASE, "2.33.1")

    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert result.exit_code == 2
    assert "--compile: Neuron 2.33.1 (TorchNeuron) keeps its compiled graphs on" in result.stderr
    assert "leave --compile out" in result.stderr
    assert ready.jobs("my-run-compile") == []


def test_a_compile_job_comes_first_and_training_depends_on_it(ready: Desk) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert result.exit_code == 0, result.stderr
    (first,), (second,) = ready.jobs("my-run-compile"), ready.jobs("my-run")
    assert [item["jobId"] for item in second["dependsOn"]] == [first["jobId"]]


def test_a_compile_job_of_a_submission_that_came_second_is_not_paid_for(ready: Desk) -> None:
    held = {"by": "ana@desk", "at": "2026-11-22T14:00:00+00:00", "job_id": None, "ended": False}
    ready.put(contract.run_key("my-run", contract.RUN_SUBMISSION), held)

    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert "run my-run is being submitted twice at the same time: ana@desk is" in result.stderr
    assert ready.jobs("my-run") == ready.jobs("my-run-compile") == []


def test_a_compile_job_gets_everything_that_decides_the_graphs(ready: Desk) -> None:
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


def test_a_compile_job_has_a_run_name_of_its_own(ready: Desk) -> None:
    first, _ = payloads(ready.run(*TRAIN, "--dataset", "wiki", "--compile", "--dry-run"))

    (node_range,) = first["nodeOverrides"]["nodePropertyOverrides"]
    assert node_range["containerOverrides"]["environment"] == [
        {"name": contract.ENV_RUN, "value": "my-run-compile"}
    ]
    assert first["tags"][contract.TAG_RUN] == "my-run-compile"


def test_a_compile_job_that_is_running_is_waited_for_and_not_repeated(ready: Desk) -> None:
    ready.run(*TRAIN, "--dataset", "wiki", "--compile")
    (first,), (second,) = ready.jobs("my-run-compile"), ready.jobs("my-run")
    ready.backend_job(first["jobId"]).status = "RUNNING"
    ready.backend_job(second["jobId"]).status = "FAILED"

    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert f"run my-run-compile is RUNNING already, job {first['jobId']}" in result.stderr
    assert len(ready.jobs("my-run-compile")) == 1


def test_what_an_earlier_compile_job_fixed_is_refused_at_the_desk(ready: Desk) -> None:
    values = {item.name: item.default for item in WORKLOADS["llama2-7b"].parameters}
    stored = {**values, "dataset": "wiki", "seq-len": 2048}
    ready.put(
        "runs/my-run-compile/run.json", {"schema": 1, "workload": "llama2-7b", "values": stored}
    )

    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile")

    assert_refused(result, "run my-run-compile cannot continue with seq-len=4096")


def test_a_name_that_leaves_no_room_for_the_compile_job_is_refused(ready: Desk) -> None:
    result = ready.run("submit", "llama2-7b", "--name", "x" * 95, "--dataset", "wiki", "--compile")

    assert_refused(result, "-compile' cannot be a run name")


def test_a_dry_run_of_two_jobs_is_one_document(ready: Desk) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile", "--dry-run", "--json")

    document = checked(result, "submit")
    assert document["compile"]["run"] == "my-run-compile"
    assert document["compile"]["time_limit_hours"] == 6
    assert document["payload"]["dependsOn"] == [{"jobId": "JOB-ID-OF-THE-COMPILE-JOB"}]
    assert document["plan"]["accumulation_steps"] == 64


def test_a_submission_names_both_jobs(ready: Desk) -> None:
    result = ready.run(*TRAIN, "--dataset", "wiki", "--compile", "--json")

    document = checked(result, "submit")
    assert document["job_id"] == ready.jobs("my-run")[0]["jobId"]
    assert document["compile"]["job_id"] == ready.jobs("my-run-compile")[0]["jobId"]


def test_a_workload_shows_what_it_needs(desk: Desk) -> None:
    result = desk.run("submit", "tokenize", "--help")

    assert "submit tokenize --input INPUT --tokenizer TOKENIZER --dataset DATASET" in result.stdout
    assert "required" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--min-bytes", "6"], "--min-bytes=6 is not a multiple of 4"),
        (["--min-bytes", "8", "--max-bytes", "4"], "--max-bytes=4 is below min-bytes=8"),
        (["--inject-error-rank", "64"], "the job has ranks 0 to 63"),
    ],
)
def test_a_sweep_that_contradicts_itself_is_refused(
    desk: Desk, words: list[str], message: str
) -> None:
    assert_refused(desk.run("submit", "all-reduce", "--nodes", "2", "--yes", *words), message)


def test_a_negative_value_is_a_value(desk: Desk) -> None:
    result = desk.run(
        "submit", "all-reduce", "--nodes", "1", "--dry-run", "--inject-error-rank", "-1"
    )

    assert command(payloads(result)[0])[4:] == ["--inject-error-rank", "-1"]


def test_the_verify_workload_runs_on_four_nodes_at_most(desk: Desk) -> None:
    result = desk.run("submit", "verify", "--nodes", "5", "--yes")

    assert_refused(result, "--nodes 5: verify runs on at most 4")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--checks", "sums,speed"], "--checks=sums,speed names 'speed'; there are sums,"),
        (["--tensor-parallel", "3"], "--tensor-parallel=3 does not divide the 64 ranks"),
        (["--tensor-parallel", "16"], "--tensor-parallel=16 does not divide num-kv-heads=8"),
    ],
)
def test_what_verify_would_refuse_on_the_nodes_is_refused(
    desk: Desk, words: list[str], message: str
) -> None:
    assert_refused(desk.run("submit", "verify", "--nodes", "2", "--yes", *words), message)
