"""AWS's refusals that no rule pack covers: a table of checks, independent of the emulators.

cdk-preflight and the CDK's own rules check every synthesis, and cfn-lint every template of the
tests; the table contains only what they miss, as ``tests/emulators/test_refusals.py`` verifies.
Requests come from an emulator, or from the templates of a test.
"""

from __future__ import annotations

from trainium_emulators.aws.refusals.request import AwsRequest
from trainium_emulators.aws.refusals.table import TABLE


def messages(on: str, request: AwsRequest) -> list[str]:
    """Return the messages with which AWS would refuse a request."""
    return [row.message for row in TABLE if row.on == on and row.refuses(request)]
