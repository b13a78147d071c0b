"""Models resource types of SNS and Lambda that moto's CloudFormation lacks."""

import json
from typing import Any

from moto.awslambda.utils import get_backend
from moto.sns.models import sns_backends

from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    ModeledResource,
    Properties,
)


def _sns(place: AccountRegion) -> Any:
    return sns_backends[place.account_id][place.region]


def _set_topic_policy(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::SNS::TopicPolicy."""
    for topic in properties["Topics"]:
        policy = json.dumps(properties["PolicyDocument"])
        _sns(place).set_topic_attribute(topic, "policy", policy)
    return ModeledResource(name)


def _subscribe(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::SNS::Subscription, without a confirmation request, because no email is sent."""
    subscription = _sns(place).subscribe(
        properties["TopicArn"], properties["Endpoint"], properties["Protocol"]
    )
    return ModeledResource(subscription.arn)


def _configure_invocations(
    name: str, properties: Properties, place: AccountRegion
) -> ModeledResource:
    """AWS::Lambda::EventInvokeConfig."""
    function = properties["FunctionName"]
    attempts = {"MaximumRetryAttempts": int(properties["MaximumRetryAttempts"])}
    backend = get_backend(place.account_id, place.region)
    backend.put_function_event_invoke_config(function, attempts)
    return ModeledResource(f"{function}|{properties['Qualifier']}")


def _delete_subscription(subscription: Any, _: Properties, place: AccountRegion) -> None:
    _sns(place).unsubscribe(subscription.physical_resource_id)


def _keep_tags(topic: Any, properties: Properties, _: AccountRegion) -> None:
    topic._tags = {tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])}


CONTRIBUTION = Contribution(
    after={"AWS::SNS::Topic": _keep_tags},
    create={
        "AWS::Lambda::EventInvokeConfig": _configure_invocations,
        "AWS::SNS::Subscription": _subscribe,
        "AWS::SNS::TopicPolicy": _set_topic_policy,
    },
    delete={
        "AWS::SNS::Subscription": _delete_subscription,
        # Deleted with the topic and the function.
        "AWS::SNS::TopicPolicy": lambda policy, properties, place: None,
        "AWS::Lambda::EventInvokeConfig": lambda config, properties, place: None,
        "AWS::Lambda::Permission": lambda permission, properties, place: None,
    },
)
