"""What AWS refuses and no rule pack has: a table over requests, which depends on no emulator.

cdk-preflight and the CDK's own rules judge every synthesis, cfn-lint every template of the tests;
the table has only what they let pass, as ``tests/emulators/test_refusals.py`` makes sure. A request
comes from templates (``templates``), or from an emulator.
"""

from __future__ import annotations

from trainium_emulators.aws.refusals.request import AwsRequest
from trainium_emulators.aws.refusals.table import TABLE


def messages(on: str, request: AwsRequest) -> list[str]:
    """Return AWS's objections to a request."""
    return [row.message for row in TABLE if row.on == on and row.refuses(request)]
