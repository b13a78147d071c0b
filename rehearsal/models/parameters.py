"""SSM parameters: tags as CloudFormation writes them."""

from rehearsal.models.spi import Contribution, Place, Properties


def _list_tags(properties: Properties, _: Place) -> None:
    """CloudFormation has a map here, moto wants the list that the API has."""
    tags = properties.get("Tags", {})
    properties["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]


CONTRIBUTION = Contribution(before={"AWS::SSM::Parameter": _list_tags})
