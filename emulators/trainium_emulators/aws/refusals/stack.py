"""Refusals of CloudFormation for a template as a whole, and of Helm, which the stack calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trainium_emulators.aws.refusals.refusal import (
    CFN_LINT,
    CHART,
    MOTO,
    TEMPLATE,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import AwsRequest, PartialText, duplicates, get, text

GUIDE = "https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/"
RELEASE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""Release names in Helm 3 and 4 (pkg/chartutil/validate_name.go)."""


def _outputs(request: AwsRequest) -> dict[str, Any]:
    outputs = request.get("Outputs", {})
    return outputs if isinstance(outputs, dict) else {}


def _export_names(request: AwsRequest) -> list[str]:
    names = [text(get(output, "Export.Name")) for output in _outputs(request).values()]
    return [name for name in names if name]


def _exported_twice(request: AwsRequest) -> Iterable[Fill]:
    again = duplicates(_export_names(request))
    return when(bool(again), ", ".join(again))


def _exported_lists(request: AwsRequest) -> Iterable[Fill]:
    return when(any(isinstance(get(o, "Value"), list) for o in _outputs(request).values()))


def _exported_size(request: AwsRequest) -> Iterable[Fill]:
    for name, output in _outputs(request).items():
        value = get(output, "Value")
        if (
            get(output, "Export") is not None
            and isinstance(value, (str, PartialText))
            and len(value.encode()) > 1024
        ):
            yield (name, len(value.encode()))


def _names_fixed_twice(request: AwsRequest) -> Iterable[Fill]:
    """Find physical names that two resources of one type in a stack share."""
    fixed = {
        "AWS::Batch::ComputeEnvironment": "ComputeEnvironmentName",
        "AWS::Batch::JobQueue": "JobQueueName",
        "AWS::ECR::Repository": "RepositoryName",
        "AWS::IAM::Role": "RoleName",
        "AWS::Logs::LogGroup": "LogGroupName",
        "AWS::S3::Bucket": "BucketName",
        "AWS::SSM::Parameter": "Name",
    }
    named = [
        (text(get(resource, "Type")), text(get(resource, f"Properties.{key}")))
        for resource in request.get("Resources", {}).values()
        if (key := fixed.get(text(get(resource, "Type"))))
    ]
    for _, name in duplicates(pair for pair in named if pair[1]):
        yield (name,)


ROWS = (
    AwsRefusal(
        id="export-name",
        on=TEMPLATE,
        condition="An export's name with other characters than letters, digits, colons, hyphens.",
        words="The Name field of every Export member must be specified and consist only of "
        "alphanumeric characters, colons, or hyphens.",
        source=GUIDE + "outputs-section-structure.html",
        judge="pf-cfn-export-name-charset",
        check=lambda r: when(
            any(not re.fullmatch(r"[A-Za-z0-9:-]+", name) for name in _export_names(r))
        ),
    ),
    AwsRefusal(
        id="export-twice",
        on=TEMPLATE,
        condition="Two exports of one name.",
        words="The Outputs section contains duplicate Export names: [{}]. Specify a unique name "
        "for each export.",
        source=GUIDE + "using-cfn-stack-exports.html",
        judge="pf-cfn-export-name-duplicate",
        check=_exported_twice,
    ),
    AwsRefusal(
        id="export-size",
        on=TEMPLATE,
        condition="An exported value of more than 1,024 bytes.",
        words="Cannot export output {} with length {}. Max length of 1024 exceeded.",
        source=GUIDE + "using-cfn-stack-exports.html",
        judge="pf-cfn-export-value-max",
        check=_exported_size,
    ),
    AwsRefusal(
        id="output-list",
        on=TEMPLATE,
        condition="An output that is a list.",
        words="Template format error: Every Value member must be a string.",
        source=GUIDE + "outputs-section-structure.html",
        judge="pf-cfn-export-value-list",
        known_to=CFN_LINT,
        check=_exported_lists,
    ),
    AwsRefusal(
        id="name-twice",
        on=TEMPLATE,
        condition="Two resources of a type with one name.",
        words="{} already exists in stack",
        verbatim=False,
        source=GUIDE + "cfn-console-create-stack.html",
        known_to=CFN_LINT | MOTO,
        check=_names_fixed_twice,
    ),
    AwsRefusal(
        id="chart-release-name",
        on=CHART,
        condition="A name of a release that Helm does not take.",
        words="invalid release name, must match regex and the length must not be longer than 53",
        verbatim=False,
        source="https://github.com/helm/helm/blob/main/pkg/chart/common/util/validate_name.go",
        check=lambda r: when(
            bool(r.text("Release"))
            and (len(r.text("Release")) > 53 or not RELEASE_NAME.fullmatch(r.text("Release")))
        ),
    ),
)
