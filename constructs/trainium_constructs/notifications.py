"""A topic for notifications about runs, and the function that publishes them."""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from trainium_catalogue.contract import ENV_NOTIFY_TOPIC, ENV_NOTIFY_WAIT_MINUTES
from trainium_constructs.scheduled import CheckedDeployment, ScheduledFunction


class RunNotifications(ScheduledFunction):
    """A function that publishes notifications about a deployment's runs to a topic."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        deployment: CheckedDeployment,
        email: str | None,
        topic_arn: str | None,
        wait_minutes: int,
    ) -> None:
        """Create the function and, without an existing topic, a topic.

        Args:
            deployment: The deployment; its bucket also records published notifications.
            email: Address to subscribe to a new topic.
            topic_arn: An existing topic, which is left unchanged. Default: a new one.
            wait_minutes: Minutes that a run may wait before a notification is sent.
        """
        super().__init__(scope, construct_id, deployment=deployment)
        self.topic = (
            self._new_topic(email)
            if topic_arn is None
            else sns.Topic.from_topic_arn(self, "Topic", topic_arn)
        )
        self._allow_publishing(is_existing=topic_arn is not None)
        deployment.bucket.grant_notifying(self.role)
        self._schedule(
            "notifier.function.handler",
            f"Notifies about runs of the Trainium deployment {deployment.name}",
            {
                ENV_NOTIFY_TOPIC: self.topic.topic_arn,
                ENV_NOTIFY_WAIT_MINUTES: str(wait_minutes),
            },
        )

    def _new_topic(self, email: str | None) -> sns.Topic:
        # The AWS managed key, which roles may use but services such as EventBridge may not (SNS
        # Developer Guide, key management); a customer managed key would outlive the stack by at
        # least a week.
        key = kms.Alias.from_alias_name(self, "Key", "alias/aws/sns")
        topic = sns.Topic(self, "Topic", enforce_ssl=True, master_key=key)
        if email is not None:
            topic.add_subscription(subscriptions.EmailSubscription(email))
        return topic

    def _allow_publishing(self, *, is_existing: bool) -> None:
        publish = iam.PolicyStatement(actions=["sns:Publish"], resources=[self.topic.topic_arn])
        self.role.add_to_policy(publish)
        if is_existing:
            # Its key, if any, is unknown: allow any, but only for this topic's messages.
            context = {"kms:EncryptionContext:aws:sns:topicArn": self.topic.topic_arn}
            self.role.add_to_policy(
                iam.PolicyStatement(
                    actions=["kms:Decrypt", "kms:GenerateDataKey"],
                    resources=["*"],
                    conditions={"StringEquals": context},
                )
            )
