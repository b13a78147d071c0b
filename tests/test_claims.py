"""The list of claims is complete: each open one has a probe, or says why it has none."""

import re

import pytest

from jobs.claims import Claim, read_claims

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
