"""Acknowledgements of cdk-nag findings, each with a reason, on the construct concerned."""

from __future__ import annotations

from collections.abc import Iterable

import aws_cdk as cdk
from constructs import IConstruct


def acknowledge(construct: IConstruct, rule: str, reason: str) -> None:
    """Acknowledge ``rule`` (such as ``AwsSolutions-S1``) on ``construct``, with the reason."""
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))


def acknowledge_managed_policy(construct: IConstruct, policy: str, reason: str) -> None:
    """Acknowledge the AWS managed policy of this name on ``construct``."""
    arn = f"arn:<AWS::Partition>:iam::aws:policy/{policy}"
    acknowledge(construct, f"AwsSolutions-IAM4[Policy::{arn}]", reason)


def acknowledge_wildcard(construct: IConstruct, resource: str, reason: str) -> None:
    """Acknowledge access of ``construct`` to ``resource``, in cdk-nag's format."""
    acknowledge_wildcards(construct, [resource], reason)


def acknowledge_wildcards(construct: IConstruct, resources: Iterable[str], reason: str) -> None:
    """Acknowledge several resources with one reason, in one call, because jsii calls are slow."""
    cdk.Validations.of(construct).acknowledge(
        *(
            cdk.Acknowledgment(id=f"AwsSolutions-IAM5[Resource::{resource}]", reason=reason)
            for resource in resources
        )
    )


def spelling_of(arn: str, *, owner: IConstruct, reader: IConstruct) -> str:
    """Format ``arn`` of ``owner`` as cdk-nag does in a policy of ``reader``.

    If the stacks differ, the policy refers to an export, which this function creates first.
    """
    reader_stack, owner_stack = cdk.Stack.of(reader), cdk.Stack.of(owner)
    if reader_stack is owner_stack or not cdk.Token.is_unresolved(arn):
        value = reader_stack.resolve(arn)
    else:
        value = owner_stack.resolve(owner_stack.export_value(arn))
    return _format(value)


def _format(value: object) -> str:
    """Format a resolved value as cdk-nag does in the id of a finding."""
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
            return separator.join(_format(part) for part in parts)
    raise TypeError(f"cdk-nag's format of {value!r} is unknown")
