"""A monthly budget for costs that carry a deployment's tag."""

from __future__ import annotations

from aws_cdk import aws_budgets as budgets
from constructs import Construct

_PERCENTAGES = (("ACTUAL", 80), ("ACTUAL", 100), ("FORECASTED", 100))


class MonthlyBudget(Construct):
    """A budget that notifies an address or a topic but stops nothing."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        usd: int,
        email: str | None,
        topic_arn: str | None,
        tag: str,
        value: str,
    ) -> None:
        """Create a budget for the costs of resources whose ``tag`` has this ``value``.

        The tag must be activated as a cost allocation tag.

        The topic must be in this account, and its policy must allow budgets.amazonaws.com to
        publish:
        docs.aws.amazon.com/cost-management/latest/userguide/budgets-sns-policy.html
        """
        super().__init__(scope, construct_id)
        subscribers = (("EMAIL", email), ("SNS", topic_arn))
        budget = budgets.CfnBudget
        budget(
            self,
            "Budget",
            budget=budget.BudgetDataProperty(
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budget.SpendProperty(amount=usd, unit="USD"),
                # By default credits and refunds are subtracted:
                # docs.aws.amazon.com/aws-cost-management/latest/APIReference,
                # API_budgets_CostTypes.html
                cost_types=budget.CostTypesProperty(include_credit=False, include_refund=False),
                # Format: github.com/aws/aws-cli, awscli/examples/budgets/create-budget.rst
                cost_filters={"TagKeyValue": [f"user:{tag}${value}"]},
            ),
            notifications_with_subscribers=[
                budget.NotificationWithSubscribersProperty(
                    notification=budget.NotificationProperty(
                        notification_type=kind,
                        threshold=percentage,
                        threshold_type="PERCENTAGE",
                        comparison_operator="GREATER_THAN",
                    ),
                    subscribers=[
                        budget.SubscriberProperty(subscription_type=how, address=address)
                        for how, address in subscribers
                        if address is not None
                    ],
                )
                for kind, percentage in _PERCENTAGES
            ],
        )
