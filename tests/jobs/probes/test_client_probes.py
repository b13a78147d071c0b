"""Every client-side probe is green if its claim holds, and red otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import Refusal
from jobs.verify.probes import PROBES, hosts
from tests.jobs.fakes import client_error
from tests.jobs.probes.world import (
    CASES,
    NO_GROUP,
    Case,
    NotFound,
    client_context,
    job,
    on_cluster,
    raises,
)
from trainium_catalogue.probing import State

HOST_SCRIPT = Path(__file__).resolve().parents[3] / "constructs/trainium_constructs/host_setup.sh"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (hosts._READY, 'say "ready: ${NEURON_DEVICES} Neuron devices'),
        (hosts._NOT_READY, 'say "HOST NOT READY'),
        (hosts._OTHER_DRIVER, "say \"driver '${loaded}' does not fit Neuron"),
        (hosts._EFA, 'say "installing EFA ${EFA_VERSION}"'),
    ],
)
def test_searched_lines_appear_in_host_scripts(line: re.Pattern[str], said: str) -> None:
    assert said in HOST_SCRIPT.read_text()
    assert 'echo "trainium: $*" >"${CONSOLE}"' in HOST_SCRIPT.read_text()
    assert line.search("trainium: " + said.removeprefix('say "'))


def test_every_probe_has_cases() -> None:
    assert set(CASES) == set(PROBES.by_id)


@pytest.mark.parametrize("name", CASES)
def test_probe_is_green_if_claim_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_from = CASES[name][0](monkeypatch)
    assert set(PROBES.by_id[name].needs) <= seen_from.met_requirements

    finding = PROBES.run(name, seen_from, seen_from.met_requirements)

    assert finding.state is State.GREEN, finding


@pytest.mark.parametrize("name", [name for name, cases in CASES.items() if cases[1]])
def test_probe_is_red_if_claim_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name][1]
    assert case is not None

    finding = PROBES.run(name, case(monkeypatch), PROBES.by_id[name].needs)

    assert finding.state is State.RED, finding
    assert finding.seen and finding.expected
    assert finding.seen != finding.expected


@pytest.mark.parametrize(
    ("name", "case", "seen"),
    [
        (
            "vpc-cni-addresses",
            client_context(objects={"aws-node": NotFound()}),
            "minimum None, warm None",
        ),
        (
            "control-plane-logs",
            client_context(logs={"describe_log_streams": lambda **kwargs: raises(NO_GROUP)}),
            "log group /aws/eks/cluster/cluster does not exist",
        ),
    ],
)
def test_missing_expected_resource_is_red(
    name: str, case: Case, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_from = case(monkeypatch)

    finding = PROBES.run(name, seen_from, seen_from.met_requirements)

    assert (finding.state, finding.seen) == (State.RED, seen)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (
            client_error("AccessDeniedException", operation="GetServiceQuota"),
            "permission for GetServiceQuota",
        ),
        (client_error("ThrottlingException"), "a timely response"),
        (Refusal("no-cluster", "there is no cluster"), "there is no cluster"),
    ],
)
def test_probe_without_access_is_not_run(
    error: Exception, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**kwargs: Any) -> None:
        raise error

    seen_from = client_context(service_quotas={"get_service_quota": fail})(monkeypatch)

    finding = PROBES.run("vcpu-quota", seen_from, seen_from.met_requirements)

    assert (finding.state, finding.needs) == (State.NOT_RUN, (what,))


def test_unexpected_answer_crashes_only_that_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    seen_from = client_context(service_quotas={"get_service_quota": {}})(monkeypatch)

    finding = PROBES.run("vcpu-quota", seen_from, seen_from.met_requirements)

    assert (finding.state, finding.seen) == (State.CRASHED, "KeyError: 'Quota'")


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("child-description", client_context(job=on_cluster(job(0)))),
        ("children-start-after-main", client_context(job=on_cluster(job(0)))),
        # Volcano terminates the other pods of a restarted gang, which exit with 143.
        ("retry-by-exit-code", client_context(jobs=[on_cluster(job(143, 0))])),
        ("same-hosts-on-retry", client_context(jobs=[on_cluster(job(75, 0))])),
    ],
)
def test_cluster_job_settles_no_batch_claim(
    name: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = PROBES.run(name, case(monkeypatch), PROBES.by_id[name].needs)

    assert finding.state is State.NOT_RUN, finding
