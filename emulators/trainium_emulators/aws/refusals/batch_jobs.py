"""Refusals of AWS Batch: job definitions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from trainium_emulators.aws.refusals.batch_environments import API, GUIDE, NAME
from trainium_emulators.aws.refusals.refusal import (
    CFN_LINT,
    DEFINITION,
    MOTO,
    AwsOutcome,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import (
    AwsRequest,
    duplicates,
    each,
    get,
    number,
    text,
    texts,
    true,
)

MAX_BYTES = 24 * 1024
_AWSLOGS = {
    "awslogs-group", "awslogs-region", "awslogs-stream-prefix", "awslogs-datetime-format",
    "awslogs-multiline-pattern", "awslogs-create-group",
}  # fmt: skip


def containers(request: AwsRequest) -> Iterator[dict[str, Any]]:
    """Return a job's container, or one per range of nodes."""
    ranges = [
        get(entry, "Container") for entry in request.each("NodeProperties.NodeRangeProperties")
    ]
    for container in [request.get("ContainerProperties"), *ranges]:
        if isinstance(container, dict):
            yield container


def _too_long(request: AwsRequest) -> Iterable[Fill]:
    # References are shorter than their values, so this is a lower bound.
    size = len(json.dumps(request.properties, default=lambda _: "", separators=(",", ":")))
    return when(size > MAX_BYTES, size // 1024)


def _conditions(request: AwsRequest) -> Iterator[tuple[str, str]]:
    for rule in request.each("RetryStrategy.EvaluateOnExit"):
        for key in ("OnExitCode", "OnReason", "OnStatusReason"):
            if text(get(rule, key)):
                yield key, text(get(rule, key))


def _exit_codes(request: AwsRequest) -> Iterable[Fill]:
    return when(
        any(
            key == "OnExitCode" and not re.fullmatch(r"[0-9*]+", pattern)
            for key, pattern in _conditions(request)
        )
    )


def _no_condition(request: AwsRequest) -> Iterable[Fill]:
    keys = {"OnExitCode", "OnReason", "OnStatusReason"}
    rules = request.each("RetryStrategy.EvaluateOnExit")
    return when(any(isinstance(rule, dict) and not keys & {*rule} for rule in rules))


def _requirements(container: Any) -> list[tuple[str, Any]]:
    return [
        (text(get(entry, "Type")), get(entry, "Value"))
        for entry in each(get(container, "ResourceRequirements"))
    ]


def _vcpu_missing(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        if "Vcpus" not in container and "VCPU" not in dict(_requirements(container)):
            yield ()


def _vcpu_small(request: AwsRequest) -> Iterable[Fill]:
    if "FARGATE" in texts(request.get("PlatformCapabilities")):
        return
    for container in containers(request):
        for kind, value in _requirements(container):
            if kind == "VCPU" and number(value) < 1:
                yield (value,)


def _not_numbers(request: AwsRequest) -> Iterable[Fill]:
    if "FARGATE" in texts(request.get("PlatformCapabilities")):
        return
    for container in containers(request):
        for kind, value in _requirements(container):
            if kind in ("VCPU", "MEMORY", "GPU") and text(value) and not text(value).isdigit():
                yield (value, kind)


def _memory_small(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        asked = [number(v) for kind, v in _requirements(container) if kind == "MEMORY"]
        for mebibytes in [*asked, number(get(container, "Memory"))]:
            if mebibytes < 4:
                yield (int(mebibytes),)


def _required_twice(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        if duplicates(kind for kind, _ in _requirements(container)):
            yield ()


def _old_and_new(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        kinds = dict(_requirements(container))
        for old, kind in (("Vcpus", "VCPU"), ("Memory", "MEMORY")):
            if old in container and kind in kinds:
                yield (old.lower(), kind)


def _permissions(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        for device in each(get(container, "LinuxParameters.Devices")):
            for permission in texts(get(device, "Permissions")):
                if permission.upper() not in {"READ", "WRITE", "MKNOD"}:
                    yield (permission, text(get(device, "HostPath")))


def _tmpfs(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        for mount in each(get(container, "LinuxParameters.Tmpfs")):
            if number(get(mount, "Size"), 0) < 1:
                yield ()


def _swappiness(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        value = number(get(container, "LinuxParameters.Swappiness"))
        if value < 0 or value > 100:
            yield (int(value),)


def _swap_without_swappiness(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        linux = get(container, "LinuxParameters", {})
        if number(get(linux, "MaxSwap")) > 0 and get(linux, "Swappiness") is None:
            yield ()


def _awslogs(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        log = get(container, "LogConfiguration", {})
        options = get(log, "Options", {})
        if text(get(log, "LogDriver")) == "awslogs" and isinstance(options, dict):
            for name in sorted({*options} - _AWSLOGS):
                yield (name,)


def _secrets(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        named = each(get(container, "Secrets")) + each(
            get(container, "LogConfiguration.SecretOptions")
        )
        if named and get(container, "ExecutionRoleArn") is None:
            yield ()


def _unnamed_variables(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        if any(get(pair, "Name") is None for pair in each(get(container, "Environment"))):
            yield ()


def _reserved_variables(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        for pair in each(get(container, "Environment")):
            if text(get(pair, "Name")).startswith("AWS_BATCH"):
                yield (text(get(pair, "Name")),)


def _single_node_type(request: AwsRequest) -> Iterable[Fill]:
    return when(request.has("ContainerProperties.InstanceType"))


def _volumes(request: AwsRequest) -> Iterable[Fill]:
    kinds = {"Host", "EfsVolumeConfiguration", "S3filesVolumeConfiguration"}
    for container in containers(request):
        for volume in each(get(container, "Volumes")):
            if isinstance(volume, dict) and len(kinds & {*volume}) > 1:
                yield ()


def _unknown_volumes(request: AwsRequest) -> Iterable[Fill]:
    for container in containers(request):
        names = {text(get(volume, "Name")) for volume in each(get(container, "Volumes"))}
        for mount in each(get(container, "MountPoints")):
            if (source := text(get(mount, "SourceVolume"))) and source not in names:
                yield (source,)


def _too_many_tags(request: AwsRequest) -> Iterable[Fill]:
    """Check the number of tags: submissions add their own, so more than 50 can never run."""
    tags = request.get("Tags", {})
    size = len(tags) if isinstance(tags, dict) else 0
    return when(true(request.get("PropagateTags")) and size > 50)


ROWS = (
    AwsRefusal(
        id="batch-job-name",
        on=DEFINITION,
        condition="A name with other characters than letters, digits, hyphens and underscores.",
        words="Job definition name should match valid pattern",
        verbatim=False,
        source=API + "API_RegisterJobDefinition.html",
        judge="pf-batch-jd-name",
        check=lambda r: when(
            bool(r.text("JobDefinitionName")) and not NAME.fullmatch(r.text("JobDefinitionName"))
        ),
    ),
    AwsRefusal(
        id="batch-job-size",
        on=DEFINITION,
        condition="A definition of more than 24 KiB.",
        words="Job definition size must be less than 24 KiB, got {} KiB",
        verbatim=False,
        source=GUIDE + "service_limits.html",
        check=_too_long,
    ),
    AwsRefusal(
        id="batch-job-attempts",
        on=DEFINITION,
        condition="No attempt, or more than ten.",
        words="RetryAttempts must be between 1 and 10.",
        source=API + "API_RetryStrategy.html",
        judge="pf-batch-retry-attempts",
        check=lambda r: when(not 1 <= r.number("RetryStrategy.Attempts", 1) <= 10),
    ),
    AwsRefusal(
        id="batch-job-rules-without-attempts",
        on=DEFINITION,
        condition="Rules for retries without a number of attempts.",
        words="RetryAttempts must be provided with retry strategy.",
        source=API + "API_RetryStrategy.html",
        judge="pf-batch-jd-evaluate-on-exit-requires-attempts",
        check=lambda r: when(
            r.has("RetryStrategy.EvaluateOnExit") and not r.has("RetryStrategy.Attempts")
        ),
    ),
    AwsRefusal(
        id="batch-job-rules",
        on=DEFINITION,
        condition="More than five rules for retries.",
        words="evaluateOnExit can have at most 5 rules, got {}",
        verbatim=False,
        source=API + "API_RetryStrategy.html",
        check=lambda r: when(
            len(r.each("RetryStrategy.EvaluateOnExit")) > 5,
            len(r.each("RetryStrategy.EvaluateOnExit")),
        ),
    ),
    AwsRefusal(
        id="batch-job-rule-empty",
        on=DEFINITION,
        condition="A rule for retries that matches nothing by name.",
        words="EvaluateOnExit should contain at least one of onExitCode, onReason or "
        "onStatusReason.",
        source=API + "API_EvaluateOnExit.html",
        judge="pf-batch-jd-evaluate-on-exit-condition-required",
        check=_no_condition,
    ),
    AwsRefusal(
        id="batch-job-rule-exit-code",
        on=DEFINITION,
        condition="An exit code with other characters than digits and an asterisk.",
        words="Evaluate on exit condition contains restricted characters.",
        source=API + "API_EvaluateOnExit.html",
        judge="pf-batch-jd-evaluate-on-exit-exitcode-format",
        check=_exit_codes,
    ),
    AwsRefusal(
        id="batch-job-rule-length",
        on=DEFINITION,
        condition="A pattern of more than 512 characters.",
        words="Evaluate on exit condition cannot exceed 512 characters.",
        source=API + "API_EvaluateOnExit.html",
        judge="pf-batch-jd-evaluate-on-exit-pattern-length",
        check=lambda r: when(any(len(pattern) > 512 for _, pattern in _conditions(r))),
    ),
    AwsRefusal(
        id="batch-job-timeout",
        on=DEFINITION,
        condition="A time limit below 60 seconds.",
        words="AttemptDurationSeconds in Timeout must be at least 60 seconds.",
        source=API + "API_JobTimeout.html",
        judge="pf-batch-timeout-minimum",
        check=lambda r: when(r.number("Timeout.AttemptDurationSeconds") < 60),
    ),
    AwsRefusal(
        id="batch-job-priority",
        on=DEFINITION,
        condition="A scheduling priority outside of 0 to 9999.",
        words="Scheduling priority must be between 0 and 9999.",
        source=API + "API_RegisterJobDefinition.html",
        judge="pf-batch-jd-scheduling-priority-range",
        check=lambda r: when(not 0 <= r.number("SchedulingPriority", 0) <= 9999),
    ),
    AwsRefusal(
        id="batch-single-node-type",
        on=DEFINITION,
        condition="An instance type for a job on a single node.",
        words="instanceType is not applicable to single-node container jobs",
        verbatim=False,
        source=API + "API_ContainerProperties.html",
        known_to=CFN_LINT,
        check=_single_node_type,
    ),
    AwsRefusal(
        id="batch-vcpu-missing",
        on=DEFINITION,
        condition="A container that asks for no vCPU.",
        words="vCPU is required.",
        source=API + "API_ResourceRequirement.html",
        judge="pf-batch-jd-resource-requirements-required",
        known_to=MOTO,
        check=_vcpu_missing,
    ),
    AwsRefusal(
        id="batch-vcpu-small",
        on=DEFINITION,
        condition="Less than one vCPU.",
        words="vCPU must be at least 1, got {}.",
        source=API + "API_ResourceRequirement.html",
        judge="pf-batch-jd-resource-requirements-vcpu-min",
        known_to=MOTO,
        check=_vcpu_small,
    ),
    AwsRefusal(
        id="batch-requirement-number",
        on=DEFINITION,
        condition="A part of a vCPU, or of a mebibyte.",
        words="Value {} for type {} in resourceRequirement is not valid. Please provide a numeric "
        "value.",
        source="https://github.com/kestra-io/plugin-aws/issues/504",
        check=_not_numbers,
    ),
    AwsRefusal(
        id="batch-memory-small",
        on=DEFINITION,
        condition="Less than 4 MiB of memory.",
        words="Memory must be at least 4 Mib, got {} Mib.",
        source=API + "API_ContainerProperties.html",
        known_to=MOTO,
        check=_memory_small,
    ),
    AwsRefusal(
        id="batch-requirement-twice",
        on=DEFINITION,
        condition="The same resource asked for twice.",
        words="Cannot provide duplicates in resourceRequirements.",
        source=API + "API_ResourceRequirement.html",
        judge="pf-batch-jd-resource-requirements-duplicate-type",
        check=_required_twice,
    ),
    AwsRefusal(
        id="batch-requirement-old-and-new",
        on=DEFINITION,
        condition="vCPUs or memory in the old form and the new one.",
        words="Cannot use both ECS containerProperties {} and resourceRequirement {}.",
        source=API + "API_ContainerProperties.html",
        judge="pf-batch-jd-legacy-and-resource-requirements",
        check=_old_and_new,
    ),
    AwsRefusal(
        id="batch-device-permission",
        on=DEFINITION,
        condition="A permission of a device that does not exist.",
        words="Invalid permission: {} for device {}",
        source=API + "API_Device.html",
        judge="pf-batch-jd-device-permissions-value",
        known_to=CFN_LINT,
        check=_permissions,
    ),
    AwsRefusal(
        id="batch-tmpfs-size",
        on=DEFINITION,
        condition="A tmpfs without a size.",
        words="Size of a tmpfs is invalid. The size is required and must be a positive integer.",
        source=API + "API_Tmpfs.html",
        judge="pf-batch-jd-tmpfs-size-min",
        check=_tmpfs,
    ),
    AwsRefusal(
        id="batch-swappiness",
        on=DEFINITION,
        condition="A swappiness outside of 0 to 100.",
        words="Invalid swappiness: {}, must be between 0 and 100.",
        source=API + "API_LinuxParameters.html",
        judge="pf-batch-jd-linux-swappiness-range",
        check=_swappiness,
    ),
    AwsRefusal(
        id="batch-swap-without-swappiness",
        on=DEFINITION,
        condition="Swap space without a swappiness.",
        words="When container specified swap memory, swappiness value is required.",
        source=API + "API_LinuxParameters.html",
        judge="pf-batch-jd-max-swap-requires-swappiness",
        check=_swap_without_swappiness,
    ),
    AwsRefusal(
        id="batch-log-option",
        on=DEFINITION,
        condition="An option that the awslogs driver does not have.",
        words="Log driver awslogs disallows options: {}",
        source=GUIDE + "using_awslogs.html",
        judge="pf-batch-jd-log-awslogs-unknown-option",
        check=_awslogs,
    ),
    AwsRefusal(
        id="batch-secrets-without-role",
        on=DEFINITION,
        condition="Secrets without a role that may read them.",
        words="executionRoleArn cannot be empty when using secrets or secretOptions",
        source=API + "API_ContainerProperties.html",
        judge="pf-batch-jd-secrets-requires-execution-role",
        check=_secrets,
    ),
    AwsRefusal(
        id="batch-variable-without-name",
        on=DEFINITION,
        condition="An environment variable without a name.",
        words="Environment variable name is required.",
        source=API + "API_KeyValuePair.html",
        judge="pf-batch-jd-env-name-required",
        check=_unnamed_variables,
    ),
    AwsRefusal(
        id="batch-volume-twice",
        on=DEFINITION,
        condition="A volume of two kinds at once.",
        words="When the volume parameter is specified, only one volume configuration type should "
        "be used.",
        source=API + "API_Volume.html",
        judge="pf-batch-jd-volume-config-exclusive",
        check=_volumes,
    ),
    AwsRefusal(
        id="batch-volume-unknown",
        on=DEFINITION,
        condition="A mount point of a volume that the job does not have.",
        words="Unknown volume '{}'.",
        verbatim=False,
        source="https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_MountPoint.html",
        check=_unknown_volumes,
    ),
    AwsRefusal(
        id="batch-platforms",
        on=DEFINITION,
        condition="More than one platform.",
        words="Exactly 1 capability must be provided.",
        source=API + "API_RegisterJobDefinition.html",
        judge="pf-batch-jd-platform-capabilities-single",
        check=lambda r: when(len(r.each("PlatformCapabilities")) > 1),
    ),
    AwsRefusal(
        id="batch-too-many-tags",
        on=DEFINITION,
        condition="More tags than a task can have are to be passed on to it.",
        words="Tags: {} combined tags of job and job definition are more than 50",
        verbatim=False,
        outcome=AwsOutcome.FAILS_LATER,
        source=API + "API_RegisterJobDefinition.html",
        check=lambda r: [(len(r.get("Tags", {})),) for _ in _too_many_tags(r)],
    ),
    AwsRefusal(
        id="batch-ignores-reserved-variables",
        on=DEFINITION,
        condition="An environment variable of Batch's own prefix, which Batch takes away.",
        words="{} is not passed to the container",
        verbatim=False,
        outcome=AwsOutcome.IGNORED,
        source="https://github.com/raster-foundry/raster-foundry/pull/2525",
        check=_reserved_variables,
    ),
)
