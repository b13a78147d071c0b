"""Checks of templates with cfn-lint."""

from __future__ import annotations

from functools import cache
from typing import Any

from cfnlint.config import ConfigMixIn, ManualArgs
from cfnlint.decode.decode import decode_str
from cfnlint.runner import Runner
from cfnlint.runner.template import run_template_by_data


def findings_of(text: str, region: str) -> list[Any]:
    """Return what cfn-lint finds in a template for a region."""
    template, errors = decode_str(text)
    assert not errors, errors
    return list(run_template_by_data(template, _config(region), _rules()))


def _config(region: str) -> ConfigMixIn:
    return ConfigMixIn(**ManualArgs(regions=[region], ignore_checks=[]))


@cache
def _rules() -> Any:
    """Load the rules once for many templates, like cfn-lint's command line: loading is slow."""
    return Runner(_config("us-west-2")).rules
