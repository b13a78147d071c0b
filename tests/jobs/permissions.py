"""What the commands ask of AWS, held to the policy that a submitter is told to need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.aws import Aws

POLICY = Path(__file__).parents[2] / "docs" / "submitter-policy.json"

# Where the action has another name than the operation (Service Authorization Reference, Amazon S3).
ACTIONS_OF_S3 = {
    "HeadObject": "GetObject",
    "HeadBucket": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
}


def allowed() -> set[str]:
    """Every action of the policy."""
    actions: set[str] = set()
    for statement in json.loads(POLICY.read_text(encoding="utf-8"))["Statement"]:
        assert statement["Effect"] == "Allow"
        granted = statement["Action"]
        actions |= {granted} if isinstance(granted, str) else set(granted)
    return actions


def action_of(service: str, operation: str) -> str:
    """The IAM action that an operation needs."""
    return f"{service}:{ACTIONS_OF_S3.get(operation, operation) if service == 's3' else operation}"


def calls_are_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note every call of a command; fail on one that the policy does not allow.

    Clients of probes (``Aws.reading``) are no submitter's: `jobs verify` says what it may not see.
    Nor are those of who deploys and destroys: `jobs check-deploy` reads stacks, and `jobs down`
    deletes them (``Aws.destroying``).
    """
    used: set[str] = set()
    make = Aws._client

    def note(model: Any, params: Any, **_: Any) -> None:
        if model.service_model.service_name != "cloudformation":
            # The name in signatures is IAM's prefix: servicequotas, where boto3 has a hyphen.
            used.add(action_of(model.service_model.signing_name, model.name))

    def watched(aws: Aws, service: str, **settings: Any) -> Any:
        client = make(aws, service, **settings)
        client.meta.events.register("before-call", note)
        return client

    def reading(aws: Aws, service: str) -> Any:
        return make(aws, service, mode="standard", attempts=4)

    monkeypatch.setattr(Aws, "_client", watched)
    monkeypatch.setattr(Aws, "reading", reading)
    monkeypatch.setattr(Aws, "destroying", reading)
    yield
    missing = sorted(used - allowed())
    assert not missing, f"{POLICY.name} does not allow {', '.join(missing)}: add it there"
