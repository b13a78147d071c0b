"""Exports that do not depend on having users."""

from __future__ import annotations

import aws_cdk as cdk


def always_export(stack: cdk.Stack, *values: str) -> None:
    """Export values that later stacks may refer to, whether one does or not.

    The CDK exports only what is referred to, and deploys a stack before those that refer to it.
    Along with its last reference an export would go too early: CloudFormation refuses to delete
    one in use (docs/adr/0016-zones-and-removal.md). Values known at synthesis need no export.
    """
    for value in values:
        if cdk.Token.is_unresolved(value):
            stack.export_value(value)
