"""Reading the deployment takes few calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from jobs.deployment import read_deployment
from jobs.errors import Refusal
from tests.jobs.fakes import client_error


class Ssm:
    """Counts calls, and has no parameters."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []

    def get_parameters(self, **kwargs: Any) -> Mapping[str, Any]:
        self.names.append(kwargs["Names"])
        return {"Parameters": []}

    def get_parameters_by_path(self, **kwargs: Any) -> Mapping[str, Any]:
        raise client_error("AccessDeniedException")


def test_calls_stay_within_ssm_batch_limit() -> None:
    ssm = Ssm()

    with pytest.raises(Refusal):
        read_deployment(ssm, "default", region="us-west-2", workload="all-reduce")

    assert ssm.names
    assert all(len(names) <= 10 for names in ssm.names)


def test_denied_hint_does_not_hide_refusal() -> None:
    with pytest.raises(Refusal, match="no deployment 'default' in us-west-2"):
        read_deployment(Ssm(), "default", region="us-west-2")
