"""Table of what AWS refuses at create, update or submit time, beyond cfn-lint and moto.

Each service has a file. The table depends on no emulator and none of our templates: a rule reads
a ``Request``, whose values and account come from a template (``templates``) or an emulator.
"""

from __future__ import annotations

from trainium_emulators.aws.refusals import (
    access,
    batch_environments,
    batch_jobs,
    batch_nodes,
    batch_submissions,
    ec2_groups,
    ec2_network,
    ec2_templates,
    eks_access,
    eks_clusters,
    eks_nodes,
    fsx,
    s3,
    services,
    stack,
)
from trainium_emulators.aws.refusals.refusal import AwsOutcome, AwsRefusal
from trainium_emulators.aws.refusals.request import AwsRequest

TABLE: tuple[AwsRefusal, ...] = tuple(
    row
    for module in (
        batch_environments,
        batch_jobs,
        batch_nodes,
        batch_submissions,
        ec2_templates,
        ec2_groups,
        ec2_network,
        fsx,
        eks_clusters,
        eks_nodes,
        eks_access,
        s3,
        services,
        access,
        stack,
    )
    for row in module.ROWS
)


def messages(on: str, request: AwsRequest) -> list[str]:
    """Return AWS's objections to a request, except for what it would merely ignore."""
    return [
        message
        for row in TABLE
        if row.on == on and row.outcome is not AwsOutcome.IGNORED
        for message in row.messages(request)
    ]
