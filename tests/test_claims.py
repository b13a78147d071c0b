"""The list of claims is complete: each open one has a probe, or says why it has none."""

import re

import pytest

from jobs.verify.claims import Claim, read_claims
from jobs.verify.probes import PROBES as DESK
from tools.readme import VERIFICATION
from training.checks.probes import PROBES as NODE

CLAIMS = read_claims()
claims = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)


def test_an_id_names_one_claim() -> None:
    ids = [claim.id for claim in CLAIMS]

    assert len(set(ids)) == len(ids)


@claims
def test_an_id_is_short_and_kebab_case(claim: Claim) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", claim.id)
    assert len(claim.id) <= 40


@claims
def test_an_open_claim_has_a_probe_or_says_why_not(claim: Claim) -> None:
    assert claim.probe or claim.why or not claim.open


@claims
def test_a_claim_that_nothing_supports_is_open(claim: Claim) -> None:
    assert claim.evidence or claim.open
    assert "open" not in re.split(r"[;:,. ]+", claim.evidence)


@claims
def test_reasons_are_given_of_open_claims_and_probes(claim: Claim) -> None:
    assert not claim.why or claim.open or claim.probe


def test_every_probe_runs_where_its_claim_says() -> None:
    of_claims = {(claim.id, place) for claim in CLAIMS for place in claim.probe}
    of_code = {(name, probes.place) for probes in (NODE, DESK) for name in probes.by_id}

    assert of_code == of_claims


def test_a_probe_of_a_check_names_one_that_verify_makes() -> None:
    needed = {need for probe in NODE.by_id.values() for need in probe.needs}

    assert {need for need in needed if need.startswith("check ")} <= {
        f"check {name}"
        for name in (
            "sums", "gradients", "parity", "resume", "graphs", "families", "data-parallel", "cache",
        )
    }  # fmt: skip


def test_every_section_of_the_claims_is_shown() -> None:
    page = VERIFICATION.read_text()

    assert all(f"<!-- generated: claims {claim.section} -->" in page for claim in CLAIMS)
