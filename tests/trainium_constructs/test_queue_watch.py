"""The watch over a queue, run by moto's interpreter of the Amazon States Language.

Every call is checked against AWS's own models of its parameters and its answer (botocore).
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import aws_cdk as cdk
import boto3
import pytest
from aws_cdk.assertions import Template
from botocore.stub import Stubber
from botocore.validate import validate_parameters
from moto import mock_aws
from moto.events.models import EventPattern
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import (
    state_task_service_aws_sdk as aws_sdk,
)

from tests.support.limits import scaled
from trainium_catalogue.contract import HOSTS_IN_VAIN_REASON
from trainium_constructs.batch.queue_watch import LOOKS, QueueWatch, definition

QUEUE = "arn:aws:batch:us-west-2:111122223333:job-queue/nodes"
ROLE = "arn:aws:iam::111122223333:role/watch"

WAITS: dict[str, Any] = {"jobName": "run", "jobId": "j-1", "jobQueue": QUEUE, "status": "RUNNABLE",
         "startedAt": 0, "jobDefinition": "d"}  # fmt: skip
NO_CAPACITY = {**WAITS, "statusReason": "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - ..."}
RUNS = {**WAITS, "status": "RUNNING"}
HOST = [{"Instances": [{"InstanceId": "i-1"}]}]


@functools.cache
def client_of(service: str) -> Any:
    return boto3.client(
        service, region_name="us-west-2", aws_access_key_id="none", aws_secret_access_key="none"
    )


class World:
    """AWS's answers to each look; the last one repeats forever."""

    def __init__(
        self,
        *,
        job: Sequence[dict[str, Any] | None],
        others: Sequence[int] = (0,),
        hosts: Sequence[list[Any]] = (HOST,),
    ) -> None:
        self._answers: dict[str, list[Any]] = {
            "describe_jobs": [{"jobs": [each] if each else []} for each in job],
            "list_jobs": [
                {"jobSummaryList": [{"jobId": "other", "jobName": "other"}] * number}
                for number in others
            ],
            "describe_instances": [{"Reservations": each} for each in hosts],
            "cancel_job": [{}],
        }
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def client(self, *, service: str, **_: Any) -> Any:
        return Client(service, self)

    def answer(self, service: str, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
        meta = client_of(service).meta
        operation = meta.service_model.operation_model(meta.method_to_api_mapping[action])
        validate_parameters(parameters, operation.input_shape)
        self.calls.append((action, parameters))
        answers = self._answers[action]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        Stubber(client_of(service)).add_response(action, answer)  # raises if AWS cannot say so
        copied: dict[str, Any] = json.loads(json.dumps(answer))
        return copied

    def count(self, action: str) -> int:
        return sum(name == action for name, _ in self.calls)


class Client:
    """A client of one service."""

    def __init__(self, service: str, world: World) -> None:
        self.meta = client_of(service).meta
        self._service, self._world = service, world

    def __getattr__(self, action: str) -> Callable[..., Any]:
        return lambda **parameters: self._world.answer(self._service, action, parameters)


def operation_of(task: Any) -> Any:
    action = task.resource.api_action
    model = client_of(task.resource.api_name).meta.service_model
    return model.operation_model(action[0].upper() + action[1:])


def spell_parameters(task: Any, parameters: dict[str, Any]) -> None:
    task._to_boto_request(parameters, operation_of(task).input_shape)


def spell_answer(task: Any, answer: Any) -> None:
    task._from_boto_response(answer, operation_of(task).output_shape)


def without_waits(document: dict[str, Any]) -> dict[str, Any]:
    for state in document["States"].values():
        if state["Type"] == "Wait":
            state["Seconds"] = 0
        for retry in state.get("Retry", ()):
            retry["MaxAttempts"] = 0
    return document


def event_of(job_id: str, *, status: str = "RUNNABLE") -> dict[str, Any]:
    return {
        "source": "aws.batch",
        "detail-type": "Batch Job State Change",
        "detail": {"jobId": job_id, "jobQueue": QUEUE, "status": status},
    }


def watch(world: World, monkeypatch: pytest.MonkeyPatch, *, job_id: str = "j-1") -> str:
    """Run the machine to its end; return the execution's status."""
    monkeypatch.setattr(aws_sdk, "boto_client_for", world.client)
    # Step Functions spells every name PascalCase (Developer Guide, AWS SDK service integrations);
    # moto has the code for that and does not call it.
    monkeypatch.setattr(aws_sdk.StateTaskServiceAwsSdk, "_normalise_parameters", spell_parameters)
    monkeypatch.setattr(aws_sdk.StateTaskServiceAwsSdk, "_normalise_response", spell_answer)
    document = without_waits(
        definition(host_name="trainium-default-batch", deployment="default", partition="aws")
    )
    with mock_aws(config={"stepfunctions": {"execute_state_machine": True}}):
        states = client_of("stepfunctions")
        machine = states.create_state_machine(
            name="watch", definition=json.dumps(document), roleArn=ROLE
        )["stateMachineArn"]
        execution = states.start_execution(
            stateMachineArn=machine, input=json.dumps(event_of(job_id))
        )
        deadline = time.monotonic() + scaled(60)
        while time.monotonic() < deadline:
            described = states.describe_execution(executionArn=execution["executionArn"])
            if described["status"] != "RUNNING":
                return str(described["status"])
            time.sleep(0.05)
    raise AssertionError("the execution does not end")


def test_a_job_that_hosts_are_up_for_in_vain_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job=[WAITS])

    assert watch(world, monkeypatch) == "SUCCEEDED"
    assert world.calls[-1] == ("cancel_job", {"jobId": "j-1", "reason": HOSTS_IN_VAIN_REASON})
    assert world.count("describe_jobs") == LOOKS


