"""The phases of a safe teardown; each is idempotent and can be interrupted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.deploy_check.assembly import read_assembly
from jobs.deploy_check.effects import CLUSTER, QUEUE
from jobs.deployment import Deployment, missing_deployment, read_deployment
from jobs.errors import Refusal, as_refusal
from jobs.job import stop_reason
from jobs.output.console import human, note, print_document
from jobs.output.terminal import Terminal
from jobs.teardown import receipt, stacks
from jobs.teardown.receipt import DownDocument, DownOutcome, EmptiedBucket, JobToEnd
from jobs.teardown.remains import (
    Ownership,
    RemainingResource,
    Remains,
    bucket_bytes,
    find_remains,
)
from jobs.teardown.work import UnfinishedJobs, describe_unsaved
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import picked
from trainium_catalogue.node_use import stamp
from trainium_catalogue.prices import PRICES, PRICES_OF
from trainium_catalogue.wording import counted

LUSTRE = "AWS::FSx::FileSystem"
_UNPUBLISHED = ("missing-parameter", "no-deployment", "not-deployed")
"""Refusal codes for missing parameters, as for stacks that are being deleted."""


@dataclass(slots=True, kw_only=True)
class Teardown:
    """The teardown of a deployment, and its receipt so far."""

    deployment: str
    aws: Aws
    path: Path
    """Path of the receipt."""
    writes: bool
    """True to write a receipt."""
    wait_s: float
    as_json: bool
    phase: str = "reading"
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    history: stacks.StackHistory | None = None
    jobs: tuple[JobToEnd, ...] = ()
    order: tuple[str, ...] = ()
    """Stacks, in order of deletion."""
    emptied: dict[str, int] = field(default_factory=dict)
    """Deleted versions by bucket."""
    earlier: tuple[receipt.EarlierDown, ...] = ()
    """Earlier commands in the receipt."""
    _assembly: Path | None = None
    _planned: frozenset[str] = frozenset()
    """Stacks of the assembly, which `cdk destroy` deletes."""
    _work: UnfinishedJobs | None = None

    def plan(self, assembly: Path | None, synth_words: Sequence[str]) -> None:
        """Show what would be deleted and retained; refuse a deployment that cannot be destroyed."""
        if synth_words and not synth_words[0].startswith("-"):
            raise Refusal(
                "not-a-setting",
                f"{synth_words[0]!r} is not an option: arguments after -- are passed to `cdk "
                "synth`, such as -c trainium:max_nodes=4; to stop a run, use `python -m jobs stop`",
            )
        if self.writes:
            receipt.check_path(self.path)
            self.earlier = receipt.read_earlier(self.path, self.deployment)
        self.history = history = self._read_stacks()
        self.order = tuple(stacks.destroy_order(history.live))
        if not history.every and not self._find_remains().found:
            where = f" in {self.aws.region}" if self.aws.region else ""
            raise missing_deployment(self.aws.ssm(), self.deployment, where)
        if not self.order:
            note(f"deployment {self.deployment!r} has no stacks to destroy")
            return
        self._assembly = assembly or self.path.with_suffix(".cdk.out")
        if assembly is None:
            note("synthesizing the app with the deployed settings")
            settings = {**(history.settings or {}), "deployment": self.deployment}
            stacks.synthesize(self._assembly, settings, synth_words)
        planned = read_assembly(self._assembly, deployment=self.deployment, region=self.aws.region)
        stacks.check_kept(history.live, planned)
        self._planned = frozenset(planned.templates)
        self._read_jobs(history)
        self._show_plan(history)

    def run(self) -> DownOutcome:
        """Stop jobs, empty buckets, destroy stacks, and search for leftovers."""
        assert self.history is not None
        if self.order:
            assert self._work is not None
            try:
                self._prepare(self._work)
            except BaseException:
                self._reopen_queues(self._work)
                raise
            self._begin("destroying stacks")
            self._destroy_stacks()
        self._begin("searching for leftovers")
        return self.end(None)

    def _prepare(self, work: UnfinishedJobs) -> None:
        """Stop all jobs, remove the nodes, and empty the buckets to be deleted."""
        self._begin("closing job queues")
        work.close_queues(sleep=time.sleep)
        self._begin("stopping jobs and waiting for them to end")
        self._end_jobs()
        self._begin("removing nodes of the cluster")
        work.remove_nodes(limit_s=self.wait_s, now=time.monotonic, sleep=time.sleep)
        self._begin("emptying buckets to be deleted")
        self._empty_buckets()
        # A queue may still be open because of a missing permission.
        self._begin("checking for newly submitted jobs")
        if self._end_jobs():
            self._empty_buckets()  # again, because jobs may have saved since

    def _reopen_queues(self, work: UnfinishedJobs) -> None:
        """Reopen the queues, unless data was deleted that jobs may need."""
        assert self.history is not None
        emptied = [*(it for run in self.earlier for it in run.emptied), *self._emptied]
        gone = {
            bucket: sum(it.versions for it in emptied if it.bucket == bucket)
            for bucket in self.history.buckets_to_empty
        }
        gone = {bucket: count for bucket, count in gone.items() if count}
        for bucket, count in gone.items():
            note(f"deleted up to {counted(count, 'object version')} in bucket {bucket}")
        if gone:
            note("job queues stay closed: run this again to finish")
        else:
            work.reopen_queues(sleep=time.sleep)

    def end(self, outcome: DownOutcome | None) -> DownOutcome:
        """Write and show the receipt; without an outcome, search for leftovers first."""
        document = self._document(outcome)
        if self.writes:
            receipt.write_receipt(self.path, document)
            table = self.path.with_suffix(".txt").name
            note(f"receipt: {self.path}, with its table in {table}")
        if self.as_json:
            print_document(document)
        else:
            receipt.show(document, Terminal())
        return document.outcome

    @property
    def _emptied(self) -> tuple[EmptiedBucket, ...]:
        return tuple(EmptiedBucket(bucket=name, versions=n) for name, n in self.emptied.items())

    def _begin(self, phase: str) -> None:
        self.phase = phase
        note(phase)

    def _read_stacks(self) -> stacks.StackHistory:
        return stacks.read_history(self.aws.cloudformation(), self.deployment)

    def _end_jobs(self) -> bool:
        assert self._work is not None
        return self._work.end_all(
            reason=stop_reason("down"), limit_s=self.wait_s, now=time.monotonic, sleep=time.sleep
        )

    def _empty_buckets(self) -> None:
        assert self.history is not None
        for bucket in self.history.buckets_to_empty:
            stacks.empty_bucket(self.aws.teardown_client("s3"), bucket, self.emptied)

    def _read_target(self, history: stacks.StackHistory) -> Deployment | None:
        """Read the deployment; None if its parameters are missing or from a different version."""
        try:
            target = read_deployment(self.aws.ssm(), self.deployment, region=self.aws.region)
        except Refusal as refusal:
            _check_clusters(history, refusal)
            return None
        if (unusable := target.unusable.get(Orchestrator.EKS)) is not None:
            _check_clusters(history, unusable)
        elif Orchestrator.EKS not in target.orchestrators:
            # EKS was removed from the settings while its stack still exists.
            reason = f"deployment {self.deployment!r} has only {', '.join(target.orchestrators)}"
            _check_clusters(history, Refusal("not-deployed", reason))
        return target

    def _read_jobs(self, history: stacks.StackHistory) -> None:
        target = self._read_target(history)
        queues = {arn for stack in history.live.values() for arn in stack.physical_ids_of(QUEUE)}
        self._work = UnfinishedJobs(
            aws=self.aws,
            target=target,
            queues=sorted(queues | set(target.queues if target else ())),
            note=note,
        )
        self.jobs = tuple(
            picked(JobToEnd, run, unsaved=self._describe_unsaved(target, run.run))
            for run in self._work.unfinished()
        )

    def _describe_unsaved(self, target: Deployment | None, run: str) -> str | None:
        if target is None:
            return None
        try:
            return describe_unsaved(Bucket(client=self.aws.s3(), name=target.bucket), run)
        except Exception as error:
            if as_refusal(error, region=self.aws.region) is None:
                raise
            return None

    def _show_plan(self, history: stacks.StackHistory) -> None:
        where = f" in {self.aws.region}" if self.aws.region else ""
        count = counted(len(self.order), "stack")
        note(f"deployment {self.deployment!r}{where}: destroy {count}: {', '.join(self.order)}")
        for job in self.jobs:
            unsaved = f"; unsaved: {job.unsaved}" if job.unsaved else ""
            note(f"  run {job.run} ({job.status}): stop, with time to save{unsaved}")
        if any(stack.physical_ids_of(LUSTRE) for stack in history.live.values()):
            note("  file system: delete, with everything on /fsx that is not in the bucket")
        for bucket in history.buckets_to_empty:
            size = bucket_bytes(self.aws, bucket)
            note(f"  bucket {bucket}: empty and delete ({_size(size)})")
        for item in self._list_retained_buckets(history):
            usd = "?" if item.usd_per_month is None else f"${item.usd_per_month:,.2f}"
            note(f"  {item.kind} {item.id}: retain, at about {usd} per month")

    def _list_retained_buckets(self, history: stacks.StackHistory) -> list[RemainingResource]:
        """List the buckets that will be retained."""
        sizes = {id: bucket_bytes(self.aws, id) for id in history.kept_buckets}
        return [
            RemainingResource(
                service="s3",
                kind="bucket",
                id=id,
                seen_by="service",
                why=receipt.RETAINED,
                state=None,
                usd_per_month=None if size is None else size / 1e9 * PRICES["s3"].usd,
            )
            for id, size in sizes.items()
        ]

    def _destroy_stacks(self) -> None:
        words = ["destroy", "--all", "--force", "--app", str(self._assembly)]
        if code := stacks.run_cdk(words, lambda line: note(f"  {line}")):
            note(f"cdk destroy exited with {code}; resources it could not delete are listed below")
        unknown = {
            name: stack
            for name, stack in self._read_stacks().live.items()
            # A stack that `cdk destroy` could not delete needs a user's attention first.
            if name not in self._planned and not stack.status.startswith("DELETE")
        }
        names = stacks.destroy_order(unknown)
        stacks.delete_stacks(self.aws.teardown_client("cloudformation"), names, note)
        self.history = self._read_stacks()

    def _find_remains(self) -> Remains:
        assert self.history is not None
        return find_remains(
            self.aws,
            Ownership(
                deployment=self.deployment,
                other_deployments=self.history.other_deployments,
                physical_ids=self.history.physical_ids(),
            ),
        )

    def _document(self, outcome: DownOutcome | None) -> DownDocument:
        history, planned = self.history, outcome == "planned"
        remains = self._find_remains() if outcome is None else Remains(found=(), unchecked=())
        kept, left, going = receipt.split(remains.found, history.kept if history else ())
        if planned and history is not None:
            kept = tuple(self._list_retained_buckets(history))
        if outcome is None:
            outcome = "left" if left else "unproven" if remains.unchecked else "empty"
        return DownDocument(
            deployment=self.deployment,
            region=self.aws.region or "",
            outcome=outcome,
            phase=self.phase,
            began_at=stamp(self.began),
            ended_at=stamp(datetime.now(UTC)),
            jobs=self.jobs,
            stacks=self.order,
            emptied=self._emptied,
            kept=kept,
            left=left,
            going=going,
            unchecked=remains.unchecked,
            kept_usd_per_month=receipt.total(kept),
            left_usd_per_month=receipt.total(left),
            prices_of=PRICES_OF,
            earlier=self.earlier,
        )


def _check_clusters(history: stacks.StackHistory, why: Refusal) -> None:
    """Refuse if there is a cluster whose jobs cannot be listed."""
    for stack in history.live.values():
        # A stack that is being deleted loses its parameters before its cluster.
        if stack.status.startswith("DELETE") and why.code in _UNPUBLISHED:
            continue
        for cluster in stack.physical_ids_of(CLUSTER):
            raise Refusal(
                "unknown-cluster",
                f"the jobs on cluster {cluster} cannot be listed, and would be lost with stack "
                f"{stack.name}: {why}; use the checkout that deployed it, or delete that stack "
                "first if losing its jobs is acceptable",
            )


def _size(size: int | None) -> str:
    return "too many objects to count" if size is None else human(size)
