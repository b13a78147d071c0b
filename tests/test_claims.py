"""The list of claims is complete: each open one has a probe, or states what would settle it."""

import re

from jobs.verify.claims import read_claims
from jobs.verify.probes import PROBES as CLIENT
from training.diagnostics.probes import PROBES as NODE
from trainium_catalogue.parameters.verify import CHECKS

CLAIMS = read_claims()


def test_claim_ids_are_unique() -> None:
    ids = [claim.id for claim in CLAIMS]

    assert len(set(ids)) == len(ids)
    assert [name for name in ids if not re.fullmatch(r"[a-z0-9-]{1,40}", name)] == []


def test_claim_has_evidence_or_open_question() -> None:
    assert [claim.id for claim in CLAIMS if not claim.evidence and not claim.open] == []
    assert [c.id for c in CLAIMS if c.open and not c.probe and not c.why] == []


def test_every_probe_runs_at_place_of_its_claim() -> None:
    of_claims = {(claim.id, place) for claim in CLAIMS for place in claim.probe}
    of_code = {(name, probes.place) for probes in (NODE, CLIENT) for name in probes.by_id}

    assert of_code == of_claims


def test_check_probe_names_existing_verify_check() -> None:
    needed = {need for probe in NODE.by_id.values() for need in probe.needs}

    assert {need for need in needed if need.startswith("check ")} <= {f"check {c}" for c in CHECKS}
