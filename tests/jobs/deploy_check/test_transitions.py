"""Findings on the supported changes of a deployment: none is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from jobs.deploy_check.account import DeployedStack
from jobs.deploy_check.assembly import SynthesizedStacks, read_assembly
from jobs.deploy_check.changes import compare
from jobs.deploy_check.findings import FindingKind, RunningJobs, find_all
from tests.jobs.deploy_check.test_findings import NOW_S, job
from tests.stacks.synthesis import deployment

Keys = Mapping[str, object]
ON_BATCH_ALONE: Keys = {"orchestrators": "batch", "lustre_gib": 1200}
BOTH: Keys = {
    "orchestrators": "both",
    "lustre_gib": 1200,
    "eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "eks_endpoint_cidrs": "203.0.113.7/32",
}
ON_BATCH = ("ends-jobs", "batch")
LONGER_THAN_THE_UPDATE = ("rolls-back", "batch")
ON_EKS = ("ends-jobs", "eks")


def assembly(keys: Keys) -> SynthesizedStacks:
    return read_assembly(deployment(**keys).folder, deployment="default", region=None)


# To jobs, dropping EKS is like dropping Batch. test_findings.py has every finding.
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param(
            {**BOTH, "root_volume_gib": 300},
            {ON_BATCH, LONGER_THAN_THE_UPDATE, ON_EKS},
            marks=pytest.mark.full,
        ),
        pytest.param(
            {**BOTH, "lustre_gib": 0},
            {ON_BATCH, LONGER_THAN_THE_UPDATE, ("loses-data", "lustre")},
            marks=pytest.mark.full,
        ),
        pytest.param(ON_BATCH_ALONE, {("stays", "eks")}, marks=pytest.mark.full),
        ({**BOTH, "orchestrators": "eks"}, {("stays", "batch")}),
        ({**BOTH, "max_nodes": 8}, {ON_EKS}),
        pytest.param(
            {**BOTH, "zone_ids": "usw2-az4,usw2-az1"},
            {("splits-jobs", "eks")},
            marks=pytest.mark.full,
        ),
        pytest.param({**BOTH, "job_time_limit_hours": 24}, set(), marks=pytest.mark.full),
    ],
    ids=["volume", "no lustre", "no eks", "no batch", "nodes", "zones", "time limit"],
)
def test_transition_reports_what_ends_is_removed_or_stays(
    changed: Keys, expected: set[tuple[str, str]]
) -> None:
    """Check with a run on two nodes in each queue and on the cluster."""
    old, new = assembly(BOTH), assembly(changed)
    stacks = {
        name: DeployedStack(
            name=name,
            status="UPDATE_COMPLETE",
            template=content,
            physical_ids={logical: f"physical-{logical}" for logical in content["Resources"]},
        )
        for name, content in old.templates.items()
    }
    found = find_all(
        compare(old.templates, new.templates),
        stacks=stacks,
        assembly=new,
        running=RunningJobs(
            on_queues=lambda _: [job("a")], on_cluster=lambda: [job("b")], now_s=NOW_S
        ),
    )

    assert FindingKind.REFUSED not in {finding.kind for finding in found}
    assert {(str(item.kind), item.stack.rpartition("-")[2]) for item in found} == expected
