"""Contributions of this package's modules to moto: models, hooks around its models, deleters."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.core.common_models import CloudFormationModel

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRegion:
    """A stack's account and region."""

    account_id: str
    region: str


Before = Callable[[Properties, AccountRegion], None]
"""Changes the properties before moto's model reads them."""
After = Callable[[Any, Properties, AccountRegion], None]
"""Completes the resource that moto's model created."""
Delete = Callable[[Any, Properties, AccountRegion], None]
"""Deletes the resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyChange:
    """The new properties of an update, and the names of those that differ."""

    properties: Properties
    changed: AbstractSet[str]
    """Names of the properties that were changed, added or removed."""

    def refuse_others(self, kind: str, known: AbstractSet[str]) -> None:
        """Fail on a changed property that an update would not apply."""
        if unknown := sorted(self.changed - known):
            raise ValidationError(
                message=f"the rehearsal cannot change {', '.join(unknown)} of {kind} in place; "
                "destroy the stacks first"
            )


Update = Callable[[Any, PropertyChange, AccountRegion], Any]
"""Changes or replaces the resource, and returns the resulting one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Additions to moto by CloudFormation type."""

    models: Mapping[str, type[CloudFormationModel]] = field(default_factory=dict)
    before: Mapping[str, Before] = field(default_factory=dict)
    after: Mapping[str, After] = field(default_factory=dict)
    update: Mapping[str, Update] = field(default_factory=dict)
    replaced_by: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Properties whose change forces replacement."""
    delete: Mapping[str, Delete] = field(default_factory=dict)


class ResourceModel(CloudFormationModel):
    """Base class of the models that moto lacks.

    Models must be in a package: moto's metaclass registers each by its module name's second part.
    """

    def __init__(self, physical_resource_id: str, attributes: Mapping[str, Any] | None = None):
        self.physical_resource_id = physical_resource_id
        self.attributes = dict(attributes or {})

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        # Registered under the type's own name in Contribution.models.
        return "Rehearsal::None::None"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    def get_cfn_attribute(self, attribute_name: str) -> Any:
        return self.attributes[attribute_name]

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
        **kwargs: Any,
    ) -> "ResourceModel":
        place = AccountRegion(account_id=account_id, region=region_name)
        return cls.create(resource_name, cloudformation_json["Properties"], place)

    @classmethod
    def create(cls, name: str, properties: Properties, place: AccountRegion) -> "ResourceModel":
        """Create the resource; ``name`` is the name that CloudFormation would generate."""
        raise TypeError(f"{cls.__name__} does not implement create")
