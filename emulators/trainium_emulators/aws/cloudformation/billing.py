"""Models AWS Budgets: moto has budgets, but no CloudFormation type for them."""

from typing import Any

from moto.budgets.models import budgets_backends

from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    ModeledResource,
    Properties,
    PropertyChange,
)


def _budgets(place: AccountRegion) -> Any:
    return budgets_backends[place.account_id]["aws"]


def _create_budget(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """AWS::Budgets::Budget."""
    _budgets(place).create_budget(
        place.account_id,
        {"BudgetName": name, **properties["Budget"]},
        properties.get("NotificationsWithSubscribers", []),
    )
    return ModeledResource(name)


def _update_budget(budget: Any, change: PropertyChange, place: AccountRegion) -> Any:
    change.refuse_others("AWS::Budgets::Budget", frozenset({"Budget"}))
    stored = _budgets(place).budgets[place.account_id][budget.physical_resource_id]
    stored.budget |= change.properties["Budget"]
    return budget


def _delete_budget(budget: Any, _: Properties, place: AccountRegion) -> None:
    _budgets(place).delete_budget(place.account_id, budget.physical_resource_id)


CONTRIBUTION = Contribution(
    create={"AWS::Budgets::Budget": _create_budget},
    update={"AWS::Budgets::Budget": _update_budget},
    # AWS CloudFormation Template Reference, AWS::Budgets::Budget, "Update requires".
    replaced_by={"AWS::Budgets::Budget": frozenset({"NotificationsWithSubscribers"})},
    delete={"AWS::Budgets::Budget": _delete_budget},
)
