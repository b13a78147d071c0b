"""`jobs submit` of a workload on CPU instances: one container, or an array."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.conftest import Cli
from tests.jobs.test_commands import checked
from tests.jobs.test_refusals import assert_refused
from tests.jobs.test_submit_training import existing_run
from trainium_catalogue import contract


def tokenize(corpus: str, tokenizer: str = "tokenizer.model") -> tuple[str, ...]:
    words = ("submit", "tokenize", "--input", corpus, "--tokenizer", tokenizer)
    return (*words, "--dataset", "wiki")


TOKENIZE = tokenize("my-text")


@pytest.fixture
def ready(cli: Cli) -> Cli:
    """A deployment with a corpus and a tokenizer."""
    cli.put("corpora/my-text/a.txt")
    cli.put("tokenizers/tokenizer.model")
    return cli


def payload(cli: Cli, *words: str) -> dict[str, Any]:
    result = cli.run(*words, "--dry-run")
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_cpu_workload_is_one_container_on_cpu_queue(cli: Cli) -> None:
    sent = payload(cli, "submit", "prepare", "--dataset", "wikicorpus", "--name", "fetch")

    assert sent["jobQueue"].endswith("cpu-queue")
    assert sent["containerOverrides"] == {
        "command": [*contract.launch_command("prepare"), "--dataset", "wikicorpus"],
        "environment": [{"name": contract.ENV_RUN, "value": "fetch"}],
    }
    assert "arrayProperties" not in sent
    assert "nodeOverrides" not in sent


def test_several_instances_are_an_array_job(ready: Cli) -> None:
    assert payload(ready, *TOKENIZE, "--nodes", "3")["arrayProperties"] == {"size": 3}


@pytest.mark.parametrize(("instances", "code"), [("1", 0), ("2", 2)])
def test_instances_costing_over_10_dollars_need_confirmation(
    ready: Cli, instances: str, code: int
) -> None:
    """An instance can cost $9.24 within the 12 hours of tokenize."""
    result = ready.run(*TOKENIZE, "--nodes", instances, "--name", "words")

    assert result.exit_code == code, result.stderr
    assert len(ready.jobs("words")) == (code == 0)
    assert ("needs confirmation" in result.stderr) == (code == 2)


def test_price_names_kind_of_instance(ready: Cli) -> None:
    result = ready.run(*TOKENIZE, "--nodes", "2", "--dry-run")

    assert "an array of 2 on CPU instances, 16 vCPUs each" in result.stderr
    price = "about $18.48 for 12 h (CPU instances, $0.77 per hour each, less on Spot;"
    assert price in result.stderr


def test_cpu_job_document_has_no_instance_type(ready: Cli) -> None:
    document = checked(ready.run(*TOKENIZE, "--dry-run", "--json"), "submit")

    assert (document["hardware"], document["instance_type"]) == ("cpu", None)


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (
            ("submit", "prepare", "--dataset", "wikicorpus", "--nodes", "2"),
            ["--nodes 2: prepare is one container", "omit --nodes"],
        ),
        (("submit", "export", "--run", "my-run", "--nodes", "2"), ["export is one container"]),
        ((*TOKENIZE, "--nodes", "0"), ["--nodes 0 is too few"]),
        ((*TOKENIZE, "--nodes", "10001"), ["at most 10,000 children"]),
        (("submit", "prepare"), ["prepare needs --dataset"]),
        (
            ("submit", "prepare", "--dataset", "wikicorpse"),
            [
                "--dataset=wikicorpse is not valid; it must be wikicorpus, aws-api-docs, mnist",
                "did you mean 'wikicorpus'?",
            ],
        ),
    ],
)
def test_invalid_cpu_submission_is_refused(
    cli: Cli, words: tuple[str, ...], fragments: list[str]
) -> None:
    assert_refused(cli.run(*words), *fragments)


def test_missing_tokenizer_is_refused(ready: Cli) -> None:
    result = ready.run(*tokenize("my-text", "tokenizer.json"))

    assert_refused(
        result,
        "there is no tokenizer 'tokenizer.json'",
        "did you mean 'tokenizer.model'?",
        "upload a *.model or tokenizer*.json with `python -m jobs upload FILE`",
    )


@pytest.mark.parametrize(
    ("corpus", "remedy"),
    [
        ("wikicorpus", "python -m jobs submit prepare --dataset wikicorpus"),
        ("other", "python -m jobs upload ./other"),
    ],
)
def test_missing_corpus_is_refused(ready: Cli, corpus: str, remedy: str) -> None:
    result = ready.run(*tokenize(corpus))

    assert_refused(
        result, f"there is no corpus {corpus!r}", "corpora in the bucket: my-text", remedy
    )


def test_incomplete_corpus_is_refused(ready: Cli) -> None:
    ready.put("corpora/wikicorpus/part-00000.jsonl.gz")

    result = ready.run(*tokenize("wikicorpus"))

    assert_refused(result, "corpus 'wikicorpus' is incomplete", "wait for its prepare job")


def test_input_outside_bucket_is_passed_to_nodes(ready: Cli) -> None:
    sent = payload(ready, *tokenize("s3://theirs/text/"))

    assert "s3://theirs/text/" in sent["containerOverrides"]["command"]


def test_complete_dataset_is_mentioned(ready: Cli) -> None:
    ready.put("datasets/wiki/manifest.json")

    assert "dataset wiki is already complete" in ready.run(*TOKENIZE, "--dry-run").stderr


def test_export_names_step(cli: Cli) -> None:
    existing_run(cli, 10, 20)

    result = cli.run("submit", "export", "--run", "my-run", "--dry-run")

    assert "exports step 20 of run my-run to export/my-run/" in result.stderr


def test_export_of_program_run_is_refused(cli: Cli) -> None:
    cli.put("runs/mine/program.json")

    result = cli.run("submit", "export", "--run", "mine")

    reason = "run mine has no checkpoint that export can read"
    assert_refused(result, reason, "jobs download mine --to FOLDER")


@pytest.mark.parametrize(
    ("steps", "words", "fragments"),
    [
        ((10,), ["my-rum"], ["there is no run 'my-rum'", "did you mean 'my-run'?"]),
        ((), ["my-run"], ["run my-run has no complete checkpoint", "jobs status my-run"]),
        ((10, 20), ["my-run", "--step", "15"], ["--step 15", "choose one of steps 10, 20"]),
    ],
)
def test_export_of_missing_checkpoint_is_refused(
    cli: Cli, steps: tuple[int, ...], words: list[str], fragments: list[str]
) -> None:
    existing_run(cli, *steps)

    assert_refused(cli.run("submit", "export", "--run", *words), *fragments)


def test_list_shows_jobs_of_both_queues(cli: Cli) -> None:
    cli.submitted("nightly")
    cli.run("submit", "prepare", "--dataset", "wikicorpus", "--name", "fetch")

    runs = checked(cli.run("list", "--json"), "list")["runs"]

    assert {run["run"]: run["hardware"] for run in runs} == {"nightly": "trainium", "fetch": "cpu"}


def test_cpu_run_is_found_by_name(cli: Cli) -> None:
    cli.run("submit", "prepare", "--dataset", "wikicorpus", "--name", "fetch")

    document = checked(cli.run("status", "fetch", "--json"), "status")

    assert (document["kind"], document["workload"]) == ("container", "prepare")


def test_concurrent_preparation_of_dataset_is_refused(cli: Cli) -> None:
    cli.run("submit", "prepare", "--dataset", "mnist", "--name", "first")
    (job,) = cli.jobs("first")
    running = cli.backend_job(job["jobId"])
    running.status = "RUNNING"
    # moto drops the submission's overrides.
    container = {"command": [*contract.launch_command("prepare"), "--dataset", "mnist"]}
    described = {**running.describe(), "status": "RUNNING", "container": container}
    running.describe = lambda: described
    same = cli.run("submit", "prepare", "--dataset", "mnist", "--name", "second")
    other = cli.run("submit", "prepare", "--dataset", "digits", "--name", "third")

    assert_refused(same, "run first is already preparing mnist: it is RUNNING", "jobs stop first")
    assert other.exit_code == 0, other.stderr
