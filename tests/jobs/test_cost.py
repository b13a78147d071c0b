"""The maximum cost of a submission as printed by `submit`, and the caps that refuse it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.conftest import Cli
from tests.support.schemas import conforms
from trainium_catalogue import contract

SWEEP = ("submit", "all-reduce", "--nodes", "4", "--name", "sweep", "--time-limit", "6")
MOST = 4 * 21.5 * 3 * (1 + 6 + 120 / 3600)
"""USD: three times one hour of waiting, six of work and two minutes of grace."""


@pytest.fixture
def known(cli: Cli) -> Cli:
    """A deployment with default settings."""
    cli.parameter(contract.SSM_SETTINGS, "{}")
    return cli


def refusal(cli: Cli, *words: str) -> dict[str, Any]:
    """Return the document of a refused submission."""
    result = cli.run(*words, "--json")
    assert result.exit_code == 2, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def estimate(cli: Cli, *words: str) -> dict[str, Any]:
    result = cli.run(*words, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    conforms("jobs-submit", document)
    found: dict[str, Any] = document["estimate"]
    return found


def test_maximum_cost_is_printed_with_components_and_exclusions(known: Cli) -> None:
    shown = " ".join(known.run(*SWEEP, "--dry-run").stderr.split())

    assert "4 x trn1.32xlarge, at most 6 h per attempt" in shown
    assert "about $516.00 for 6 h ($21.50 per node-hour; " in shown
    assert f"at most ${MOST:,.2f}: 3 attempts of 6.033 h with the grace period" in shown
    assert "not included: instances while EC2 starts or terminates them, pulling the image" in shown
    assert "a later submission that resumes the run has its own maximum" in shown
    assert estimate(known, *SWEEP)["usd_at_most"] == pytest.approx(MOST, abs=0.01)


def test_submission_over_cap_is_refused_with_options_that_fit(known: Cli) -> None:
    refused = refusal(known, *SWEEP, "--max-usd", "1000", "--yes")

    assert refused["refused"] == "over-cap"
    assert "can cost $1,814.60, and --max-usd is $1,000.00 (3 attempts" in refused["message"]
    fits = (
        "submit with --nodes 2, or submit with --time-limit 2.8, or raise the cap with --max-usd "
        "1815"
    )
    assert fits in refused["message"]
    assert known.jobs("sweep") == []
    for option, value in (("--nodes", "2"), ("--time-limit", "2.8"), ("--max-usd", "1815")):
        assert estimate(known, *SWEEP, "--max-usd", "1000", option, value)["cap_usd"] >= 1000


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ((), "max_cost_per_job_usd of deployment 'default' is $900.00"),
        (("--max-usd", "1000"), "max_cost_per_job_usd of deployment 'default' is $900.00"),
        (("--max-usd", "800"), "--max-usd is $800.00"),
    ],
)
def test_smaller_cap_applies(known: Cli, given: tuple[str, ...], counts: str) -> None:
    known.parameter(contract.SSM_MAX_COST_PER_JOB_USD, "900")
    message = refusal(known, *SWEEP, *given)["message"]

    assert counts in message
    raised = "-c trainium:max_cost_per_job_usd=1815" in message
    assert raised == ("deployment" in counts)


@pytest.mark.parametrize(
    ("name", "value", "words", "lacks"),
    [
        (
            contract.SSM_SETTINGS,
            "null",
            SWEEP,
            "the deployment's settings, which limit how long instances wait, are unknown",
        ),
        (contract.SSM_INSTANCE_TYPE, "trn2.48xlarge", SWEEP, "no list price of trn2.48xlarge in"),
        (
            contract.SSM_SETTINGS,
            '{"cpu_instance_types": "r7i.16xlarge"}',
            ("submit", "prepare", "--dataset", "wikicorpus"),
            "no list price of the deployment's CPU instances",
        ),
    ],
)
def test_unknown_cost_exceeds_every_cap(
    known: Cli, name: str, value: str, words: tuple[str, ...], lacks: str
) -> None:
    known.parameter(name, value)

    assert lacks in estimate(known, *words)["usd_at_most_caveat"]
    refused = refusal(known, *words, "--max-usd", "1e9")
    assert refused["refused"] == "cost-not-known" and lacks in refused["message"]


def test_cap_does_not_limit_wait_of_ready_hosts_on_batch(known: Cli) -> None:
    words = (*SWEEP, "--max-usd", "2000")
    shown = " ".join(known.run(*words, "--dry-run").stderr.split())

    assert "ready hosts that wait for others indefinitely" in shown
    assert "the actual cost can be higher, because ready hosts wait until `jobs stop`" in shown
    assert "--max-usd is $2,000.00, and does not limit that wait" in shown
    assert "ready hosts wait until `jobs stop`" in estimate(known, *words)["usd_at_most_caveat"]
    assert estimate(known, *words, "--nodes", "1")["usd_at_most_caveat"] is None


@pytest.mark.parametrize("amount", ["0", "inf"])
def test_cap_must_be_a_finite_amount(known: Cli, amount: str) -> None:
    assert refusal(known, *SWEEP, "--max-usd", amount)["refused"] == "max-usd"


def test_cost_includes_compile_job(known: Cli) -> None:
    known.put("datasets/wiki/manifest.json", {"vocab_size": 32000, "num_tokens": 10**9})
    words = ("submit", "llama2-7b", "--nodes", "4", "--dataset", "wiki", "--time-limit", "6")
    alone, both = (estimate(known, *words, *more) for more in ((), ("--compile",)))

    assert both["usd_at_most"] == pytest.approx(2 * alone["usd_at_most"], abs=0.02)


def test_additional_zone_adds_wait_and_idle_time(known: Cli) -> None:
    settings = {"zone_ids": "usw2-az4,usw2-az1", "scale_down_delay_minutes": "30"}
    known.parameter(contract.SSM_SETTINGS, json.dumps(settings))

    idle, in_vain = 0.5, 1 + 0.5
    most = MOST + 4 * 21.5 * (idle + in_vain)
    assert estimate(known, *SWEEP)["usd_at_most"] == pytest.approx(most, abs=0.02)
    shown = " ".join(known.run(*SWEEP, "--dry-run").stderr.split())
    assert "0.5 h idle after the last, 1 move to another zone after 1.5 h" in shown
