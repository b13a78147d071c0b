"""The list of claims is complete: each open one has a probe, or says what would settle it."""

import re

import pytest

from jobs.verify.claims import Claim, read_claims
from jobs.verify.probes import PROBES as DESK
from training.diagnostics.probes import PROBES as NODE
from trainium_catalogue.parameters.verify import CHECKS

CLAIMS = read_claims()


def test_an_id_names_one_claim() -> None:
    ids = [claim.id for claim in CLAIMS]

    assert len(set(ids)) == len(ids)
    assert [name for name in ids if not re.fullmatch(r"[a-z0-9-]{1,40}", name)] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_has_evidence_or_is_open_and_says_what_settles_it(claim: Claim) -> None:
    assert claim.evidence or claim.open
    assert claim.probe or claim.why or not claim.open


def test_every_probe_runs_where_its_claim_says() -> None:
    of_claims = {(claim.id, place) for claim in CLAIMS for place in claim.probe}
    of_code = {(name, probes.place) for probes in (NODE, DESK) for name in probes.by_id}

    assert of_code == of_claims


def test_a_probe_of_a_check_names_one_that_verify_makes() -> None:
    needed = {need for probe in NODE.by_id.values() for need in probe.needs}

    assert {need for need in needed if need.startswith("check ")} <= {f"check {c}" for c in CHECKS}