def test_a_job_that_starts_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job=[WAITS] * (LOOKS - 1) + [RUNS])

    assert watch(world, monkeypatch) == "SUCCEEDED"
    assert world.count("cancel_job") == 0


def test_a_job_that_batch_has_forgotten_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch(World(job=[None]), monkeypatch) == "SUCCEEDED"


def test_a_wait_for_capacity_is_batchs_own_affair(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job=[NO_CAPACITY] * (2 * LOOKS) + [RUNS])

    assert watch(world, monkeypatch) == "SUCCEEDED"
    assert world.count("cancel_job") == 0


def test_a_job_behind_another_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job=[WAITS], others=[1] * (2 * LOOKS) + [0])

    assert watch(world, monkeypatch) == "SUCCEEDED"
    # Looks before its turn do not count.
    assert world.count("describe_jobs") == 3 * LOOKS


def test_without_hosts_nothing_is_billed_and_nothing_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(job=[WAITS] * (2 * LOOKS) + [RUNS], hosts=[[]])

    assert watch(world, monkeypatch) == "SUCCEEDED"
    assert world.count("cancel_job") == 0


def test_hosts_that_come_and_go_count_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job=[WAITS], hosts=[HOST, []] * LOOKS)

    assert watch(world, monkeypatch) == "SUCCEEDED"
    assert world.count("cancel_job") == 1


def test_hosts_are_those_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job=[WAITS])
    watch(world, monkeypatch)

    asked = next(parameters for name, parameters in world.calls if name == "describe_instances")

    assert {each["Name"]: each["Values"] for each in asked["Filters"]} == {
        "tag:Name": ["trainium-default-batch"],
        "tag:trainium:deployment": ["default"],
        "instance-state-name": ["pending", "running"],
    }


def test_an_array_whose_first_child_waits_in_vain_is_cancelled_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(job=[{**WAITS, "jobId": "j-1:0"}])

    assert watch(world, monkeypatch, job_id="j-1:0") == "SUCCEEDED"
    assert world.calls[0] == ("describe_jobs", {"jobs": ["j-1:0"]})
    assert world.calls[-1] == ("cancel_job", {"jobId": "j-1", "reason": HOSTS_IN_VAIN_REASON})


@pytest.fixture(scope="module")
def pattern() -> EventPattern:
    stack = cdk.Stack()
    QueueWatch(stack, "Watch", queue_arn=QUEUE, host_name="hosts", deployment="default")
    (rule,) = Template.from_stack(stack).find_resources("AWS::Events::Rule").values()
    return EventPattern.load(json.dumps(rule["Properties"]["EventPattern"]))


@pytest.mark.parametrize(
    ("job_id", "status", "watched"),
    [
        ("j-1", "RUNNABLE", True),
        ("j-1", "RUNNING", False),
        ("j-1#0", "RUNNABLE", False),
        ("j-1:0", "RUNNABLE", True),
        ("j-1:10", "RUNNABLE", False),
        # The array itself: it is PENDING while a child is RUNNABLE.
        ("j-1", "PENDING", False),
    ],
)
def test_a_job_and_the_first_child_of_an_array_are_watched(
    pattern: EventPattern, job_id: str, status: str, watched: bool
) -> None:
    assert pattern.matches_event(event_of(job_id, status=status)) is watched
