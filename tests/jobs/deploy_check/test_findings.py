"""Findings on a change: jobs that end, lost data, retained resources and AWS's refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.deploy_check.account import ActiveJob, DeployedStack
from jobs.deploy_check.assembly import SynthesizedStacks, Template
from jobs.deploy_check.changes import Change, Fate, Update
from jobs.deploy_check.effects import CLUSTER, ENVIRONMENT, NODE_GROUP, QUEUE
from jobs.deploy_check.findings import FindingItem, FindingKind, RunningJobs, find_all
from tests.jobs.samples import RUN
from trainium_catalogue.kubernetes import TAINT

Json = dict[str, Any]
NOW_S = 1_000_000.0
HOUR_S = 3600.0
NETWORK, STORAGE, BATCH, EKS = (
    f"trainium-default-{part}" for part in ("network", "storage", "batch", "eks")
)
TRAINIUM = {
    "Taints": [{"Key": TAINT, "Effect": "NO_SCHEDULE"}],
    "UpdateConfig": {"UpdateStrategy": "MINIMAL"},
}


def job(
    run: str, status: str = "RUNNING", *, limit_h: float | None = 168, begun_h_ago: float = 8
) -> ActiveJob:
    begun_ms = int((NOW_S - begun_h_ago * HOUR_S) * 1000) if status == "RUNNING" else None
    summary = replace(RUN, run=run, status=status, started_at_ms=begun_ms)
    return ActiveJob(summary=summary, limit_s=None if limit_h is None else limit_h * HOUR_S)


def change(
    kind: str,
    fate: Fate = Fate.UPDATED,
    *changed: str,
    properties: Json | None = None,
    **attributes: Any,
) -> Change:
    entry = {"Type": kind, "Properties": properties or {}, **attributes}
    return Change(
        stack=BATCH if kind in (ENVIRONMENT, QUEUE) else EKS,
        logical_id="It",
        resource_type=kind,
        fate=fate,
        old=entry,
        new={} if fate is Fate.REMOVED else entry,
        changed=frozenset(changed),
        reasons=tuple(changed),
    )


def new_machines(minutes: int | None = 7200) -> Change:
    policy = {} if minutes is None else {"UpdatePolicy": {"JobExecutionTimeoutMinutes": minutes}}
    return change(ENVIRONMENT, Fate.UPDATED, "ComputeResources.LaunchTemplate", properties=policy)


def findings(
    *changes: Change,
    jobs: Sequence[ActiveJob] = (),
    on_cluster: list[ActiveJob] | None = None,
    old: Mapping[str, Template] | None = None,
    new: Mapping[str, Template] | None = None,
    status: str = "UPDATE_COMPLETE",
    before: Mapping[str, frozenset[str]] | None = None,
) -> list[FindingItem]:
    """Return the findings on changes, or on two sets of templates."""
    queues = {"It": {"Type": QUEUE}, "Other": {"Type": CLUSTER}}
    old = old if old is not None else {BATCH: {"Resources": queues}, EKS: {"Resources": {}}}
    new = old if new is None else new
    stacks = {
        name: DeployedStack(
            name=name,
            status=status,
            template=content,
            physical_ids={logical: f"arn-of-{logical}" for logical in content["Resources"]},
        )
        for name, content in old.items()
    }

    def on_queues(queues: list[str]) -> list[ActiveJob]:
        assert queues == ["arn-of-It"]
        return list(jobs)

    return find_all(
        Update(changes=changes, after={name: new[name] for name in new if name in old}),
        stacks=stacks,
        assembly=SynthesizedStacks(
            folder=Path("cdk.out"),
            templates=new,
            dependencies={name: frozenset[str]() for name in new} | dict(before or {}),
            newer=None,
        ),
        running=RunningJobs(on_queues=on_queues, on_cluster=lambda: on_cluster, now_s=NOW_S),
    )


def runs(found: list[FindingItem]) -> dict[FindingKind, list[str]]:
    return {finding.kind: [it.run for it in finding.jobs] for finding in found}


# --- jobs on Batch -----------------------------------------------------------------------------


def test_time_limit_decides_whether_jobs_end_or_update_rolls_back() -> None:
    """An update of the instances: Batch ends jobs after 120 hours, CloudFormation waits two."""
    jobs = (job("long"), job("slow", limit_h=11), job("short", limit_h=9.5), job("w", "RUNNABLE"))
    found = findings(new_machines(), jobs=jobs)

    assert runs(found) == {
        FindingKind.ENDS_JOBS: ["long"],
        FindingKind.ROLLS_BACK: ["long", "slow"],
        FindingKind.CONTINUES: ["short"],
    }
    assert {it.within_minutes for finding in found for it in finding.jobs} == {7200}
    assert (
        "instances (LaunchTemplate); Batch ends jobs that are still running 120 h"
        in found[0].message
    )
    assert "120 minutes" in found[1].message and "rolls back" in found[1].message


@pytest.mark.parametrize("minutes", [None, 30])
def test_update_that_ends_jobs_in_time_is_not_rolled_back(minutes: int | None) -> None:
    """The default timeout is half an hour."""
    (found,) = findings(new_machines(minutes), jobs=(job("long"),))

    assert found.kind is FindingKind.ENDS_JOBS and "30 min later" in found.message


def test_job_without_time_limit_ends() -> None:
    found = findings(new_machines(), jobs=(job("a", limit_h=None),))

    assert runs(found)[FindingKind.ENDS_JOBS] == ["a"]


def test_larger_environment_ends_no_jobs() -> None:
    larger = change(ENVIRONMENT, Fate.UPDATED, "ComputeResources.MaxvCpus")

    assert findings(larger, jobs=(job("a"),)) == []


@pytest.mark.parametrize(
    ("kind", "fate", "ending"),
    [(ENVIRONMENT, Fate.REPLACED, ["a"]), (QUEUE, Fate.REMOVED, ["a", "b"])],
)
def test_removed_environment_or_queue_ends_its_jobs(
    kind: str, fate: Fate, ending: list[str]
) -> None:
    found = findings(change(kind, fate), jobs=(job("a", limit_h=9), job("b", "RUNNABLE")))

    assert runs(found) == {FindingKind.ENDS_JOBS: ending}
    assert "these jobs end immediately" in found[0].message


def test_environment_without_jobs_has_no_finding() -> None:
    assert findings(new_machines()) == []


# --- jobs on the cluster -----------------------------------------------------------------------


def test_node_group_update_ends_all_pods() -> None:
    new_image = change(NODE_GROUP, Fate.UPDATED, "ReleaseVersion", properties=TRAINIUM)
    found = findings(new_image, on_cluster=[job("a"), job("b", "RUNNABLE")])

    assert runs(found) == {FindingKind.ENDS_JOBS: ["a"]}
    assert "all at once (ReleaseVersion)" in found[0].message


@pytest.mark.parametrize(("size", "ends"), [(1, True), (2, False)])
def test_smaller_node_group_ends_jobs_that_need_more(size: int, ends: bool) -> None:
    properties = {**TRAINIUM, "ScalingConfig": {"MinSize": 0, "DesiredSize": size}}
    scaled = change(NODE_GROUP, Fate.UPDATED, "ScalingConfig.DesiredSize", properties=properties)

    assert [it.kind for it in findings(scaled, on_cluster=[job("a")])] == (
        [FindingKind.ENDS_JOBS] if ends else []
    )


@pytest.mark.parametrize(
    ("kind", "fate", "changed", "properties"),
    [
        (NODE_GROUP, Fate.UPDATED, "Labels.a", TRAINIUM),
        (NODE_GROUP, Fate.REPLACED, "Subnets", {}),
        (CLUSTER, Fate.UPDATED, "Version", {}),
    ],
    ids=["labels", "add-on nodes", "control plane"],
)
def test_changes_without_trainium_nodes_end_no_jobs(
    kind: str, fate: Fate, changed: str, properties: Json
) -> None:
    assert findings(change(kind, fate, changed, properties=properties), on_cluster=[job("a")]) == []


def test_removed_cluster_ends_pending_jobs() -> None:
    found = findings(change(CLUSTER, Fate.REMOVED), on_cluster=[job("a", "PENDING")])

    assert runs(found)[FindingKind.ENDS_JOBS] == ["a"]


def test_unreachable_cluster_is_reported() -> None:
    replaced = change(NODE_GROUP, Fate.REPLACED, "Subnets", properties=TRAINIUM)
    (found,) = findings(replaced, on_cluster=None)

    assert found.kind is FindingKind.UNKNOWN and "are unknown" in found.message


def test_second_zone_splits_existing_jobs() -> None:
    def say(on_cluster: list[ActiveJob] | None, num_before: int = 1) -> list[FindingItem]:
        groups = {f"Nodes{n}": {"Type": NODE_GROUP, "Properties": TRAINIUM} for n in range(3)}
        groups["System"] = {"Type": NODE_GROUP}
        before = {k: v for k, v in groups.items() if k in ("System", *list(groups)[:num_before])}
        old, new = ({EKS: {"Resources": each}} for each in (before, groups))
        return findings(on_cluster=on_cluster, old=old, new=new)

    assert runs(say([job("a"), job("b", "RUNNABLE")])) == {FindingKind.SPLITS_JOBS: ["a", "b"]}
    assert [found.kind for found in say(None)] == [FindingKind.UNKNOWN]
    assert say([]) == []
    assert say([job("a")], num_before=2) == []


# --- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        (Fate.REPLACED, "it is replaced (Some): "),
        (Fate.MAYBE_REPLACED, "it may be replaced (Some): "),
        (Fate.REMOVED, "it is removed: "),
    ],
)
def test_removed_or_replaced_data_is_lost(fate: Fate, said: str) -> None:
    (found,) = findings(change("AWS::Logs::LogGroup", fate, "Some"))

    assert found.kind is FindingKind.LOSES_DATA
    assert found.message == f"{said}its log lines are lost"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("AWS::S3::Bucket", "checkpoints"),
        ("AWS::FSx::FileSystem", "its contents are lost"),
        ("AWS::ECR::Repository", "its images are lost"),
    ],
)
def test_every_type_with_data_is_known(kind: str, said: str) -> None:
    (found,) = findings(change(kind, Fate.REMOVED))

    assert found.kind is FindingKind.LOSES_DATA
    assert said in found.message


@pytest.mark.parametrize(
    ("fate", "policy"),
    [
        (Fate.REPLACED, {"UpdateReplacePolicy": "Retain"}),
        (Fate.REMOVED, {"DeletionPolicy": "Retain"}),
    ],
)
def test_retained_data_is_not_lost(fate: Fate, policy: Json) -> None:
    (found,) = findings(change("AWS::S3::Bucket", fate, **policy))

    assert found.kind is FindingKind.STAYS and "is retained with its contents" in found.message


@pytest.mark.parametrize(
    ("kind", "fate"),
    [("AWS::EC2::SecurityGroup", Fate.REPLACED), ("AWS::S3::Bucket", Fate.UPDATED)],
)
def test_stateless_or_kept_resource_has_no_finding(kind: str, fate: Fate) -> None:
    assert findings(change(kind, fate, "Some")) == []


# --- retained resources and AWS's refusals -----------------------------------------------------


def test_stack_missing_from_assembly_stays_and_costs() -> None:
    cluster = {"Resources": {"C": {"Type": CLUSTER}}}
    (found,) = findings(
        old={BATCH: {"Resources": {}}, EKS: cluster}, new={BATCH: {"Resources": {}}}
    )

    assert (found.kind, found.stack) == (FindingKind.STAYS, EKS)
    assert CLUSTER in found.message
    assert "pass the -c settings it was deployed with" in found.remedy
    assert f"to remove it, run `aws cloudformation delete-stack --stack-name {EKS}`" in found.remedy


@pytest.mark.parametrize(
    ("kind", "properties", "moves", "names"),
    [
        ("AWS::EC2::Subnet", {"VpcId": "v", "CidrBlock": "c"}, "CidrBlock", "VpcId and CidrBlock"),
        (CLUSTER, {"Name": "c", "RoleArn": "r"}, "Name", "Name"),
    ],
)
def test_replacement_with_same_name_or_addresses_is_refused(
    kind: str, properties: Json, moves: str, names: str
) -> None:
    def refusals(fate: Fate, *changed: str, **given: str) -> list[str]:
        found = findings(change(kind, fate, *changed, properties=given), on_cluster=[])
        return [it.message for it in found if it.kind is FindingKind.REFUSED]

    (refused,) = refusals(Fate.REPLACED, "RoleArn", **properties)
    assert f"the same {names}, which" in refused
    assert refusals(Fate.REPLACED, moves, **properties) == []
    assert refusals(Fate.REPLACED, "RoleArn") == []  # a name generated by CloudFormation
    assert refusals(Fate.UPDATED, "RoleArn", **properties) == []


def test_image_update_together_with_other_change_is_refused() -> None:
    def group(fate: Fate, *changed: str) -> list[FindingItem]:
        return findings(change(NODE_GROUP, fate, *changed, properties=TRAINIUM), on_cluster=[])

    image, also = ("ReleaseVersion", "Version"), "ScalingConfig.MaxSize"
    (found,) = group(Fate.UPDATED, *image, also)
    assert found.kind is FindingKind.REFUSED and found.remedy.startswith("deploy twice")
    assert "together with ScalingConfig, which CloudFormation" in found.message
    assert group(Fate.UPDATED, *image) == group(Fate.REPLACED, *image, also) == []


NAME = f"{NETWORK}:Subnet"
USES = {"Resources": {"Files": {"SubnetIds": [{"Fn::ImportValue": NAME}], "Type": "T"}}}
EMPTY: Json = {"Resources": {}}


def exporting(value: object) -> Json:
    return {"Resources": {}, "Outputs": {"O": {"Value": value, "Export": {"Name": NAME}}}}


@pytest.mark.parametrize(
    ("new", "said", "remedy"),
    [
        ({NETWORK: EMPTY}, "be removed", f"delete-stack --stack-name {STORAGE}"),
        ({NETWORK: EMPTY, STORAGE: EMPTY}, "be removed", f"--exclusively {STORAGE}`"),
        ({NETWORK: exporting("b"), STORAGE: USES}, "change", "keep the setting"),
        ({NETWORK: exporting("a"), STORAGE: USES}, None, ""),
    ],
    ids=["left behind", "no longer imported", "other value", "unchanged"],
)
def test_export_in_use_cannot_be_removed_or_changed(
    new: Json, said: str | None, remedy: str
) -> None:
    found = findings(old={NETWORK: exporting("a"), STORAGE: USES}, new=new)
    refused = [finding for finding in found if finding.kind is FindingKind.REFUSED]

    assert len(refused) == bool(said)
    assert all(f"export {NAME} would {said}" in finding.message for finding in refused)
    assert all(remedy in finding.remedy for finding in refused)


def test_export_is_removed_if_importer_is_updated_first() -> None:
    old, new = {NETWORK: exporting("a"), STORAGE: USES}, {NETWORK: EMPTY, STORAGE: EMPTY}

    assert findings(old=old, new=new, before={NETWORK: frozenset({STORAGE})}) == []


def test_unused_export_is_removed() -> None:
    assert findings(old={NETWORK: exporting("a")}, new={NETWORK: EMPTY}) == []


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("UPDATE_IN_PROGRESS", "wait"),
        ("UPDATE_ROLLBACK_FAILED", "continue-update-rollback"),
        ("DELETE_FAILED", "delete-stack"),
        ("UPDATE_ROLLBACK_COMPLETE", None),
    ],
)
def test_stack_that_cannot_be_updated_is_reported(status: str, remedy: str | None) -> None:
    found = findings(old={BATCH: EMPTY}, status=status)

    assert [remedy in finding.remedy for finding in found if remedy] == [True] * bool(remedy)
    assert len(found) == bool(remedy)


def test_findings_are_sorted_by_severity() -> None:
    named = change(CLUSTER, Fate.REPLACED, "RoleArn", properties={"Name": "c"})
    found = findings(new_machines(), named, jobs=(job("a"), job("b", limit_h=9)), on_cluster=None)

    assert [finding.kind for finding in found] == [
        FindingKind.REFUSED,
        FindingKind.LOSES_DATA,
        FindingKind.ENDS_JOBS,
        FindingKind.ROLLS_BACK,
        FindingKind.UNKNOWN,
        FindingKind.CONTINUES,
    ]
