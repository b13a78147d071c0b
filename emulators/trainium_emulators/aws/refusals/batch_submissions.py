"""Refusals of AWS Batch: SubmitJob.

The request has the API's form, plus the definition that it names under ``definition`` and the
queue's properties, as far as known, under ``queue``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from trainium_emulators.aws.refusals.batch_environments import API, GUIDE
from trainium_emulators.aws.refusals.batch_nodes import nodes_of
from trainium_emulators.aws.refusals.refusal import MOTO, SUBMIT, AwsOutcome, AwsRefusal, Fill, when
from trainium_emulators.aws.refusals.request import AwsRequest, each, get, text

MAX_BYTES = 30 * 1024
MAX_OVERRIDE_CHARACTERS = 8192
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_OURS = {"definition", "queue"}


def _ranges(request: AwsRequest) -> list[str]:
    entries = request.each("definition.nodeProperties.nodeRangeProperties")
    return [text(get(entry, "targetNodes")) for entry in entries]


def _closed(request: AwsRequest) -> Iterable[Fill]:
    ranges = _ranges(request)
    return when(
        request.has("nodeOverrides.numNodes")
        and bool(ranges)
        and not any(target.endswith(":") for target in ranges)
    )


def _no_such_range(request: AwsRequest) -> Iterable[Fill]:
    ranges = _ranges(request)
    if not ranges:
        return
    for override in request.each("nodeOverrides.nodePropertyOverrides"):
        if (target := text(get(override, "targetNodes"))) and target not in ranges:
            yield (target,)


def _uncovered(request: AwsRequest) -> Iterable[Fill]:
    ranges = _ranges(request)
    default = request.number("definition.nodeProperties.numNodes")
    wanted = request.number("nodeOverrides.numNodes", default)
    if not ranges or wanted != wanted:
        return []
    covered = {index for target in ranges for index in nodes_of(target, int(wanted))}
    return when(not set(range(int(wanted))) <= covered)


def _size(request: AwsRequest) -> Iterable[Fill]:
    own = {name: value for name, value in request.properties.items() if name not in _OURS}
    size = len(json.dumps(own, separators=(",", ":")).encode())
    return when(size > MAX_BYTES, -(-size // 1024))


def _override_length(request: AwsRequest) -> Iterable[Fill]:
    overrides = [
        get(entry, "containerOverrides")
        for entry in request.each("nodeOverrides.nodePropertyOverrides")
    ]
    for override in [request.get("containerOverrides"), *overrides]:
        if override is not None and len(json.dumps(override)) > MAX_OVERRIDE_CHARACTERS:
            yield ()


def _attempts(request: AwsRequest) -> Iterable[Fill]:
    return when(not 1 <= request.number("retryStrategy.attempts", 1) <= 10)


def _wrong_overrides(request: AwsRequest) -> Iterable[Fill]:
    kind = request.get("definition.type")
    for given, wanted in (("nodeOverrides", "multinode"), ("containerOverrides", "container")):
        if request.get(given) and kind is not None and kind != wanted:
            yield (given, kind)


def _reserved(override: Any) -> list[str]:
    names = [text(get(pair, "name")) for pair in each(get(override, "environment"))]
    return [name for name in names if name.startswith("AWS_BATCH")]


ROWS = (
    AwsRefusal(
        id="submit-name",
        on=SUBMIT,
        condition="A name with other characters than letters, digits, hyphens and underscores.",
        words="Job name should match valid pattern",
        source="https://github.com/fluidattacks/makes/issues/697",
        known_to=MOTO,
        check=lambda r: when(not _NAME.fullmatch(r.text("jobName"))),
    ),
    AwsRefusal(
        id="submit-size",
        on=SUBMIT,
        condition="A request of more than 30 KiB.",
        words="Job size must be less than 30 KiB, got {} KiB",
        source="https://github.com/ASFHyP3/hyp3/issues/3041",
        check=_size,
    ),
    AwsRefusal(
        id="submit-override-length",
        on=SUBMIT,
        condition="Overrides of more characters than ECS takes; the job is accepted and fails.",
        words="Container Overrides length must be at most 8192",
        outcome=AwsOutcome.FAILS_LATER,
        source="https://github.com/Netflix/metaflow/issues/1482",
        check=_override_length,
    ),
    AwsRefusal(
        id="submit-nodes-of-closed-ranges",
        on=SUBMIT,
        condition="Another number of nodes, where every range of the definition has an end.",
        words="NumNodes override can only be applied if the job definition has at least 1 target "
        "node without a range_end i.e (:) or (range_start:).",
        source="https://github.com/aws/aws-cdk/issues/29415",
        check=_closed,
    ),
    AwsRefusal(
        id="submit-override-of-other-range",
        on=SUBMIT,
        condition="Overrides for a range of nodes that the definition does not have.",
        words="NodeOverride targets should match job definition. Non matching targets - {}",
        source="https://github.com/aws/aws-parallelcluster/pull/964",
        check=_no_such_range,
    ),
    AwsRefusal(
        id="submit-nodes-uncovered",
        on=SUBMIT,
        condition="More nodes than the ranges of the definition reach.",
        words="Node ranges must account for all nodes",
        verbatim=False,
        source=API + "API_NodeOverrides.html",
        check=_uncovered,
    ),
    AwsRefusal(
        id="submit-other-overrides",
        on=SUBMIT,
        condition="Overrides of one kind of job for another.",
        words="{} must not be specified for a {} job",
        verbatim=False,
        source=API + "API_SubmitJob.html",
        check=_wrong_overrides,
    ),
    AwsRefusal(
        id="submit-array-of-nodes",
        on=SUBMIT,
        condition="A multi-node job as an array.",
        words="Array jobs are not supported for multi-node parallel jobs",
        verbatim=False,
        source=GUIDE + "multi-node-parallel-jobs.html",
        check=lambda r: when(
            r.get("definition.type") == "multinode" and r.has("arrayProperties.size")
        ),
    ),
    AwsRefusal(
        id="submit-array-size",
        on=SUBMIT,
        condition="An array of fewer than 2 or more than 10,000 jobs.",
        words="Array Job size must be between 2 and 10000",
        verbatim=False,
        source=GUIDE + "array_jobs.html",
        check=lambda r: when(not 2 <= r.number("arrayProperties.size", 2) <= 10_000),
    ),
    AwsRefusal(
        id="submit-timeout",
        on=SUBMIT,
        condition="A time limit below 60 seconds.",
        words="AttemptDurationSeconds in Timeout must be at least 60 seconds.",
        source=API + "API_JobTimeout.html",
        check=lambda r: when(r.number("timeout.attemptDurationSeconds") < 60),
    ),
    AwsRefusal(
        id="submit-attempts",
        on=SUBMIT,
        condition="No attempt, or more than ten.",
        words="RetryAttempts must be between 1 and 10.",
        source=API + "API_RetryStrategy.html",
        check=_attempts,
    ),
    AwsRefusal(
        id="submit-dependencies",
        on=SUBMIT,
        condition="More than 20 jobs to wait for.",
        words="A job can depend on at most 20 jobs, got {}",
        verbatim=False,
        source=GUIDE + "service_limits.html",
        check=lambda r: when(len(r.each("dependsOn")) > 20, len(r.each("dependsOn"))),
    ),
    AwsRefusal(
        id="submit-tags",
        on=SUBMIT,
        condition="More than 50 tags.",
        words="A job can have at most 50 tags, got {}",
        verbatim=False,
        source=API + "API_SubmitJob.html",
        known_to=MOTO,
        check=lambda r: when(len(r.get("tags", {})) > 50, len(r.get("tags", {}))),
    ),
    AwsRefusal(
        id="submit-share-missing",
        on=SUBMIT,
        condition="No share identifier for a queue with a scheduling policy.",
        words="shareIdentifier must be specified.",
        source="https://github.com/boto/boto3/issues/3158",
        check=lambda r: when(r.has("queue.schedulingPolicyArn") and not r.has("shareIdentifier")),
    ),
    AwsRefusal(
        id="submit-priority-missing",
        on=SUBMIT,
        condition="A share identifier without a priority.",
        words="Either schedulingPriority in job definition or schedulingPriorityOverride should be "
        "specified.",
        source="https://github.com/nextflow-io/nextflow/pull/3505",
        check=lambda r: when(
            r.has("shareIdentifier")
            and not r.has("schedulingPriorityOverride")
            and not r.has("definition.schedulingPriority")
        ),
    ),
    AwsRefusal(
        id="submit-queue-disabled",
        on=SUBMIT,
        condition="A queue that takes no jobs.",
        words="Job queue is not in ENABLED state",
        verbatim=False,
        source=API + "API_UpdateJobQueue.html",
        check=lambda r: when(r.get("queue.state") == "DISABLED"),
    ),
    AwsRefusal(
        id="submit-ignores-reserved-variables",
        on=SUBMIT,
        condition="An environment variable of Batch's own prefix, which Batch takes away.",
        words="{} is not passed to the container",
        verbatim=False,
        outcome=AwsOutcome.IGNORED,
        source="https://github.com/raster-foundry/raster-foundry/pull/2525",
        check=lambda r: [
            (name,)
            for override in [
                r.get("containerOverrides"),
                *(
                    get(entry, "containerOverrides")
                    for entry in r.each("nodeOverrides.nodePropertyOverrides")
                ),
            ]
            for name in _reserved(override)
        ],
    ),
)
