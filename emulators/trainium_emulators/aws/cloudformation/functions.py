"""Lambda functions and layers of the CDK's custom resources: deployed, listed, never run."""

from __future__ import annotations

from typing import Any

from moto.awslambda.models import get_backend

from trainium_emulators.aws.cloudformation.spi import Change, Contribution, Place, Properties


def _delete_layer(layer: Any, _: Properties, place: Place) -> None:
    get_backend(place.account_id, place.region).delete_layer_version(layer.name, layer.version)


def _update_layer(layer: Any, change: Change, place: Place) -> Any:
    """Every change makes a new version."""
    made = type(layer).create_from_cloudformation_json(
        layer.name, {"Properties": change.properties}, place.account_id, place.region
    )
    _delete_layer(layer, {}, place)
    return made


def _refer_by_arn(layer: Any, _: Properties, place: Place) -> None:
    """Let a reference be the version's ARN, as on AWS; moto's is the object itself."""
    layer.physical_resource_id = layer.arn


CONTRIBUTION = Contribution(
    after={"AWS::Lambda::LayerVersion": _refer_by_arn},
    update={"AWS::Lambda::LayerVersion": _update_layer},
    delete={"AWS::Lambda::LayerVersion": _delete_layer},
)
