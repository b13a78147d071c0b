"""A run's identity, and what a later submission may change."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.checkpoint.documents import assert_valid
from training.storage import Objects, StorageAccess
from training.trainer.runs import RunConfig, RunConfigError, checkpoint_root
from trainium_catalogue.contract import RUN_CONFIG
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import FIXED_IN_A_RUN
from trainium_catalogue.workloads import WORKLOADS

DEFAULTS = {p.name: p.default for p in WORKLOADS["llama-tiny"].parameters}


def settle(stored: RunConfig | None, **given: Value) -> RunConfig:
    named = {name.replace("_", "-"): value for name, value in given.items()}
    return RunConfig.resolve(
        stored, run="my-run", workload="llama-tiny", values={**DEFAULTS, **named}, given=named
    )


FIRST = settle(None, dataset="books", lr=0.5, steps_this_run=7)


def test_a_run_is_stored_and_read_back(objects: Objects) -> None:
    assert RunConfig.load(objects) is None

    FIRST.save(objects)

    assert RunConfig.load(objects) == FIRST
    assert_valid(json.loads(objects.get(RUN_CONFIG)), "run.schema.json")


def test_a_run_does_not_store_per_submission_settings() -> None:
    again = settle(FIRST)

    assert (again.values["steps-this-run"], again.values["lr"]) == (0, 0.5)
    assert again.created == FIRST.created


def test_unfixed_settings_may_change_and_are_remembered() -> None:
    assert settle(settle(FIRST, lr=0.25)).values["lr"] == 0.25


@given(st.sampled_from([n for n in (*FIXED_IN_A_RUN, "checkpoint-uri") if n in DEFAULTS]))
def test_identity_settings_may_not_change(name: str) -> None:
    old = FIRST.values[name]
    other: Value = f"{old}x" if isinstance(old, str) else int(old) + 1

    with pytest.raises(RunConfigError, match=rf"my-run cannot continue with {name}=.* \(the run"):
        settle(FIRST, **{name: other})
    assert settle(FIRST, **{name: old}).values[name] == old


def test_a_run_older_than_document_masks_has_none() -> None:
    values = {name: value for name, value in FIRST.values.items() if name != "document-masks"}
    old = replace(FIRST, values=values)

    assert settle(old).values["document-masks"] is False
    with pytest.raises(RunConfigError, match=r"document-masks=true \(the run has false\)"):
        settle(old, **{"document-masks": True})


def test_every_change_is_named_in_one_message() -> None:
    with pytest.raises(
        RunConfigError,
        match=r"dataset=x \(the run has books\), seed=1 \(the run has 12349\); keep the run's "
        r"values, or",
    ):
        settle(FIRST, seed=1, dataset="x")


def test_facts_are_remembered_and_may_not_change() -> None:
    known = FIRST.with_facts(run="my-run", facts={"tokenizer_sha256": "a" * 64, "eos_id": 2})

    assert known.with_facts(run="my-run", facts={"eos_id": 2}) == known
    assert settle(known).facts == known.facts
    with pytest.raises(
        RunConfigError,
        match=r"tokenizer_sha256=bbbbbbbbbbbb\.\.\. \(the run has aaaaaaaaaaaa\.\.\.\); use the",
    ):
        known.with_facts(run="my-run", facts={"tokenizer_sha256": "b" * 64})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", r"run.json cannot be read: .*; restore it, or use another run name"),
        (b"[]", r"run.json cannot be read: it is \[\], not a JSON object"),
        (b'{"schema": 0}', "run.json was written by another version of this code"),
    ],
)
def test_a_malformed_file_is_refused(folder: Objects, data: bytes, message: str) -> None:
    folder.put(RUN_CONFIG, data)

    with pytest.raises(RunConfigError, match=message):
        RunConfig.load(folder)


def test_checkpoints_of_runs_that_share_a_uri_are_separate(folder: Objects) -> None:
    def root(config: RunConfig) -> str:
        return checkpoint_root(StorageAccess(root=folder.uri), folder, "my-run", config).uri

    assert root(FIRST) == f"{folder.uri}/runs/my-run/checkpoints"
    assert root(settle(None, checkpoint_uri="/fsx/x")) == "/fsx/x/my-run"
    assert root(settle(None, checkpoint_uri="s3://other/x/")) == "s3://other/x/my-run"
