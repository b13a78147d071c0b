"""The commands' AWS calls, checked against the documented submitter policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.aws import Aws

POLICY = Path(__file__).parents[2] / "docs" / "submitter-policy.json"

# Actions not named like their operation (Service Authorization Reference, Amazon S3).
ACTIONS_OF_S3 = {
    "HeadObject": "GetObject",
    "HeadBucket": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
}


def allowed() -> set[str]:
    """Return every action of the policy."""
    actions: set[str] = set()
    for statement in json.loads(POLICY.read_text(encoding="utf-8"))["Statement"]:
        assert statement["Effect"] == "Allow"
        granted = statement["Action"]
        actions |= {granted} if isinstance(granted, str) else set(granted)
    return actions


def action_of(service: str, operation: str) -> str:
    """Return the IAM action that an operation needs."""
    return f"{service}:{ACTIONS_OF_S3.get(operation, operation) if service == 's3' else operation}"


def calls_are_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Record every call of a command; fail if the policy does not allow one.

    Exempt are clients of probes (``Aws.client``), since `jobs verify` reports missing
    permissions, and of administrators: `jobs check-deploy` reads stacks, and `jobs down` deletes
    them (``Aws.teardown_client``).
    """
    used: set[str] = set()
    make = Aws._client

    def note(model: Any, params: Any, **_: Any) -> None:
        if model.service_model.service_name != "cloudformation":
            # The signing name is IAM's prefix: servicequotas, which has a hyphen in boto3.
            used.add(action_of(model.service_model.signing_name, model.name))

    def watched(aws: Aws, service: str, **settings: Any) -> Any:
        client = make(aws, service, **settings)
        client.meta.events.register("before-call", note, unique_id=note)
        return client

    def client(aws: Aws, service: str) -> Any:
        return make(aws, service, mode="standard", attempts=4)

    monkeypatch.setattr(Aws, "_client", watched)
    monkeypatch.setattr(Aws, "client", client)
    monkeypatch.setattr(Aws, "teardown_client", client)
    yield
    missing = sorted(used - allowed())
    assert not missing, f"{POLICY.name} does not allow {', '.join(missing)}: add it there"
