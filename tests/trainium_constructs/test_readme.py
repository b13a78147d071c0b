"""The examples of constructs/README.md run, in order."""

from __future__ import annotations

import re
from pathlib import Path

import aws_cdk as cdk
from aws_cdk.assertions import Annotations, Match, Template

README = Path(__file__).resolve().parents[2] / "constructs" / "README.md"


def test_examples_make_a_stack_that_runs_jobs() -> None:
    stack = cdk.Stack(cdk.App(), "Test", env=cdk.Environment(region="us-west-2"))
    examples = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)

    names: dict[str, object] = {"stack": stack}
    for example in examples:
        exec(compile(example, str(README), "exec"), names)

    template = Template.from_stack(stack)
    template.resource_count_is("AWS::Batch::JobQueue", 1)
    template.resource_count_is("AWS::Batch::JobDefinition", 1)
    assert Annotations.from_stack(stack).find_warning("*", Match.any_value()) == []
