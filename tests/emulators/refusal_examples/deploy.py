"""Deploys examples into moto and the models: what fails, or all with and without the table.

A process of its own, because the models change moto for good:
``python -m tests.emulators.refusal_examples.deploy [all]`` prints JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import boto3
import botocore.config
import botocore.exceptions
from moto import mock_aws
from moto.backends import get_backend

from tests.emulators.refusal_examples import batch
from tests.emulators.refusal_examples.example import Json
from tests.emulators.refusal_examples.index import EXAMPLES, TEMPLATES
from trainium_emulators.aws.cloudformation import eks_nodes, registry
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER

REGION = "us-west-2"
Answers = dict[str, str | None]
_SERVICES = (
    "batch",
    "cloudformation",
    "ecr",
    "eks",
    "fsx",
    "iam",
    "kms",
    "lambda",
    "logs",
    "s3",
    "ssm",
)
"""Services that are emptied before each example; EC2 takes long, and a VPC more does no harm."""


@functools.cache
def _client(service: str, region: str = REGION) -> Any:
    return boto3.client(
        service,
        region_name=region,
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=botocore.config.Config(parameter_validation=False),
    )


def _reset() -> None:
    """Give the account no stacks again."""
    for name in _SERVICES:
        for of_account in get_backend(name).values():
            for backend in of_account.values():
                backend.reset()


def _deploy(*templates: Json, region: str) -> str | None:
    """Say why the last of some versions of a stack is refused, or None."""
    _reset()
    cloudformation = _client("cloudformation", region)
    operation = cloudformation.create_stack
    answer: str | None = None
    for template in templates:
        try:
            operation(StackName="example", TemplateBody=json.dumps(template))
            answer = None
        except Exception as error:
            answer = str(error)
        operation = cloudformation.update_stack
    return answer


def _examples(*, everything: bool) -> dict[str, Answers]:
    found: dict[str, Answers] = {}
    for name, example in EXAMPLES.items():
        good, bad = {"Resources": example.passes()}, {"Resources": example.fails()}
        steps = (good, bad) if example.update else (bad,)
        found[name] = _tried(good, *steps, region=example.region, everything=everything)
    for name, (bad, good) in TEMPLATES.items():
        found[name] = _tried(good, bad, region=REGION, everything=everything)
    return found


def _tried(good: Json, *bad: Json, region: str, everything: bool) -> Answers:
    answers: Answers = {"bad": _deploy(*bad, region=region)}
    if everything:
        answers["good"] = _deploy(good, region=region)
        with (
            mock.patch.object(registry, "refuse_resource", lambda *args, **kwargs: None),
            mock.patch.object(registry, "refuse_template", lambda *args: None),
        ):
            answers["without"] = _deploy(*bad, region=region)
    return answers


def _submissions() -> Answers:
    """Collect what moto itself says to every submission that AWS refuses."""
    _reset()
    made = {
        name: batch.BASE[name]
        for name in ("Vpc", "One", "Group", "Role", "Profile", "Template", "Environment", "Queue")
    }
    plain = {**batch.BASE["Queue"]["Properties"], "JobQueueName": "queue"}
    made["Queue"] = {"Type": "AWS::Batch::JobQueue", "Properties": plain}
    body = json.dumps({"Resources": made})
    _client("cloudformation").create_stack(StackName="batch", TemplateBody=body)
    client = _client("batch")
    said: Answers = {}
    for name, (bad, _) in batch.SUBMISSIONS.items():
        asked = {key: value for key, value in bad.items() if key not in ("definition", "queue")}
        client.register_job_definition(
            jobDefinitionName="definition",
            type="container",
            containerProperties={"image": "x", "vcpus": 1, "memory": 4},
        )
        try:
            client.submit_job(**asked)
            said[name] = None
        except botocore.exceptions.ClientError as error:
            said[name] = str(error)
    return said


def main() -> None:
    """Print what was said to every example."""
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # a second each, and none is used
    real = os.dup(1)
    os.dup2(2, 1)  # models print events to standard output
    nothing = SimpleNamespace(endpoint="http://127.0.0.1:1", store=None)
    with (
        mock_aws(),
        mock.patch.object(registry, "refusal_of", lambda *args: None),
        mock.patch.object(eks_nodes, "_scale", lambda *args: None),
    ):
        CLUSTER.use(lambda: nothing)  # type: ignore[arg-type, return-value]
        registry.install()
        everything = sys.argv[1:] == ["all"]
        answer = {
            "examples": _examples(everything=everything),
            "submissions": _submissions() if everything else {},
        }
    sys.stdout = os.fdopen(real, "w")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
