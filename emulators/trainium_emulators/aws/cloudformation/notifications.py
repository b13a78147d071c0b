"""Models resource types of SNS and Lambda that moto's CloudFormation lacks."""

import json
from typing import Any

from moto.awslambda.utils import get_backend
from moto.sns.models import sns_backends

from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    Properties,
    ResourceModel,
)


def _sns(place: AccountRegion) -> Any:
    return sns_backends[place.account_id][place.region]


class TopicPolicy(ResourceModel):
    """AWS::SNS::TopicPolicy."""

    @classmethod
    def create(cls, name: str, properties: Properties, place: AccountRegion) -> ResourceModel:
        for topic in properties["Topics"]:
            policy = json.dumps(properties["PolicyDocument"])
            _sns(place).set_topic_attribute(topic, "policy", policy)
        return cls(name)


class TopicSubscription(ResourceModel):
    """AWS::SNS::Subscription, without a confirmation request, because no email is sent."""

    @classmethod
    def create(cls, name: str, properties: Properties, place: AccountRegion) -> ResourceModel:
        subscription = _sns(place).subscribe(
            properties["TopicArn"], properties["Endpoint"], properties["Protocol"]
        )
        return cls(subscription.arn)


class EventInvokeConfig(ResourceModel):
    """AWS::Lambda::EventInvokeConfig."""

    @classmethod
    def create(cls, name: str, properties: Properties, place: AccountRegion) -> ResourceModel:
        function = properties["FunctionName"]
        attempts = {"MaximumRetryAttempts": int(properties["MaximumRetryAttempts"])}
        backend = get_backend(place.account_id, place.region)
        backend.put_function_event_invoke_config(function, attempts)
        return cls(f"{function}|{properties['Qualifier']}")


def _delete_subscription(subscription: Any, _: Properties, place: AccountRegion) -> None:
    _sns(place).unsubscribe(subscription.physical_resource_id)


def _keep_tags(topic: Any, properties: Properties, _: AccountRegion) -> None:
    topic._tags = {tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])}


CONTRIBUTION = Contribution(
    after={"AWS::SNS::Topic": _keep_tags},
    models={
        "AWS::Lambda::EventInvokeConfig": EventInvokeConfig,
        "AWS::SNS::Subscription": TopicSubscription,
        "AWS::SNS::TopicPolicy": TopicPolicy,
    },
    delete={
        "AWS::SNS::Subscription": _delete_subscription,
        # Deleted with the topic and the function.
        "AWS::SNS::TopicPolicy": lambda policy, properties, place: None,
        "AWS::Lambda::EventInvokeConfig": lambda config, properties, place: None,
        "AWS::Lambda::Permission": lambda permission, properties, place: None,
    },
)
