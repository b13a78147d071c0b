"""What is said of a change: jobs that end, data that goes, what stays and what AWS refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.deploy_check.account import ActiveJob, Stack
from jobs.deploy_check.assembly import Assembly
from jobs.deploy_check.changes import Update
from jobs.deploy_check.findings import DeployFinding, FindingKind, Running, find_all
from jobs.deploy_check.replacements import Replacements
from jobs.job import RunSummary
from tests.jobs.deploy_check.conftest import (
    BATCH,
    NETWORK,
    STORAGE,
    Json,
    environment,
    launch_template,
    resource,
    subnet,
    template,
)
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.kubernetes import TAINT
from trainium_catalogue.workloads import Hardware

NOW_S = 1_000_000.0
HOUR_S = 3600.0
EKS = "trainium-default-eks"


def job(
    run: str, status: str = "RUNNING", *, limit_h: float | None = 168, begun_h_ago: float = 8
) -> ActiveJob:
    summary = RunSummary(
        run=run,
        job_id=f"id-of-{run}",
        status=status,
        status_reason=None,
        created_at_ms=0,
        started_at_ms=int((NOW_S - begun_h_ago * HOUR_S) * 1000) if status == "RUNNING" else None,
        stopped_at_ms=None,
        num_nodes=2,
        hardware=Hardware.TRAINIUM,
        orchestrator=Orchestrator.BATCH,
    )
    return ActiveJob(summary=summary, limit_s=None if limit_h is None else limit_h * HOUR_S)


class Jobs:
    """Batch, with one queue in front of everything."""

    def __init__(self, *jobs: ActiveJob) -> None:
        self.jobs = list(jobs)
        self.asked: list[str] = []

    def of_environment(self, arn: str) -> list[ActiveJob]:
        self.asked.append(arn)
        return self.jobs

    of_queue = of_environment


def findings(
    old: Mapping[str, Json],
    new: Mapping[str, Json],
    replacements: Replacements,
    *,
    jobs: Sequence[ActiveJob] = (),
    on_cluster: list[ActiveJob] | None = None,
    status: str = "UPDATE_COMPLETE",
    before: Mapping[str, frozenset[str]] | None = None,
) -> list[DeployFinding]:
    stacks = {
        name: Stack(
            name=name,
            status=status,
            template=content,
            physical_ids={logical: f"physical-{logical}" for logical in content["Resources"]},
        )
        for name, content in old.items()
    }
    batch: Any = Jobs(*jobs)
    found = find_all(
        Update(old, new, replacements),
        stacks=stacks,
        assembly=Assembly(
            folder=Path("cdk.out"),
            templates=new,
            before={name: frozenset[str]() for name in new} | dict(before or {}),
            newer=None,
        ),
        running=Running(batch=batch, cluster=lambda: on_cluster, now_s=NOW_S),
        replacements=replacements,
    )
    assert all(arn.startswith("physical-") for arn in batch.asked)
    return found


def on_batch(size: int = 200, minutes: int | None = 7200, **resources: Any) -> Mapping[str, Json]:
    entries = {"Template": launch_template(size), "Nodes": environment(minutes, **resources)}
    return {BATCH: template(entries)}


def node_group(**properties: Any) -> Mapping[str, Json]:
    given = {
        "Taints": [{"Key": TAINT, "Effect": "NO_SCHEDULE"}],
        "UpdateConfig": {"UpdateStrategy": "MINIMAL"},
        "ReleaseVersion": "1.35.6-20260625",
        "Subnets": ["subnet-1"],
        "ScalingConfig": {"MinSize": 0, "DesiredSize": 2, "MaxSize": 4},
        **properties,
    }
    return {EKS: template({"Group": resource("AWS::EKS::Nodegroup", given)})}


def only(found: list[DeployFinding], kind: FindingKind) -> DeployFinding:
    (finding,) = [finding for finding in found if finding.kind is kind]
    return finding


# --- jobs on Batch -----------------------------------------------------------------------------


def test_a_new_launch_template_ends_what_still_runs_when_the_time_is_over(
    replacements: Replacements,
) -> None:
    long, short, waiting = job("long"), job("short", limit_h=9), job("waiting", "RUNNABLE")
    found = findings(on_batch(200), on_batch(300), replacements, jobs=(long, short, waiting))
    ends = only(found, FindingKind.ENDS_JOBS)

    assert [entry.run for entry in ends.jobs] == ["long"]
    assert (ends.jobs[0].within_minutes, ends.jobs[0].minutes_left) == (7200, 160 * 60)
    assert "LaunchTemplate" in ends.message and "120 hours" in ends.message
    assert [entry.run for entry in only(found, FindingKind.GOES_ON).jobs] == ["short"]


def test_a_job_that_outlasts_cloudformations_time_for_the_update_is_named(
    replacements: Replacements,
) -> None:
    long, short = job("long", limit_h=11), job("short", limit_h=9.5)
    found = findings(on_batch(200), on_batch(300), replacements, jobs=(long, short))
    rolls_back = only(found, FindingKind.ROLLS_BACK)

    assert [entry.run for entry in rolls_back.jobs] == ["long"]
    assert "120 minutes" in rolls_back.message and "rolls back" in rolls_back.message
    assert [entry.run for entry in only(found, FindingKind.GOES_ON).jobs] == ["short"]


def test_an_update_that_ends_jobs_before_that_time_does_not_wait_for_them(
    replacements: Replacements,
) -> None:
    found = findings(on_batch(200), on_batch(300, 30), replacements, jobs=(job("long"),))

    assert {finding.kind for finding in found} == {FindingKind.ENDS_JOBS}


@pytest.mark.parametrize("policy", [None, 30])
def test_without_a_longer_time_it_is_half_an_hour(
    replacements: Replacements, policy: int | None
) -> None:
    found = findings(on_batch(200), on_batch(300, policy), replacements, jobs=(job("a"),))

    assert "30 minutes" in only(found, FindingKind.ENDS_JOBS).message


def test_an_environment_may_say_that_jobs_end_at_once(replacements: Replacements) -> None:
    new = on_batch(300)
    new[BATCH]["Resources"]["Nodes"]["Properties"]["UpdatePolicy"] = {
        "TerminateJobsOnUpdate": True,
        "JobExecutionTimeoutMinutes": 7200,
    }
    found = findings(on_batch(200), new, replacements, jobs=(job("a", limit_h=9),))

    assert only(found, FindingKind.ENDS_JOBS).jobs[0].within_minutes == 0


def test_a_job_without_a_limit_of_its_own_ends_too(replacements: Replacements) -> None:
    found = findings(on_batch(200), on_batch(300), replacements, jobs=(job("a", limit_h=None),))

    assert only(found, FindingKind.ENDS_JOBS).jobs[0].minutes_left is None


def test_a_larger_environment_ends_nothing(replacements: Replacements) -> None:
    found = findings(on_batch(), on_batch(MaxvCpus=512), replacements, jobs=(job("a"),))

    assert found == []


def test_an_environment_or_a_queue_that_goes_ends_its_jobs(replacements: Replacements) -> None:
    queue = {"Queue": resource("AWS::Batch::JobQueue", {"Priority": 1})}
    old = {BATCH: template({**on_batch()[BATCH]["Resources"], **queue})}
    new = {BATCH: template({"Template": launch_template()})}
    found = findings(old, new, replacements, jobs=(job("a"), job("b", "RUNNABLE")))

    assert {entry.resource: [job.run for job in entry.jobs] for entry in found} == {
        "Nodes": ["a"],
        "Queue": ["a", "b"],
    }


def test_nothing_is_said_of_an_environment_without_jobs(replacements: Replacements) -> None:
    assert findings(on_batch(200), on_batch(300), replacements) == []


# --- jobs on the cluster -----------------------------------------------------------------------


def test_an_update_of_the_node_group_ends_all_its_pods_at_once(replacements: Replacements) -> None:
    new = node_group(ReleaseVersion="1.35.6-20260714")
    found = findings(node_group(), new, replacements, on_cluster=[job("a"), job("b", "RUNNABLE")])
    ends = only(found, FindingKind.ENDS_JOBS)

    assert [entry.run for entry in ends.jobs] == ["a"]
    assert "all at once (ReleaseVersion)" in ends.message


@pytest.mark.parametrize(("size", "ends"), [(0, True), (1, True), (2, False), (4, False)])
def test_a_smaller_number_of_nodes_ends_jobs_that_need_more(
    replacements: Replacements, size: int, ends: bool
) -> None:
    new = node_group(ScalingConfig={"MinSize": 0, "DesiredSize": size, "MaxSize": 8})
    found = findings(node_group(), new, replacements, on_cluster=[job("a")])

    assert [entry.kind for entry in found] == ([FindingKind.ENDS_JOBS] if ends else [])


@pytest.mark.parametrize(
    "also",
    [{"ScalingConfig": {"MinSize": 0, "DesiredSize": 2, "MaxSize": 8}}, {"Labels": {"a": "b"}}],
    ids=["its size", "labels"],
)
def test_a_new_image_and_something_else_at_once_are_refused(
    replacements: Replacements, also: Mapping[str, Any]
) -> None:
    image = {"ReleaseVersion": "1.36.2-20260714", "Version": "1.36"}
    both = findings(node_group(), node_group(**image, **also), replacements)
    alone = findings(node_group(), node_group(**image), replacements)
    (name,) = also

    finding = only(both, FindingKind.REFUSED)
    assert f"another image or version together with {name}: CloudFormation" in finding.message
    assert finding.remedy.startswith("deploy twice")
    assert FindingKind.REFUSED not in {finding.kind for finding in alone}


def test_other_settings_of_the_node_group_end_nothing(replacements: Replacements) -> None:
    new = node_group(Labels={"a": "b"})

    assert findings(node_group(), new, replacements, on_cluster=[job("a")]) == []


def test_nodes_of_the_cluster_s_own_run_no_jobs(replacements: Replacements) -> None:
    old, new = node_group(Taints=[]), node_group(Taints=[], ReleaseVersion="2")

    assert findings(old, new, replacements, on_cluster=[job("a")]) == []


def test_a_cluster_that_does_not_answer_is_said(replacements: Replacements) -> None:
    found = findings(node_group(), node_group(Subnets=["subnet-2"]), replacements, on_cluster=None)

    assert "not known" in only(found, FindingKind.UNKNOWN).message


# --- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        ("AWS::FSx::FileSystem", {"SubnetIds": ["a"]}, {"SubnetIds": ["b"]}, "what is on it is lo"),
        ("AWS::S3::Bucket", {"BucketName": "a"}, {"BucketName": "b"}, "checkpoints"),
        ("AWS::ECR::Repository", {"RepositoryName": "a"}, {}, "its images are gone"),
        ("AWS::Logs::LogGroup", {"LogGroupName": "a"}, {"LogGroupName": "b"}, "log lines"),
    ],
)
def test_what_holds_data_and_is_replaced_loses_it(
    replacements: Replacements, kind: str, old: Json, new: Json, said: str
) -> None:
    before, after = ({STORAGE: template({"Data": resource(kind, given)})} for given in (old, new))
    finding = only(findings(before, after, replacements), FindingKind.LOSES_DATA)

    assert said in finding.message and "replaced" in finding.message


def test_what_holds_data_and_goes_loses_it(replacements: Replacements) -> None:
    before = {STORAGE: template({"Data": resource("AWS::FSx::FileSystem")})}
    found = findings(before, {STORAGE: template({})}, replacements)

    assert only(found, FindingKind.LOSES_DATA).message.startswith("it is removed:")


def test_what_is_retained_stays_and_is_not_lost(replacements: Replacements) -> None:
    def bucket(name: str) -> Json:
        return resource("AWS::S3::Bucket", {"BucketName": name}, UpdateReplacePolicy="Retain")

    before, after = ({STORAGE: template({"Data": bucket(name)})} for name in ("a", "b"))
    finding = only(findings(before, after, replacements), FindingKind.STAYS)

    assert "stays, with what is in it" in finding.message


def test_what_holds_nothing_and_is_replaced_is_no_finding(replacements: Replacements) -> None:
    group = "AWS::EC2::SecurityGroup"
    before, after = (
        {NETWORK: template({"G": resource(group, {"GroupDescription": text})})} for text in "ab"
    )

    assert findings(before, after, replacements) == []


# --- what stays, and what AWS refuses ----------------------------------------------------------


def test_a_stack_that_the_assembly_lacks_stays_and_costs(replacements: Replacements) -> None:
    cluster = {EKS: template({"C": resource("AWS::EKS::Cluster")})}
    finding = only(findings({**on_batch(), **cluster}, on_batch(), replacements), FindingKind.STAYS)

    assert finding.stack == EKS
    assert "AWS::EKS::Cluster" in finding.message
    assert "give the -c settings that it was deployed with" in finding.remedy
    assert f"to remove it: aws cloudformation delete-stack --stack-name {EKS}" in finding.remedy


def test_a_subnet_cannot_be_replaced_by_one_with_its_addresses(replacements: Replacements) -> None:
    def stack(cidr: str, zone: str) -> Mapping[str, Json]:
        return {NETWORK: template({"Subnet": subnet(cidr, zone)})}

    old = stack("10.0.0.0/24", "usw2-az4")
    refused = findings(old, stack("10.0.0.0/24", "usw2-az1"), replacements)
    fine = findings(old, stack("10.0.1.0/24", "usw2-az1"), replacements)

    assert "the VpcId and CidrBlock of the old one" in only(refused, FindingKind.REFUSED).message
    assert fine == []


def test_a_named_resource_cannot_be_replaced_under_its_name(replacements: Replacements) -> None:
    before, after = (
        {EKS: template({"C": resource("AWS::EKS::Cluster", {"Name": "c", "RoleArn": role})})}
        for role in "ab"
    )

    assert (
        "the Name of the old one"
        in only(findings(before, after, replacements), FindingKind.REFUSED).message
    )


@pytest.mark.parametrize(
    ("after", "remedy"),
    [
        ({}, f"aws cloudformation delete-stack --stack-name {STORAGE}"),
        ({STORAGE: template({})}, f"cdk deploy --exclusively {STORAGE}"),
    ],
    ids=["left behind", "imports it no longer"],
)
def test_an_export_in_use_that_goes_is_refused(
    replacements: Replacements, after: Json, remedy: str
) -> None:
    name = f"{NETWORK}:Subnet"
    uses = resource("AWS::FSx::FileSystem", {"SubnetIds": [{"Fn::ImportValue": name}]})
    before = {
        NETWORK: template({"Subnet": subnet()}, {name: {"Ref": "Subnet"}}),
        STORAGE: template({"Files": uses}),
    }
    found = findings(before, {NETWORK: template({"Subnet": subnet()}), **after}, replacements)
    finding = only(found, FindingKind.REFUSED)

    assert f"export {name} would be removed" in finding.message
    assert remedy in finding.remedy


def test_an_export_goes_when_who_imported_it_is_updated_first(replacements: Replacements) -> None:
    name = f"{NETWORK}:Subnet"
    uses = resource("AWS::FSx::FileSystem", {"SubnetIds": [{"Fn::ImportValue": name}]})
    old = {
        NETWORK: template({"Subnet": subnet()}, {name: {"Ref": "Subnet"}}),
        STORAGE: template({"Files": uses}),
    }
    without = resource("AWS::FSx::FileSystem", {"SubnetIds": ["subnet-1"]})
    new = {NETWORK: template({"Subnet": subnet()}), STORAGE: template({"Files": without})}
    found = findings(old, new, replacements, before={NETWORK: frozenset({STORAGE})})

    assert FindingKind.REFUSED not in {finding.kind for finding in found}


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("UPDATE_IN_PROGRESS", "wait"),
        ("UPDATE_ROLLBACK_FAILED", "continue-update-rollback"),
        ("DELETE_FAILED", "delete-stack"),
        ("UPDATE_ROLLBACK_COMPLETE", None),
    ],
)
def test_a_stack_that_takes_no_update_is_said(
    replacements: Replacements, status: str, remedy: str | None
) -> None:
    found = findings(on_batch(), on_batch(), replacements, status=status)

    assert [remedy in finding.remedy for finding in found if remedy] == [True] * bool(remedy)
    assert len(found) == bool(remedy)


def test_the_gravest_comes_first(replacements: Replacements) -> None:
    old = {**on_batch(200), **node_group(), NETWORK: template({"S": subnet()})}
    new = {**on_batch(300), NETWORK: template({"S": subnet(zone="usw2-az1")})}
    found = findings(old, new, replacements, jobs=(job("a"), job("b", limit_h=9)))

    assert [finding.kind for finding in found] == [
        FindingKind.REFUSED,
        FindingKind.ENDS_JOBS,
        FindingKind.ROLLS_BACK,
        FindingKind.STAYS,
        FindingKind.GOES_ON,
    ]
