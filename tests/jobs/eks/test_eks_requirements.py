"""`submit --requirements --on eks`: the command waits until Batch has collected the wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.program.requirements import read_requirements
from jobs.submit.choose import wheels_run
from tests.jobs.eks.conftest import EksCli
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_emulators.kubernetes.resources import VOLCANO_JOB

WORDS = (
    *("submit", "./train.py", "--on", "eks", "--name", "x", "--yes"),
    *("--requirements", "requirements.txt"),
)


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eks: EksCli) -> str:
    """Create a program with requirements, and change into its folder; return its wheels' key."""
    (tmp_path / "train.py").write_text("import einops\n")
    (tmp_path / "requirements.txt").write_text("einops\n")
    monkeypatch.chdir(tmp_path)
    # Also the image of the job definitions.
    eks.cli.parameter(contract.SSM_EKS_IMAGE, "image")
    return read_requirements(tmp_path / "requirements.txt").key("image")


def test_job_is_created_once_wheels_are_collected(eks: EksCli, key: str) -> None:
    document = eks.document(*WORDS)
    conforms("jobs-submit", document)
    (collecting,) = eks.cli.jobs(wheels_run(key))
    assert collecting["status"] == "SUCCEEDED"
    assert document["wheels"]["job_id"] == collecting["jobId"]
    assert eks.job(document["job_id"]) is not None


def test_no_job_is_created_without_wheels(
    eks: EksCli, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_SIMPLE_BATCH_FAIL_AFTER", "0")
    result = eks.run(*WORDS)
    assert result.exit_code == 1, result.stderr
    assert "run x was not submitted: its dependencies were not collected" in result.stderr
    assert eks.cluster.store.list(VOLCANO_JOB) == []


def test_document_reports_that_nothing_was_submitted(
    eks: EksCli, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_SIMPLE_BATCH_FAIL_AFTER", "0")
    document = eks.document(*WORDS)
    conforms("jobs-submit", document)
    assert (document["action"], document["job_id"]) == ("not-submitted", None)
    assert document["outcome"] is not None
