"""The phases of a careful destroy, each of which may be interrupted and repeated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.deploy_check.assembly import read_assembly
from jobs.deploy_check.meaning import CLUSTER, QUEUE
from jobs.deployment import Deployment, missing_deployment, read_deployment
from jobs.errors import Refusal, as_refusal
from jobs.job import counted, stop_reason
from jobs.output.console import human, note, print_document
from jobs.output.terminal import Terminal
from jobs.teardown import receipt, stacks
from jobs.teardown.receipt import DownDocument, DownOutcome, EmptiedBucket, JobToEnd
from jobs.teardown.remains import Ownership, RemainingResource, Remains, bucket_bytes, look
from jobs.teardown.work import UnfinishedJobs, unsaved_work
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.node_use import stamp
from trainium_catalogue.prices import PRICES, PRICES_OF

LUSTRE = "AWS::FSx::FileSystem"
_UNPUBLISHED = ("missing-parameter", "no-deployment", "not-deployed")
"""Codes of what is not published, as by stacks that are being deleted."""


@dataclass(slots=True, kw_only=True)
class CarefulDestroy:
    """A destroy of one deployment, with its receipt as far as it has come."""

    deployment: str
    aws: Aws
    path: Path
    """Of the receipt."""
    writes: bool
    """Whether a receipt is written."""
    wait_s: float
    as_json: bool
    phase: str = "reading"
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    history: stacks.StackHistory | None = None
    jobs: tuple[JobToEnd, ...] = ()
    order: tuple[str, ...] = ()
    """Stacks to destroy, first to go first."""
    emptied: dict[str, int] = field(default_factory=dict)
    """Deleted versions by bucket."""
    _assembly: Path | None = None
    _planned: frozenset[str] = frozenset()
    """Stacks of the assembly, which `cdk destroy` deletes."""
    _work: UnfinishedJobs | None = None

    def plan(self, assembly: Path | None, synth_words: Sequence[str]) -> None:
        """Refuse what cannot be destroyed; show what would go and what would stay."""
        if synth_words and not synth_words[0].startswith("-"):
            raise Refusal(
                "not-a-setting",
                f"{synth_words[0]!r} is no setting: the words after -- go to `cdk synth`, such as "
                "-c trainium:max_nodes=4; to end one run, use `python -m jobs stop`",
            )
        if self.writes:
            receipt.check_path(self.path)
        self.history = history = self._read_stacks()
        self.order = tuple(stacks.destroy_order(history.live))
        if not history.every and not self._look().found:
            where = f" in {self.aws.region}" if self.aws.region else ""
            raise missing_deployment(self.aws.ssm(), self.deployment, where)
        if not self.order:
            note(f"deployment {self.deployment!r} has no stack any more")
            return
        self._assembly = assembly or self.path.with_suffix(".cdk.out")
        if assembly is None:
            note("synthesising the app with the settings that were deployed")
            settings = {**(history.settings or {}), "deployment": self.deployment}
            stacks.synthesize(self._assembly, settings, synth_words)
        planned = read_assembly(self._assembly, deployment=self.deployment, region=self.aws.region)
        stacks.check_kept(history.live, planned)
        self._planned = frozenset(planned.templates)
        self._read_jobs(history)
        self._show_plan(history)

    def run(self) -> DownOutcome:
        """Stop, wait, empty, destroy, and look for what is left."""
        assert self.history is not None
        if self.order:
            assert self._work is not None
            self._begin("stopping jobs and waiting for their end")
            self._end_jobs()
            self._begin("removing nodes of the cluster")
            self._work.remove_nodes(limit_s=self.wait_s, now=time.monotonic, sleep=time.sleep)
            self._begin("emptying buckets that go")
            self._empty_buckets()
            self._begin("looking for jobs that were submitted meanwhile")
            if self._end_jobs():
                self._empty_buckets()  # of what they have saved
            self._begin("destroying stacks")
            self._destroy_stacks()
        self._begin("looking for what is left")
        return self.end(None)

    def end(self, outcome: DownOutcome | None) -> DownOutcome:
        """Write the receipt and show it; without an outcome, look for what is left first."""
        document = self._document(outcome)
        if self.writes:
            receipt.write_receipt(self.path, document)
            table = self.path.with_suffix(".txt").name
            note(f"receipt: {self.path}, and its table as {table}")
        if self.as_json:
            print_document(document)
        else:
            receipt.show(document, Terminal())
        return document.outcome

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
            count = stacks.empty_bucket(self.aws.destroying("s3"), bucket)
            self.emptied[bucket] = self.emptied.get(bucket, 0) + count

    def _read_target(self, history: stacks.StackHistory) -> Deployment | None:
        """Read what the stacks publish; None where that is gone or of another version."""
        try:
            target = read_deployment(self.aws.ssm(), self.deployment, region=self.aws.region)
        except Refusal as refusal:
            _check_clusters(history, refusal)
            return None
        if (unusable := target.unusable.get(Orchestrator.EKS)) is not None:
            _check_clusters(history, unusable)
        elif Orchestrator.EKS not in target.orchestrators:
            # Taken out of the settings while its stack still stands.
            reason = f"deployment {self.deployment!r} has {', '.join(target.orchestrators)} only"
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
            JobToEnd(
                run=run.run,
                job_id=run.job_id,
                orchestrator=run.orchestrator,
                status=run.status,
                unsaved=self._unsaved(target, run.run),
            )
            for run in self._work.unfinished()
        )

    def _unsaved(self, target: Deployment | None, run: str) -> str | None:
        if target is None:
            return None
        try:
            return unsaved_work(Bucket(client=self.aws.s3(), name=target.bucket), run)
        except Exception as error:
            if as_refusal(error, region=self.aws.region) is None:
                raise
            return None

    def _show_plan(self, history: stacks.StackHistory) -> None:
        where = f" in {self.aws.region}" if self.aws.region else ""
        count = counted(len(self.order), "stack")
        note(f"deployment {self.deployment!r}{where}: {count} go: {', '.join(self.order)}")
        for job in self.jobs:
            unsaved = f"; unsaved: {job.unsaved}" if job.unsaved else ""
            note(f"  run {job.run} ({job.status}) is stopped, and may save first{unsaved}")
        if any(stack.physical_ids_of(LUSTRE) for stack in history.live.values()):
            note("  the file system goes, with all that is on /fsx and not in the bucket")
        for bucket in history.buckets_to_empty:
            size = bucket_bytes(self.aws, bucket)
            note(f"  bucket {bucket} is emptied and goes ({_size(size)})")
        for item in self._staying(history):
            usd = "?" if item.usd_per_month is None else f"${item.usd_per_month:,.2f}"
            note(f"  {item.kind} {item.id} stays, at about {usd} a month")

    def _staying(self, history: stacks.StackHistory) -> list[RemainingResource]:
        """List the buckets that are to stay, before anything is gone."""
        sizes = {id: bucket_bytes(self.aws, id) for id in history.kept_buckets}
        return [
            RemainingResource(
                service="s3",
                kind="bucket",
                id=id,
                seen_by="service",
                why=receipt.ASKED_TO_STAY,
                state=None,
                usd_per_month=None if size is None else size / 1e9 * PRICES["s3"].usd,
            )
            for id, size in sizes.items()
        ]

    def _destroy_stacks(self) -> None:
        words = ["destroy", "--all", "--force", "--app", str(self._assembly)]
        if code := stacks.run_cdk(words, lambda line: note(f"  {line}")):
            note(f"cdk destroy ended with {code}; what it could not delete is listed below")
        unknown = {
            name: stack
            for name, stack in self._read_stacks().live.items()
            # One that `cdk destroy` could not delete needs somebody to look first.
            if name not in self._planned and not stack.status.startswith("DELETE")
        }
        names = stacks.destroy_order(unknown)
        stacks.delete_stacks(self.aws.destroying("cloudformation"), names, note)
        self.history = self._read_stacks()

    def _look(self) -> Remains:
        assert self.history is not None
        return look(
            self.aws,
            Ownership(
                deployment=self.deployment,
                other_deployments=self.history.other_deployments,
                physical_ids=self.history.physical_ids(),
            ),
        )

    def _document(self, outcome: DownOutcome | None) -> DownDocument:
        history, planned = self.history, outcome == "planned"
        remains = self._look() if outcome is None else Remains(found=(), unchecked=())
        kept, left, going = receipt.sorted_out(remains.found, history.kept if history else ())
        if planned and history is not None:
            kept = tuple(self._staying(history))
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
            emptied=tuple(
                EmptiedBucket(bucket=bucket, versions=count)
                for bucket, count in self.emptied.items()
            ),
            kept=kept,
            left=left,
            going=going,
            unchecked=remains.unchecked,
            kept_usd_per_month=receipt.total(kept),
            left_usd_per_month=receipt.total(left),
            prices_of=PRICES_OF,
        )


def _check_clusters(history: stacks.StackHistory, why: Refusal) -> None:
    """Refuse if there is a cluster, as its jobs cannot be found."""
    for stack in history.live.values():
        # A stack that is being deleted stops publishing before its cluster is gone.
        if stack.status.startswith("DELETE") and why.code in _UNPUBLISHED:
            continue
        for cluster in stack.physical_ids_of(CLUSTER):
            raise Refusal(
                "unknown-cluster",
                f"the jobs on cluster {cluster} cannot be found, and would be lost with stack "
                f"{stack.name}: {why}; use the checkout that deployed it, or delete that stack "
                "first if its jobs may be lost",
            )


def _size(size: int | None) -> str:
    return "too many objects to count" if size is None else human(size)
