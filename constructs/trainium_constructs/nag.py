"""Acknowledgement of cdk-nag findings, each with its reason, on the construct concerned."""

from __future__ import annotations

from collections.abc import Iterable

import aws_cdk as cdk
from constructs import IConstruct


def acknowledge(construct: IConstruct, rule: str, reason: str) -> None:
    """Acknowledge ``rule`` (such as ``AwsSolutions-S1``) on ``construct``, with the reason."""
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))


def acknowledge_managed_policy(construct: IConstruct, policy: str, reason: str) -> None:
    """Record why ``construct`` has the AWS managed policy of this name."""
    arn = f"arn:<AWS::Partition>:iam::aws:policy/{policy}"
    acknowledge(construct, f"AwsSolutions-IAM4[Policy::{arn}]", reason)


def acknowledge_wildcard(construct: IConstruct, resource: str, reason: str) -> None:
    """Record why ``construct`` may act on ``resource``, as cdk-nag spells it."""
    acknowledge_wildcards(construct, [resource], reason)


def acknowledge_wildcards(construct: IConstruct, resources: Iterable[str], reason: str) -> None:
    """Record one reason for several resources, in one call: each call is a trip through jsii."""
    cdk.Validations.of(construct).acknowledge(
        *(
            cdk.Acknowledgment(id=f"AwsSolutions-IAM5[Resource::{resource}]", reason=reason)
            for resource in resources
        )
    )


def spelling_of(arn: str, *, owner: IConstruct, reader: IConstruct) -> str:
    """Spell ``arn`` of ``owner`` as cdk-nag does in a policy of ``reader``.

    Across stacks it contains the name of an export, which must exist before it can be named.
    """
    ours, theirs = cdk.Stack.of(reader), cdk.Stack.of(owner)
    if ours is theirs or not cdk.Token.is_unresolved(arn):
        value = ours.resolve(arn)
    else:
        value = theirs.resolve(theirs.export_value(arn))
    return _flat(value)


def _flat(value: object) -> str:
    match value:
        case str():
            return value
        case {"Fn::ImportValue": str(name)}:
            return name
        case {"Ref": str(name)}:
            return f"<{name}>"
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [str(separator), list(parts)]}:
            return separator.join(_flat(part) for part in parts)
    raise TypeError(f"cdk-nag's spelling of {value!r} is not known here")
