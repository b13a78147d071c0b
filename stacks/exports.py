"""Exports that do not come and go with their users."""

from __future__ import annotations

import aws_cdk as cdk


def always_export(stack: cdk.Stack, *values: str) -> None:
    """Export what later stacks may refer to, whether one does or not.

    The CDK exports what is referred to, and deploys a stack before those that refer to it: with
    its last user an export would go too early, and CloudFormation refuses to delete one in use
    (docs/adr/0016-zones-and-removal.md). A value that needs no export, being known, is left out.
    """
    for value in values:
        if cdk.Token.is_unresolved(value):
            stack.export_value(value)
