"""Rules about the costs of jobs and of the deployment."""

from __future__ import annotations

from stacks.config.refusal import PREFIX, Refusals
from stacks.config.values import ConfigValues
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.zones import REGIONS_WITHOUT_BUDGETS


def refusals(config: ConfigValues) -> Refusals:
    """Yield a refusal for each of these rules that the configuration breaks."""
    if (
        config.max_cost_per_job_usd is not None
        and config.region not in config.instance.list_price_regions
    ):
        priced = (
            f"{kind.name} ({', '.join(sorted(kind.list_price_regions))})"
            for kind in INSTANCE_TYPES.values()
            if kind.list_price_regions
        )
        yield (
            "max_cost_per_job_usd",
            f"cannot be enforced: no list price of {config.instance_type} in {config.region} is "
            "known",
            f"omit the key, or use a type and region with a known list price: {', '.join(priced)}",
        )
    if config.monthly_budget_usd is not None and not config.notifies:
        yield (
            "monthly_budget_usd",
            "would alert no one",
            f"add {PREFIX}notify_email=<address> or {PREFIX}notify_topic_arn=<ARN>, or omit the "
            "key",
        )
    if config.monthly_budget_usd is not None and config.region in REGIONS_WITHOUT_BUDGETS:
        yield (
            "monthly_budget_usd",
            f"cannot be created: CloudFormation does not support budgets in {config.region}",
            "omit the key, and create the budget manually: see docs/costs.md",
        )
