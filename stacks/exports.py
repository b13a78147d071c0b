"""Exports that exist even if no stack imports them."""

from __future__ import annotations

import aws_cdk as cdk


def always_export(stack: cdk.Stack, *values: str) -> None:
    """Export values that later stacks may reference, even if none does.

    By default the CDK exports only referenced values, and deploys a stack before its consumers. It
    would therefore delete an export that is still imported, which CloudFormation refuses
    (docs/adr/0016-zones-and-removal.md). Values known at synthesis need no export.
    """
    for value in values:
        if cdk.Token.is_unresolved(value):
            stack.export_value(value)
