"""Checks of templates with cfn-lint."""

from __future__ import annotations

from functools import cache
from typing import Any

from cfnlint.config import ConfigMixIn, ManualArgs
from cfnlint.decode.decode import decode_str
from cfnlint.runner import Runner


def findings_of(text: str, region: str) -> list[Any]:
    """Return what cfn-lint finds in a template for a region."""
    template, errors = decode_str(text)
    assert not errors, errors
    return list(_runner(region).validate_template(template))


@cache
def _runner(region: str) -> Any:
    """Load the rules once for many templates, like cfn-lint's command line: loading is slow."""
    return Runner(ConfigMixIn(**ManualArgs(regions=[region], ignore_checks=[])))
