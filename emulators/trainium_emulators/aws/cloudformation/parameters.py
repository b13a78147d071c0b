"""SSM parameters: tags as CloudFormation writes them, and names where the template gives none."""

import uuid

from trainium_emulators.aws.cloudformation.spi import Contribution, Place, Properties


def _complete(properties: Properties, _: Place) -> None:
    """CloudFormation has a map of tags here, moto wants the list that the API has."""
    properties.setdefault("Name", f"CFN-Parameter-{uuid.uuid4().hex[:12]}")
    tags = properties.get("Tags", {})
    properties["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]


CONTRIBUTION = Contribution(before={"AWS::SSM::Parameter": _complete})
