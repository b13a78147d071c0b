"""`jobs submit` of a workload on ordinary instances: one container, or an array of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.conftest import Desk
from tests.jobs.test_commands import checked
from tests.jobs.test_refusals import assert_refused
from tests.jobs.test_submit_training import existing_run
from trainium_catalogue import contract

TOKENIZE = (
    *("submit", "tokenize", "--input", "my-text", "--tokenizer", "tokenizer.model"),
    *("--dataset", "wiki"),
)


@pytest.fixture
def ready(desk: Desk) -> Desk:
    """A corpus and a tokenizer are there."""
    desk.put("corpora/my-text/a.txt")
    desk.put("tokenizers/tokenizer.model")
    return desk


def payload(desk: Desk, *words: str) -> dict[str, Any]:
    result = desk.run(*words, "--dry-run")
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_a_cpu_workload_is_one_container_on_the_cpu_queue(desk: Desk) -> None:
    sent = payload(desk, "submit", "prepare", "--dataset", "wikicorpus", "--name", "fetch")

    assert sent["jobQueue"].endswith("cpu-queue")
    assert sent["containerOverrides"] == {
        "command": [*contract.launch_command("prepare"), "--dataset", "wikicorpus"],
        "environment": [{"name": contract.ENV_RUN, "value": "fetch"}],
    }
    assert "arrayProperties" not in sent
    assert "nodeOverrides" not in sent


def test_several_instances_are_an_array_job(ready: Desk) -> None:
    assert payload(ready, *TOKENIZE, "--nodes", "3")["arrayProperties"] == {"size": 3}


def test_one_instance_is_no_array(ready: Desk) -> None:
    assert "arrayProperties" not in payload(ready, *TOKENIZE, "--nodes", "1")


@pytest.mark.parametrize(("instances", "code"), [("1", 0), ("2", 2)])
def test_instances_are_asked_about_that_may_cost_10_dollars(
    ready: Desk, instances: str, code: int
) -> None:
    """An instance may cost 9.24 within the 12 hours of tokenize."""
    result = ready.run(*TOKENIZE, "--nodes", instances, "--name", "words")

    assert result.exit_code == code, result.stderr
    assert len(ready.jobs("words")) == (code == 0)
    assert ("is asked about" in result.stderr) == (code == 2)


def test_the_price_names_the_kind_of_instance(ready: Desk) -> None:
    result = ready.run(*TOKENIZE, "--nodes", "2", "--dry-run")

    assert "an array of 2 on ordinary CPU instances, 16 vCPUs each" in result.stderr
    assert "about $18.48 for 12 h (CPU instances, $0.77 an hour each, Spot less;" in result.stderr


def test_the_document_of_a_cpu_job_names_no_instance_type(ready: Desk) -> None:
    document = checked(ready.run(*TOKENIZE, "--dry-run", "--json"), "submit")

    assert (document["hardware"], document["instance_type"]) == ("cpu", None)


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (
            ("submit", "prepare", "--dataset", "wikicorpus", "--nodes", "2"),
            ["--nodes 2: prepare is one container", "leave --nodes out"],
        ),
        (("submit", "export", "--run", "my-run", "--nodes", "2"), ["export is one container"]),
        ((*TOKENIZE, "--nodes", "0"), ["--nodes 0 is too few"]),
        ((*TOKENIZE, "--nodes", "10001"), ["at most 10,000 children"]),
        (("submit", "prepare"), ["prepare needs --dataset"]),
        (
            ("submit", "prepare", "--dataset", "wikicorpse"),
            [
                "--dataset=wikicorpse cannot be; it takes wikicorpus or aws-api-docs",
                "did you mean 'wikicorpus'?",
            ],
        ),
    ],
)
def test_a_wrong_cpu_submission_is_refused(
    desk: Desk, words: tuple[str, ...], fragments: list[str]
) -> None:
    assert_refused(desk.run(*words), *fragments)


def test_a_tokenizer_that_is_not_there_is_refused(ready: Desk) -> None:
    result = ready.run(*TOKENIZE[:4], "--tokenizer", "tokenizer.json", "--dataset", "x")

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
def test_a_corpus_that_is_not_there_is_refused(ready: Desk, corpus: str, remedy: str) -> None:
    result = ready.run(
        "submit", "tokenize", "--input", corpus, "--tokenizer", "tokenizer.model", "--dataset", "x"
    )

    assert_refused(
        result, f"there is no corpus {corpus!r}", "corpora in the bucket: my-text", remedy
    )


def test_a_corpus_that_is_still_made_is_refused(ready: Desk) -> None:
    ready.put("corpora/wikicorpus/part-00000.jsonl.gz")

    result = ready.run(
        *("submit", "tokenize", "--input", "wikicorpus"),
        *("--tokenizer", "tokenizer.model", "--dataset", "x"),
    )

    assert_refused(result, "corpus 'wikicorpus' is not complete", "wait for its prepare job")


def test_input_outside_the_bucket_is_the_nodes_business(ready: Desk) -> None:
    sent = payload(
        ready,
        *("submit", "tokenize", "--input", "s3://theirs/text/"),
        *("--tokenizer", "tokenizer.model", "--dataset", "x"),
    )

    assert "s3://theirs/text/" in sent["containerOverrides"]["command"]


def test_a_dataset_that_is_complete_is_mentioned(ready: Desk) -> None:
    ready.put("datasets/wiki/manifest.json")

    assert "dataset wiki is complete already" in ready.run(*TOKENIZE, "--dry-run").stderr


def test_an_export_says_which_step(desk: Desk) -> None:
    existing_run(desk, 10, 20)

    result = desk.run("submit", "export", "--run", "my-run", "--dry-run")

    assert "exports step 20 of run my-run to export/my-run/" in result.stderr


def test_an_export_of_a_run_that_is_not_there_is_refused(desk: Desk) -> None:
    existing_run(desk, 10)

    result = desk.run("submit", "export", "--run", "my-rum")

    assert_refused(result, "there is no run 'my-rum'", "did you mean 'my-run'?")


def test_an_export_of_a_programs_run_is_refused(desk: Desk) -> None:
    desk.put("runs/mine/program.json")

    result = desk.run("submit", "export", "--run", "mine")

    assert_refused(
        result, "run mine has no checkpoint of a Llama", "jobs download mine --to FOLDER"
    )


def test_an_export_without_a_checkpoint_is_refused(desk: Desk) -> None:
    existing_run(desk)

    result = desk.run("submit", "export", "--run", "my-run")

    assert_refused(result, "run my-run has no complete checkpoint", "jobs status my-run")


def test_an_export_of_a_step_that_is_not_there_is_refused(desk: Desk) -> None:
    existing_run(desk, 10, 20)

    result = desk.run("submit", "export", "--run", "my-run", "--step", "15")

    assert_refused(result, "--step 15", "it has steps 10, 20")


def test_the_list_shows_jobs_of_both_queues(desk: Desk) -> None:
    desk.submitted("nightly")
    desk.run("submit", "prepare", "--dataset", "wikicorpus", "--name", "fetch")

    runs = checked(desk.run("list", "--json"), "list")["runs"]

    assert {run["run"]: run["hardware"] for run in runs} == {"nightly": "trainium", "fetch": "cpu"}


def test_one_job_at_a_time_prepares_a_dataset(desk: Desk) -> None:
    desk.run("submit", "prepare", "--dataset", "mnist", "--name", "first")
    (job,) = desk.jobs("first")
    running = desk.backend_job(job["jobId"])
    running.status = "RUNNING"
    # moto drops what the submission overrides.
    container = {"command": [*contract.launch_command("prepare"), "--dataset", "mnist"]}
    described = {**running.describe(), "status": "RUNNING", "container": container}
    running.describe = lambda: described
    same = desk.run("submit", "prepare", "--dataset", "mnist", "--name", "second")
    other = desk.run("submit", "prepare", "--dataset", "digits", "--name", "third")

    assert_refused(same, "run first prepares mnist already, it is RUNNING", "jobs stop first")
    assert other.exit_code == 0, other.stderr


def test_an_array_is_one_line_of_the_list(ready: Desk) -> None:
    ready.run(*TOKENIZE, "--nodes", "3", "--name", "words", "--yes")

    (run,) = checked(ready.run("list", "--json"), "list")["runs"]

    assert run["run"] == "words"


def test_a_cpu_run_is_found_by_its_name(desk: Desk) -> None:
    desk.run("submit", "prepare", "--dataset", "wikicorpus", "--name", "fetch")

    document = checked(desk.run("status", "fetch", "--json"), "status")

    assert (document["kind"], document["workload"]) == ("container", "prepare")
