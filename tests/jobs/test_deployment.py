"""The deployment is read with few calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from jobs.deployment import read_deployment
from jobs.errors import Refusal
from tests.jobs.fakes import client_error


class Ssm:
    """Counts the calls; knows nothing."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []

    def get_parameters(self, **kwargs: Any) -> Mapping[str, Any]:
        self.names.append(kwargs["Names"])
        return {"Parameters": []}

    def get_parameters_by_path(self, **kwargs: Any) -> Mapping[str, Any]:
        raise client_error("AccessDeniedException")


def test_one_call_asks_for_no_more_than_ssm_allows() -> None:
    ssm = Ssm()

    with pytest.raises(Refusal):
        read_deployment(ssm, "default", region="us-west-2", workload="all-reduce")

    assert ssm.names
    assert all(len(names) <= 10 for names in ssm.names)


def test_a_hint_that_is_denied_does_not_hide_the_refusal() -> None:
    with pytest.raises(Refusal, match="no deployment 'default' in us-west-2"):
        read_deployment(Ssm(), "default", region="us-west-2")
